//! Decides.

mod bytes;
mod choose;
mod command;
mod config;
mod controller;
mod costs;
mod curve;
mod error;
mod event;
mod frames;
mod interval;
mod layout;
mod plan;
mod retention;
pub mod sim;
mod solve;
mod stats;

pub use choose::{Chooser, Place, Price};
pub use command::{Basis, Cause, Command, Read, ReadId, Stage, StageId};
pub use config::{Config, Fidelity, Keep, Mode, Policy, UnknownPolicy};
pub use controller::Controller;
pub use curve::Curve;
pub use error::SchedError;
pub use event::Event;
pub use interval::{STEPS, Table};
pub use layout::{Chunk, Layer, Layout, MAX_CHUNKS};
pub use retention::Retention;
pub use solve::{Profile, solve};
pub use stats::Stats;
