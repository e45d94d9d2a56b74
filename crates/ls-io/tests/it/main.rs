//! Whole streams: against a model of the file, with faults, and at the edges.

mod buf;
mod edges;
mod faults;
mod model;
mod rig;
