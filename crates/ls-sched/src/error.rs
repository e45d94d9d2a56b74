//! What can be wrong with a set-up, an event or bytes.

use crate::Chunk;

/// Errors of making a controller, of events that cannot have happened, and of reading bytes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedError {
    /// A setting that makes no sense.
    #[error("{what} is {found}; expected {expected}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What was given.
        found: f64,
        /// What there may be, in words.
        expected: &'static str,
    },
    /// The memory does not hold what must be there at once.
    #[error("a budget of {found} frames; at least {least} are needed at once")]
    Budget {
        /// Frames of the budget.
        found: u64,
        /// The fewest that will do.
        least: u64,
    },
    /// A layer that does not exist.
    #[error("layer {layer} of {n_layers}")]
    Layer {
        /// What was named.
        layer: u32,
        /// How many there are.
        n_layers: u32,
    },
    /// A chunk that does not exist.
    #[error("chunk {} of layer {} does not exist", .0.index, .0.layer)]
    NoChunk(Chunk),
    /// As many scores as chunks are needed.
    #[error("{found} scores for layer {layer}, which has {expected} chunks")]
    Scores {
        /// The layer.
        layer: u32,
        /// What was given.
        found: usize,
        /// Chunks of the layer.
        expected: usize,
    },
    /// An event that does not follow from what went before.
    #[error("{event} cannot happen now: {why}")]
    Order {
        /// Which event.
        event: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The bytes do not begin as they should.
    #[error("not a {what}: the first bytes are {found:02x?}")]
    Magic {
        /// What was expected.
        what: &'static str,
        /// The first bytes.
        found: [u8; 4],
    },
    /// Written by another version.
    #[error("version {found} of the format; this program reads {expected}")]
    Version {
        /// What the bytes say.
        found: u32,
        /// What can be read.
        expected: u32,
    },
    /// The bytes end early.
    #[error("the bytes end within {what}: {expected} are needed, {found} are there")]
    Truncated {
        /// The part that is cut.
        what: &'static str,
        /// Bytes that it has.
        expected: u64,
        /// Bytes that are left.
        found: u64,
    },
    /// Bytes follow after the end.
    #[error("{n} bytes follow after the end")]
    Trailing {
        /// How many.
        n: usize,
    },
    /// The bytes are not those that were written.
    #[error("checksum {found:#018x}; the bytes say {expected:#018x}")]
    Checksum {
        /// What the bytes say.
        expected: u64,
        /// What they have.
        found: u64,
    },
}

/// An error unless `found` is within `range`; not a number is never.
pub(crate) fn within(
    what: &'static str,
    found: f64,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<(), SchedError> {
    if range.contains(&found) { Ok(()) } else { Err(SchedError::Setting { what, found, expected }) }
}
