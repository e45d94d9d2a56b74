//! What the controller wants done.

use crate::Chunk;

/// A read that was submitted; valid until all of its chunks are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub(crate) u32);

/// A stage that runs; valid until it is reported as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId {
    pub(crate) lane: u32,
    pub(crate) serial: u32,
}

/// Why a token cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A read failed, the repetitions included.
    Failed,
    /// A read took longer than it may.
    Late,
}

/// From what a layer is to be ranked: what enters the MLP of `layer`, plus what the first
/// `stages` stages of it add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The layer whose MLP is entered: the one before the ranked one, or that one itself.
    pub layer: u32,
    /// Stages that are done of it, as counted by [`Stage::n_done`].
    pub stages: u32,
}

/// Something to do. Commands are to be carried out in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// Rank the chunks of `layer`, and report [`Event::Scores`](crate::Event::Scores). Of each
    /// layer one ranking is asked for at a time.
    Rank {
        /// The layer.
        layer: u32,
        /// From what.
        basis: Basis,
    },
    /// Read the chunks of [`Controller::read`](crate::Controller::read).
    Submit {
        /// Which read.
        read: ReadId,
    },
    /// The priority of a chunk that was submitted, and may still wait, is another one now.
    Reprioritise {
        /// The chunk.
        chunk: Chunk,
        /// Less is sooner.
        priority: u64,
    },
    /// Take a read back, if it did not begin. Reported as
    /// [`Event::Cancelled`](crate::Event::Cancelled), or as if nothing had been asked.
    Cancel {
        /// The chunk.
        chunk: Chunk,
    },
    /// Compute the chunks of [`Controller::stage`](crate::Controller::stage), which are in memory
    /// and stay there until the stage is done.
    RunStage {
        /// Which stage.
        stage: StageId,
    },
    /// What the chunks of a layer are worth has changed:
    /// [`Controller::value`](crate::Controller::value). Of interest to caches that evict by
    /// themselves.
    Retain {
        /// The layer.
        layer: u32,
    },
    /// The frame of a chunk is needed.
    Evict {
        /// The chunk.
        chunk: Chunk,
    },
    /// A chunk that was chosen will not be computed: its read comes too late, or never.
    Drop {
        /// The chunk.
        chunk: Chunk,
        /// Its share of the summed scores of what was chosen.
        share: f32,
    },
    /// Everything of the layer is computed.
    LayerDone {
        /// The layer.
        layer: u32,
    },
    /// The token cannot go on: a chunk cannot be had, and may not be dropped. The next event is to
    /// be a new token's, after the stages that still run.
    Abort {
        /// The chunk.
        chunk: Chunk,
        /// Why.
        cause: Cause,
    },
    /// What things cost is not what the table was solved for:
    /// [`solve`](crate::solve) it anew from [`Controller::profile`](crate::Controller::profile),
    /// whenever there is time, and [set](crate::Controller::set_table) it.
    Solve,
}

/// Chunks to be read as one stretch of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The layer.
    pub layer: u32,
    /// The first chunk of the stretch.
    pub first: u32,
    /// Bit `i`: chunk `first + i` is wanted. Those between wanted ones are read through.
    pub wanted: u64,
    /// Less is sooner.
    pub priority: u64,
}

impl Read {
    /// The chunks that are wanted.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        let Self { layer, first, wanted, .. } = *self;
        ones(wanted).map(move |bit| Chunk { layer, index: first + bit })
    }

    /// Chunks of the stretch, those that are read through included.
    #[must_use]
    pub fn len(&self) -> u32 {
        64 - self.wanted.leading_zeros()
    }

    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted == 0
    }
}

/// Chunks to be computed together.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// The layer.
    pub layer: u32,
    /// The stages of the layer that were done when this one was begun.
    pub n_done: u32,
    /// Indices of the chunks: in sparse mode the best first, in exact mode a segment in order.
    pub chunks: &'a [u16],
}

/// The positions of the bits that are set.
pub(crate) fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
