//! `out = x / rms(x) · weight`, in one workgroup: a row is a few thousand values.

use std::sync::Arc;

use super::shaders;
use crate::error::Result;
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::Recorder;
use crate::{Buffer, Device};

/// The kernel, ready for any number of calls.
#[derive(Debug)]
pub struct RmsNorm {
    pipeline: Arc<Pipeline>,
}

impl RmsNorm {
    /// Compiles it.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        // A power of two, for the tree of sums.
        let threads = 1 << device.limits().max_workgroup_threads.min(512).ilog2();
        let pipeline = Pipeline::new(device, shaders::RMS_NORM, &[threads])?;
        Ok(Self { pipeline: Arc::new(pipeline) })
    }

    /// Records the norm of the first `n` floats of `x`.
    ///
    /// # Errors
    ///
    /// [`VkError::OutOfRange`](crate::VkError::OutOfRange) if a buffer has fewer than `n` floats.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        (n, eps): (u32, f32),
        x: &Arc<Buffer>,
        weight: &Arc<Buffer>,
        out: &Arc<Buffer>,
    ) -> Result<()> {
        for buffer in [x, weight, out] {
            super::mlp::fits(self.pipeline.device(), buffer, 4 * u64::from(n))?;
        }
        let buffers = [x, weight, out].map(|buffer| [Arc::clone(buffer)]);
        let set = BindSet::new(&self.pipeline, &[&buffers[0], &buffers[1], &buffers[2]])?;
        recorder.dispatch(&self.pipeline, &Arc::new(set), &[n, eps.to_bits()], 1);
        Ok(())
    }
}
