//! Model files as a user meets them: whole, odd and damaged.

#![allow(clippy::unwrap_used)]

mod architectures;
mod damaged;
mod folders;
mod gguf_faults;
mod metadata;
mod pack_faults;
mod pack_roundtrip;
mod pack_writing;
mod packing;
mod roundtrip;
mod shards;
mod support;

/// Counts what is allocated, so that tests can say that a damaged file never asks for much.
#[global_allocator]
static ALLOCATED: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
