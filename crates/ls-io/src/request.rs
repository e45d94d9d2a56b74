//! What is asked of a stream, and what comes back.

use crate::ReadError;

/// How soon a request is read: smaller is sooner; equals are read in the order of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u64);

/// One extent to read: exactly `buf.len()` bytes from `offset` on.
#[derive(Debug)]
pub struct Request<B> {
    /// The caller's name for it. While several pending requests share a tag, the latest answers to
    /// it.
    pub tag: u64,
    /// Where the bytes begin in the file.
    pub offset: u64,
    /// When it is its turn.
    pub priority: Priority,
    /// Where the bytes go; the stream owns it until it is handed back.
    pub buf: B,
}

/// A request that was read, or could not be.
#[derive(Debug)]
pub struct Completion<B> {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer, filled if the result says so; otherwise its contents mean nothing.
    pub buf: B,
    /// Whether all bytes were read.
    pub result: Result<(), ReadError>,
}
