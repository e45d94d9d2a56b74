//! What can be wrong with a predictor, its training data or its bytes.

/// Errors of making, reading and training predictors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// A size that no predictor has.
    #[error("{what} is {found}; expected {expected}")]
    Size {
        /// Which size.
        what: &'static str,
        /// What was given.
        found: usize,
        /// What there may be, in words.
        expected: &'static str,
    },
    /// A part whose length does not follow from the sizes.
    #[error("{what} has length {found}; expected {expected}")]
    Length {
        /// Which part.
        what: &'static str,
        /// What was given.
        found: usize,
        /// What the sizes ask for.
        expected: usize,
    },
    /// A number that is not finite.
    #[error("{what} {index} is not a finite number")]
    NotFinite {
        /// Which kind of number.
        what: &'static str,
        /// Its place among those.
        index: usize,
    },
    /// A block of inputs that does not exist.
    #[error("hash bit {bit} reads block {block} of inputs; there are {n_blocks}")]
    Block {
        /// The bit.
        bit: usize,
        /// The block that it names.
        block: usize,
        /// How many there are.
        n_blocks: usize,
    },
    /// The data does not have what the loss asks for.
    #[error("the samples have no {what}, which the loss needs")]
    Missing {
        /// What is missing.
        what: &'static str,
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
    /// A field that has none of its values.
    #[error("{what} is {found}, which is none of its values")]
    Field {
        /// Which field.
        what: &'static str,
        /// What it holds.
        found: u32,
    },
    /// The bytes are not those that were written.
    #[error("checksum {found:#018x}; the bytes say {expected:#018x}")]
    Checksum {
        /// What the bytes say.
        expected: u64,
        /// What they have.
        found: u64,
    },
    /// A state of training that was saved under other settings.
    #[error("the saved state was trained with other settings")]
    OtherSettings,
}
