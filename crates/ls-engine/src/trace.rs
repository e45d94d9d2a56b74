//! Traces: what enters the MLPs of a model, recorded for whoever trains on it.
//!
//! A `.lstrace` holds, for some tokens of a text and for every layer, the residual stream between the
//! layer's attention and its MLP. Nothing else is needed: after the norm it is what the MLP sees, so that
//! every neuron's value follows from it and the weights; and a stage of refinement before layer l sees the
//! residual stream that enters MLP l − 1 plus the outputs of some neurons of that MLP, which follow from
//! the trace of layer l − 1 in the same way.
//!
//! The file is bounded: of a long text, tokens are sampled evenly. Values are bf16: 8 bits of each suffice
//! to train on, and the residual streams themselves are computed as floats.
//!
//! [`record`] makes one, [`Trace`] reads it. All numbers are little-endian:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | magic: `LSTRACE`, 0 |
//! | 8 | u32 | version: 1. A reader refuses every other |
//! | 12 | u32 | flags: features that a reader must know. None exist; a reader refuses any |
//! | 16 | u64 | [checksum](ls_model::pack::Pack::checksum) of the pack |
//! | 24 | u64 | XXH3-64 of the windows: for each its length as u64, and its tokens as u32 |
//! | 32 | u64 | seed that the tokens were sampled with |
//! | 40 | u64 | tokens of all windows, at most 2³² − 1 |
//! | 48 | u64 | sampled tokens, n, at least 1 |
//! | 56 | u32 | values of a residual stream, d_model |
//! | 60 | u32 | layers |
//! | 64 | u32 × n | sampled tokens, ascending, counted over all windows |
//! | 64 + 4 n | u64 | XXH3-64 of all before |
//! | 72 + 4 n | for each layer | n × d_model × bf16, then the XXH3-64 of these bytes with the layer as seed |
//!
//! While it is recorded, `NAME.part` has the layers so far, and `NAME.resume` what the computation needs to
//! go on: how far it has come, and the residual streams of all tokens as floats (the trace has them
//! rounded, and only those of some tokens). That is as large as `n_tokens · d_model` floats, so it is not
//! written after each layer, but when recording is interrupted, and otherwise so seldom that it takes no
//! more than a twentieth of the time. Both are replaced and renamed whole.

mod checkpoint;
mod error;
mod header;
mod read;
mod record;
mod write;

pub use error::TraceError;
pub use header::TraceInfo;
pub use read::{Trace, TraceLayer};
pub use record::{RecordOptions, RecordProgress, Recorded, cut_into_windows, record};
