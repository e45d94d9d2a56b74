//! The kernels: what each binds, what it is specialised for, and how much work it is given.
//!
//! Each stands beside its shader (`shaders/<name>.comp`) and its twin (`twin/<name>.rs`).

pub mod axpy;
pub mod copy;
pub mod mlp;
pub mod project;
pub mod rms_norm;
pub(crate) mod shaders;
