//! What can go wrong, as far as a caller can act on it.

use ash::vk;

/// The result of everything that speaks to a driver.
pub type Result<T> = std::result::Result<T, VkError>;

/// A driver's result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", vk::Result::from_raw(self.0))
    }
}

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VkError {
    /// The Vulkan loader is not installed.
    #[error(
        "the Vulkan loader is missing ({why}); on Debian: apt-get install libvulkan1, and a driver \
         such as mesa-vulkan-drivers"
    )]
    LoaderMissing {
        /// What opening the library said.
        why: String,
    },
    /// The loader works and finds no driver.
    #[error(
        "no Vulkan driver is installed, or none that works; VK_DRIVER_FILES can name a driver's JSON \
         file, and mesa-vulkan-drivers has one for processors"
    )]
    NoDriver,
    /// There is no device of the kind that was asked for.
    #[error("no Vulkan device that is {asked}; there are: {found}")]
    NoDevice {
        /// What was asked for.
        asked: String,
        /// The devices' names.
        found: String,
    },
    /// The device lacks something that is not optional.
    #[error("{device} lacks {what}")]
    Missing {
        /// The device's name, or "the loader".
        device: String,
        /// What is missing.
        what: &'static str,
    },
    /// More than the device can do.
    #[error("{what}: {needed} needed, the limit is {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// Memory of a kind that could not be had.
    #[error("no {bytes} bytes of {kind} memory: {code}")]
    OutOfMemory {
        /// Asked for.
        bytes: u64,
        /// The kind of memory.
        kind: &'static str,
        /// What the driver said.
        code: Code,
    },
    /// A call failed in a way that has no variant of its own.
    #[error("{call}: {code}")]
    Call {
        /// The function of the driver.
        call: &'static str,
        /// What it said.
        code: Code,
    },
    /// The device is gone: nothing more is submitted to it. Whoever has another way to compute
    /// takes it.
    #[error("the device was lost in {during}")]
    DeviceLost {
        /// What ran then.
        during: String,
    },
    /// Something took longer than the caller wants to wait. The device may still be at it.
    #[error("{what} took longer than {millis} ms")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        millis: u64,
    },
    /// Workgroups waited for each other in vain: the device does not run all of them at once.
    #[error("workgroups lost each other in stage {stage}")]
    Stalled {
        /// The number of the stage.
        stage: u32,
    },
    /// A shape that cannot be.
    #[error("{what}")]
    Shape {
        /// What does not fit.
        what: String,
    },
    /// Bytes outside of a buffer.
    #[error("bytes {at}..{end} of a buffer of {len}")]
    OutOfRange {
        /// First byte.
        at: u64,
        /// Behind the last one.
        end: u64,
        /// Bytes of the buffer.
        len: u64,
    },
    /// Memory of the host that begins or ends where a device cannot import it.
    #[error(
        "{bytes} bytes of host memory at {start:#x}: the device imports multiples of {multiple}"
    )]
    Unaligned {
        /// Where it begins.
        start: u64,
        /// How many bytes there are.
        bytes: u64,
        /// What begin and length have to be multiples of.
        multiple: u64,
    },
    /// The driver does not import memory of the host that should be good for it.
    #[error("the driver does not import {bytes} bytes of host memory: {code}")]
    Import {
        /// How many bytes.
        bytes: u64,
        /// The driver's answer.
        code: Code,
    },
    /// A buffer that the host cannot see was to be read or written.
    #[error("a buffer in {kind} memory cannot be seen by the host")]
    NotMapped {
        /// The kind of memory.
        kind: &'static str,
    },
    /// A frame that is in use, or that holds nothing.
    #[error("frame {frame} is {state}")]
    Frame {
        /// Its index.
        frame: u32,
        /// What it is in the way of.
        state: &'static str,
    },
    /// A ticket that is not (or no longer) known.
    #[error("stage {ticket} is unknown: never queued, cancelled, or its result was taken")]
    UnknownStage {
        /// The ticket's number.
        ticket: u64,
    },
    /// A kernel computes something else than its twin.
    #[error("kernel {kernel} on {device}: error {error:.2e} where {bound:.2e} is the bound")]
    WrongAnswer {
        /// Name and variant.
        kernel: String,
        /// The device's name.
        device: String,
        /// Largest error, relative to the magnitude of the sum.
        error: f64,
        /// What is allowed.
        bound: f64,
    },
}

/// Turns a driver's result into ours.
pub(crate) trait Checked<T> {
    fn during(self, call: &'static str) -> Result<T>;
}

impl<T> Checked<T> for ash::prelude::VkResult<T> {
    fn during(self, call: &'static str) -> Result<T> {
        self.map_err(|code| match code {
            vk::Result::ERROR_DEVICE_LOST => VkError::DeviceLost { during: call.into() },
            code => VkError::Call { call, code: Code(code.as_raw()) },
        })
    }
}
