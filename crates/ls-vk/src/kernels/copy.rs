//! A copy: the measure of what the device's memory can do. Drivers' own copies can be slower.

use std::sync::Arc;

use super::shaders;
use crate::error::Result;
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::Recorder;
use crate::{Buffer, Device};

/// The kernel, ready for any number of calls.
#[derive(Debug)]
pub struct Copy {
    pipeline: Arc<Pipeline>,
    groups: u32,
}

impl Copy {
    /// Compiles it.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let limits = device.limits();
        let threads = limits.max_workgroup_threads.min(256);
        let pipeline = Arc::new(Pipeline::new(device, shaders::COPY, &[threads])?);
        let groups = limits.processors.unwrap_or(16).saturating_mul(16).min(limits.max_workgroups);
        Ok(Self { pipeline, groups })
    }

    /// Records a copy of `n` pieces of 16 bytes.
    ///
    /// # Errors
    ///
    /// [`VkError::OutOfRange`](crate::VkError::OutOfRange) if a buffer is shorter.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        n: u32,
        from: &Arc<Buffer>,
        to: &Arc<Buffer>,
    ) -> Result<()> {
        for buffer in [from, to] {
            super::mlp::fits(self.pipeline.device(), buffer, 16 * u64::from(n))?;
        }
        let set = BindSet::new(&self.pipeline, &[&[Arc::clone(from)], &[Arc::clone(to)]])?;
        recorder.dispatch(&self.pipeline, &Arc::new(set), &[n], self.groups);
        Ok(())
    }
}
