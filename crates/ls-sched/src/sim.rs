//! Simulates tokens: the real [`Controller`](crate::Controller), with a made-up clock, disk and
//! processor.
//!
//! A [`Trace`] says what matters of each layer for each token, and what predictors think of it; a
//! [`Board`] what reading and computing cost. [`simulate`] plays the tokens and says how fast they were.
//!
//! The disk serves one read after the other, each in the time that its [curve](crate::Curve) says; reads
//! wait in a queue of the device, of its depth, and before it by priority. Computing is bound by
//! the bytes that it reads from memory.

mod board;
mod device;
mod like;
mod neurons;
mod report;
mod rng;
mod run;
mod synthetic;
mod trace;

pub use board::{Board, Host, Shape};
pub use report::Outcome;
pub use run::{Setup, simulate};
pub use synthetic::{Parts, Synthetic};
pub use trace::{Trace, TraceShape};
