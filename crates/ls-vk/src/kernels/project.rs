//! `M · x` for a matrix of f16, as values and as bits above thresholds: how a predictor's features
//! become a code without leaving the device.

use std::sync::Arc;

use super::shaders;
use crate::error::{Result, VkError};
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::Recorder;
use crate::{Buffer, Device};

/// Rows that one workgroup makes: one word of bits.
const ROWS: u32 = 32;

/// The kernel, ready for any number of calls.
#[derive(Debug)]
pub struct Project {
    pipeline: Arc<Pipeline>,
}

/// A projection's buffers.
#[derive(Clone, Debug)]
pub struct Projection {
    /// `[cols]` floats.
    pub x: Arc<Buffer>,
    /// `[rows, cols]` f16.
    pub matrix: Arc<Buffer>,
    /// `[rows]` floats.
    pub thresholds: Arc<Buffer>,
    /// `[rows]` floats, written.
    pub values: Arc<Buffer>,
    /// `[rows / 32]` words, rounded up, written: bit `r % 32` of word `r / 32` says whether value
    /// `r` is above its threshold.
    pub bits: Arc<Buffer>,
}

impl Project {
    /// Compiles it.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let threads: u32 = 1 << device.limits().max_workgroup_threads.min(256).ilog2();
        let team = (threads / ROWS).max(1);
        let pipeline = Pipeline::new(device, shaders::PROJECT, &[threads, team])?;
        Ok(Self { pipeline: Arc::new(pipeline) })
    }

    /// Records a projection of `rows` rows of `cols` columns.
    ///
    /// # Errors
    ///
    /// [`VkError::Shape`] if `cols` is odd, [`VkError::OutOfRange`] if a buffer is too short.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        (rows, cols): (u32, u32),
        on: &Projection,
    ) -> Result<()> {
        if !cols.is_multiple_of(2) {
            return Err(VkError::Shape { what: format!("{cols} columns are not even") });
        }
        let (r, c) = (u64::from(rows), u64::from(cols));
        let buffers = [
            (&on.x, 4 * c),
            (&on.matrix, 2 * r * c),
            (&on.thresholds, 4 * r),
            (&on.values, 4 * r),
            (&on.bits, 4 * r.div_ceil(ROWS.into())),
        ];
        for (buffer, bytes) in buffers {
            super::mlp::fits(self.pipeline.device(), buffer, bytes)?;
        }
        let held = buffers.map(|(buffer, _)| [Arc::clone(buffer)]);
        let all: Vec<&[Arc<Buffer>]> = held.iter().map(|buffer| &buffer[..]).collect();
        let set = Arc::new(BindSet::new(&self.pipeline, &all)?);
        recorder.dispatch(&self.pipeline, &set, &[rows, cols], rows.div_ceil(ROWS));
        Ok(())
    }
}
