//! The MLP of a language model on a GPU, in stages, through Vulkan.
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

pub mod control;
pub mod format;
pub mod kernels;
pub mod measure;
pub mod twin;

mod buffer;
mod debug;
mod device;
mod error;
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
