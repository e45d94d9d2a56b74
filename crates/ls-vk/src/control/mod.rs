//! Running stages: a queue of them, and three ways to hand them to the device.
//!
//! A *pass* is one input and the stages that add to its output. Stages wait in a queue of the host's
//! until the device has few enough; there they can be cancelled or put in another order. What the
//! device has been given it finishes.

mod backend;
mod blocking;
mod memory;
mod persistent;
mod runner;
mod staged;

pub use backend::Mode;
pub use memory::encode_input;
pub use runner::Runner;

use crate::error::{Result, VkError};
use crate::kernels::mlp::{MAX_NEURONS, MlpShape, Tuning, Variant};
use crate::memory::MemoryKind;
use crate::slab::Slab;

/// What a stage computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Whole frames and the number of neurons in each, which is at most `per_frame`.
    Frames {
        /// Neurons of a full frame.
        per_frame: u32,
        /// Frame and its neurons.
        frames: Vec<(u32, u32)>,
    },
    /// Single neurons: frame, and index in it.
    Neurons(Vec<(u32, u32)>),
}

impl Work {
    /// Neurons that it computes.
    pub fn n_neurons(&self) -> u64 {
        match self {
            Self::Frames { frames, .. } => frames.iter().map(|(_, n)| u64::from(*n)).sum(),
            Self::Neurons(neurons) => neurons.len() as u64,
        }
    }

    fn per_entry(&self) -> u32 {
        match self {
            Self::Frames { per_frame, .. } => *per_frame,
            Self::Neurons(_) => 1,
        }
    }

    fn entries(&self) -> &[(u32, u32)] {
        match self {
            Self::Frames { frames, .. } => frames,
            Self::Neurons(neurons) => neurons,
        }
    }

    /// Writes the entries as kernels read them, and fails unless all of it lies in the slab's frames.
    /// One pass: lists have thousands of entries, and the device waits for them.
    fn encode(&self, slab: &Slab, shape: &MlpShape, to: &mut Vec<u32>) -> Result<()> {
        let shape_error = |what: String| Err(VkError::Shape { what });
        let (per, neurons) = (self.per_entry(), matches!(self, Self::Neurons(_)));
        if per == 0 || per as usize > MAX_NEURONS {
            return shape_error(format!(
                "{per} neurons of a frame: 1 to {MAX_NEURONS} are possible"
            ));
        }
        to.clear();
        let (mut last_frame, mut most, mut least) = (0, 0, u32::MAX);
        to.extend(self.entries().iter().map(|(frame, n)| {
            last_frame = last_frame.max(*frame);
            most = most.max(*n);
            least = least.min(*n);
            frame << 10 | (n & 1023)
        }));
        if to.is_empty() {
            return Ok(());
        }
        let most = if neurons { most.saturating_add(1) } else { most };
        if last_frame >= slab.n_frames() {
            return Err(VkError::Frame { frame: last_frame, state: "outside of the slab" });
        }
        if most as usize > MAX_NEURONS || (!neurons && (least == 0 || most > per)) {
            return shape_error(format!("{least} to {most} neurons of a frame, which has {per}"));
        }
        let bytes = shape.bytes_for(most as usize);
        if bytes > slab.frame_bytes() as usize {
            let frame = slab.frame_bytes();
            return shape_error(format!("{most} neurons are {bytes} bytes, a frame is {frame}"));
        }
        Ok(())
    }
}

/// How to run an MLP.
#[derive(Clone, Debug, Default)]
pub struct RunnerOptions {
    /// The way to hand stages to the device; blocking unless given.
    pub mode: Option<Mode>,
    /// The way to compute; the best that the device has unless given.
    pub variant: Option<Variant>,
    /// How the kernel is laid out.
    pub tuning: Tuning,
    /// Entries that a stage may have; 4096 unless given.
    pub max_entries: Option<u32>,
    /// Stages that the device is given at once; 2 unless given, at most 4.
    pub depth: Option<u32>,
    /// How long a persistent dispatch spins without a stage.
    pub spins: Option<u32>,
    /// Stages of a persistent dispatch.
    pub max_stages: Option<u32>,
    /// Memory that results and completions are written to: readback memory, or mapped device
    /// memory where a running dispatch's writes to the host's memory are not seen.
    pub completion: Option<MemoryKind>,
}

/// Names a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);
