//! The crate as its users see it.

#![allow(clippy::unwrap_used)]

mod behaviour;
mod model;
mod sim;
mod world;
