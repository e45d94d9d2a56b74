//! What the controller is told.

use crate::{Chunk, StageId};

/// Something happened.
///
/// Reads are reported by chunk: each chunk of a submitted read ends in exactly one of `Arrived`,
/// `ReadFailed`, `Cancelled` and `Refused`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A pass through all layers begins.
    TokenBegun,
    /// All before the MLP of this layer is computed.
    LayerEntered {
        /// The next one.
        layer: u32,
    },
    /// The chunks of a layer were ranked. Scores that come too late are ignored.
    Scores {
        /// The layer.
        layer: u32,
        /// Predicted importance of each of its chunks: of the larger the better, zero for none;
        /// what is not a number, or negative, counts as zero.
        scores: &'a [f32],
    },
    /// What [`Command::Rank`](crate::Command::Rank) asked for cannot be had: the layer is chosen
    /// by what was used before.
    RankFailed {
        /// The layer.
        layer: u32,
    },
    /// A stage was computed. Its chunks are not looked at any more.
    StageDone {
        /// Which one.
        stage: StageId,
    },
    /// A chunk was read.
    Arrived(Chunk),
    /// A chunk cannot be read.
    ReadFailed(Chunk),
    /// A read was taken back before it began.
    Cancelled(Chunk),
    /// There was no frame for a chunk that was to be read. Nothing more is submitted until a
    /// frame is free.
    Refused(Chunk),
    /// After `Refused`: there may be a frame now.
    FrameFreed,
    /// A chunk is in memory that was not read from here. Only between tokens.
    Found(Chunk),
    /// A chunk that was kept is gone though it was not evicted from here.
    Gone(Chunk),
    /// There is more or less memory than before. What is in use stays until it is let go.
    BudgetChanged {
        /// Bytes for frames.
        bytes: u64,
    },
    /// The caller gives the token up. Stages that run are to be reported all the same.
    TokenAbandoned,
    /// Nothing but that time went by.
    Time,
}

impl Event<'_> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::TokenBegun => "TokenBegun",
            Self::LayerEntered { .. } => "LayerEntered",
            Self::Scores { .. } => "Scores",
            Self::RankFailed { .. } => "RankFailed",
            Self::StageDone { .. } => "StageDone",
            Self::Arrived(_) => "Arrived",
            Self::ReadFailed(_) => "ReadFailed",
            Self::Cancelled(_) => "Cancelled",
            Self::Refused(_) => "Refused",
            Self::FrameFreed => "FrameFreed",
            Self::Found(_) => "Found",
            Self::Gone(_) => "Gone",
            Self::BudgetChanged { .. } => "BudgetChanged",
            Self::TokenAbandoned => "TokenAbandoned",
            Self::Time => "Time",
        }
    }
}
