//! Tests on a real driver, with validation: lavapipe, which computes on the processor, unless
//! `LEANSTREAM_VK_DEVICE` names another device. A missing driver fails them.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod control;
mod device;
mod import;
mod kernels;
mod mlp;
mod selftest;
mod slab;

use std::sync::Arc;
use std::time::Duration;

use ls_vk::{Choice, Device, Instance, Limits, Validation};

/// Waits longer than any test's work takes, on a busy machine too.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// An instance whose messages fail the test.
#[derive(Debug)]
pub struct Checked {
    /// The device.
    pub device: Arc<Device>,
}

impl Checked {
    /// With all that the device has.
    pub fn open() -> Self {
        Self::narrowed(|limits| limits.clone())
    }

    /// With less.
    pub fn narrowed(narrow: impl FnOnce(&Limits) -> Limits) -> Self {
        let help = "these tests need a Vulkan driver and the validation layers; on Debian: \
                    apt-get install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers";
        let unchecked = std::env::var_os("LEANSTREAM_VK_UNCHECKED").is_some();
        let validation = if unchecked { Validation::Off } else { Validation::On };
        let instance = Instance::new(validation).unwrap_or_else(|e| panic!("{e}\n{help}"));
        let choice = match std::env::var("LEANSTREAM_VK_DEVICE") {
            Ok(name) => Choice::Named(name),
            Err(_) => Choice::Cpu,
        };
        let device = Device::open_narrowed(&instance, &choice, narrow);
        Self { device: device.unwrap_or_else(|e| panic!("{e}\n{help}")) }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let messages = self.device.instance().messages().take();
        if !std::thread::panicking() {
            assert!(messages.is_empty(), "validation: {}", messages.join("\n"));
        }
    }
}
