//! The three ways to hand a stage to the device.

use std::sync::Arc;

use super::RunnerOptions;
use super::blocking::Blocking;
use super::memory::Memory;
use super::persistent::Persistent;
use super::staged::Staged;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Result, VkError};
use crate::kernels::mlp::{Plan, RING};
use crate::kernels::shaders;
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::{Commands, For, Recorder};
use crate::slab::Slab;

/// A way to hand stages to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One dispatch lives over many stages and watches a mailbox.
    Persistent,
    /// Recorded stages wait in the device's queue for a semaphore that the host signals.
    Staged,
    /// Each stage is submitted and waited for with a fence.
    Blocking,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Persistent => "persistent",
            Self::Staged => "staged",
            Self::Blocking => "blocking",
        })
    }
}

#[derive(Debug)]
pub(super) enum Backend {
    Persistent(Persistent),
    Staged(Staged),
    Blocking(Blocking),
}

impl Backend {
    pub fn new(
        mode: Mode,
        slab: &Arc<Slab>,
        plan: &Plan,
        memory: &Memory,
        options: &RunnerOptions,
    ) -> Result<Self> {
        Ok(match mode {
            Mode::Persistent => Self::Persistent(Persistent::new(slab, plan, memory, options)?),
            Mode::Staged => Self::Staged(Staged::new(slab, plan, memory)?),
            Mode::Blocking => Self::Blocking(Blocking::new(slab, plan, memory)?),
        })
    }

    pub fn mode(&self) -> Mode {
        match self {
            Self::Persistent(_) => Mode::Persistent,
            Self::Staged(_) => Mode::Staged,
            Self::Blocking(_) => Mode::Blocking,
        }
    }

    pub fn launches(&self) -> u64 {
        if let Self::Persistent(p) = self { p.launches() } else { 0 }
    }

    /// Before a stage's entries are written.
    pub fn prepare(&mut self, number: u32) -> Result<()> {
        if let Self::Persistent(p) = self { p.prepare(number) } else { Ok(()) }
    }

    /// Hands a stage over whose entries are in memory.
    pub fn post(&mut self, number: u32) -> Result<()> {
        match self {
            Self::Persistent(p) => p.post(number),
            Self::Staged(s) => s.post(number),
            Self::Blocking(b) => b.post(number),
        }
    }

    /// Whether the oldest stage that was handed over, `number`, is done and its results are there.
    pub fn is_done(&mut self, memory: &mut Memory, number: u32, output: bool) -> Result<bool> {
        let done = match self {
            Self::Persistent(p) => return p.is_done(memory, number, output),
            Self::Staged(s) => s.is_done(number)?,
            Self::Blocking(b) => b.is_done(number),
        };
        if done && output && !memory.collect(number)? {
            return Err(VkError::Stalled { stage: number });
        }
        Ok(done)
    }
}

/// A stage as recorded commands, one set for each slot of the ring.
pub(super) fn record_slots(
    slab: &Slab,
    plan: &Plan,
    memory: &Memory,
    mode: Mode,
) -> Result<Vec<Commands>> {
    let device = slab.device();
    let constants = plan.constants();
    let shader = plan.variant().stage_shader();
    let stage = Arc::new(Pipeline::new(device, shader, &constants)?);
    let reduce = Arc::new(Pipeline::new(device, shaders::MLP_REDUCE, &constants)?);
    let stage_set = Arc::new(bind(&stage, slab, memory)?);
    let reduce_set = Arc::new(bind(&reduce, slab, memory)?);
    (0..RING)
        .map(|slot| {
            let mut recorder =
                Recorder::new(device, For::Compute, &format!("{mode} stage slot {slot}"))?;
            recorder
                .barrier()
                .dispatch(&stage, &stage_set, &[slot], plan.workgroups)
                .barrier()
                .dispatch(&reduce, &reduce_set, &[slot], plan.workgroups);
            recorder.finish()
        })
        .collect()
}

fn bind(pipeline: &Pipeline, slab: &Slab, memory: &Memory) -> Result<BindSet> {
    let one = |buffer: &Arc<Buffer>| [Arc::clone(buffer)];
    let (inputs, lists) = (one(&memory.inputs), one(memory.lists()));
    let (partials, results) = (one(&memory.partials), one(&memory.results));
    BindSet::new(pipeline, &[slab.buffers(), &inputs, &lists, &partials, &results])
}

/// The error for a device that is gone while it ran stages.
pub(super) fn lost(device: &Device, mode: Mode, number: u32) -> VkError {
    device.give_up();
    VkError::DeviceLost { during: format!("{mode} stage {number}") }
}
