//! `y += a · x`: the example of a kernel.

use std::sync::Arc;

use super::shaders;
use crate::error::{Result, VkError};
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::Recorder;
use crate::{Buffer, Device};

/// The kernel, ready for any number of calls.
#[derive(Debug)]
pub struct Axpy {
    pipeline: Arc<Pipeline>,
    threads: u32,
}

impl Axpy {
    /// Compiles it.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let threads = device.limits().max_workgroup_threads.min(128);
        let pipeline = Pipeline::new(device, shaders::AXPY, &[threads])?;
        Ok(Self { pipeline: Arc::new(pipeline), threads })
    }

    /// Records `y[i] += a · x[i]` for all `i` below `n`.
    ///
    /// # Errors
    ///
    /// [`VkError::OutOfRange`] if a buffer has fewer than `n` floats, [`VkError::Limit`].
    pub fn record(
        &self,
        recorder: &mut Recorder,
        n: u32,
        a: f32,
        x: &Arc<Buffer>,
        y: &Arc<Buffer>,
    ) -> Result<()> {
        for buffer in [x, y] {
            super::mlp::fits(self.pipeline.device(), buffer, 4 * u64::from(n))?;
        }
        let groups = n.div_ceil(self.threads);
        let limit = self.pipeline.device().limits().max_workgroups;
        if groups > limit {
            let (what, needed, limit) = ("workgroups", groups.into(), limit.into());
            return Err(VkError::Limit { what, needed, limit });
        }
        let set = BindSet::new(&self.pipeline, &[&[Arc::clone(x)], &[Arc::clone(y)]])?;
        recorder.dispatch(&self.pipeline, &Arc::new(set), &[n, a.to_bits()], groups);
        Ok(())
    }
}
