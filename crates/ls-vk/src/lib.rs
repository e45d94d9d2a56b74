//! The MLP of a language model on a GPU, in stages, through Vulkan.
//!
//! A [`Slab`] holds frames of weights in the device's memory, or in memory of the host that the device
//! reads where it lies; a [`Runner`](control::Runner) hands the
//! device lists of frames, one stage after the other, and takes sums. [`SelfTest`] says what of a
//! device can be relied on, [`Limits`] what it claims, [`Report`] all of it for a page.
//!
//! It is no tensor library and no engine: it knows nothing of layers, models or files. No type of
//! the underlying bindings is part of its interface.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use ls_vk::{Buffer, Choice, Device, For, Instance, MemoryKind, Recorder, Validation};
//! use ls_vk::kernels::axpy::Axpy;
//!
//! # fn main() -> ls_vk::Result<()> {
//! let device = Device::open(&Instance::new(Validation::Off)?, &Choice::Best)?;
//! let buffer = |name| Buffer::new(&device, MemoryKind::Readback, 4 * 1000, name).map(Arc::new);
//! let (x, y) = (buffer("x")?, buffer("y")?);
//! x.write_floats(0, &[1.5; 1000])?;
//! y.write_floats(0, &[2.0; 1000])?;
//! let mut recorder = Recorder::new(&device, For::Compute, "example")?;
//! Axpy::new(&device)?.record(&mut recorder, 1000, 2.0, &x, &y)?;
//! recorder.finish()?.run(Duration::from_secs(1))?;
//! assert_eq!(y.read_floats(0, 1)?, [5.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - Nothing is submitted to a device that was lost; every later call says so.
//! - What the device uses is alive until a fence or semaphore says that it is done.
//! - Every wait is bounded, the host's and the kernels'.
//! - A frame that is leased is not written.

pub mod control;
pub mod format;
pub mod kernels;
pub mod measure;
pub mod twin;

mod buffer;
mod debug;
mod device;
mod error;
mod import;
mod instance;
mod limits;
mod memory;
mod pipeline;
mod recorder;
mod report;
mod selftest;
mod slab;

pub use buffer::Buffer;
pub use debug::Messages;
pub use device::Device;
pub use error::{Code, Result, VkError};
pub use instance::{Choice, DeviceInfo, DeviceKind, Instance, Validation};
pub use limits::Limits;
pub use memory::MemoryKind;
pub use pipeline::{BindSet, Pipeline};
pub use recorder::{Commands, For, Pending, Recorder};
pub use report::{DeviceReport, Findings, Report};
pub use selftest::SelfTest;
pub use slab::{FrameLease, FrameWriter, Slab, SlabKind};
