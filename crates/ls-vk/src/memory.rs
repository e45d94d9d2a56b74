//! Kinds of memory, and what each is good for.

use ash::vk;

use crate::error::{Result, VkError};
use crate::limits::Limits;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device's own; the host need not see it.
    Device,
    /// The device's own, mapped by the host. On a discrete card the host's writes go over the bus,
    /// joined to long ones, and its reads are very slow.
    Mapped,
    /// The host's; the device reads it over the bus.
    Upload,
    /// The host's, cached: the device writes it, the host reads it.
    Readback,
}

impl MemoryKind {
    /// Its name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Mapped => "mapped device",
            Self::Upload => "upload",
            Self::Readback => "readback",
        }
    }

    /// Whether the host sees it.
    pub fn is_mapped(self) -> bool {
        self != Self::Device
    }

    /// Fails where the device has no such memory.
    pub(crate) fn check(self, limits: &Limits, device: &str) -> Result<()> {
        if self == Self::Mapped && !limits.mapped_device_memory {
            let what = "device memory that the host can map";
            return Err(VkError::Missing { device: device.into(), what });
        }
        Ok(())
    }

    pub(crate) fn allocation(self) -> vk_mem::AllocationCreateInfo {
        use vk::MemoryPropertyFlags as M;
        let (required, preferred) = match self {
            Self::Device => (M::empty(), M::DEVICE_LOCAL),
            Self::Mapped => (M::DEVICE_LOCAL | M::HOST_VISIBLE | M::HOST_COHERENT, M::empty()),
            Self::Upload => (M::HOST_VISIBLE | M::HOST_COHERENT, M::empty()),
            Self::Readback => (M::HOST_VISIBLE | M::HOST_COHERENT, M::HOST_CACHED),
        };
        let mut flags = vk_mem::AllocationCreateFlags::empty();
        if self.is_mapped() {
            flags |= vk_mem::AllocationCreateFlags::MAPPED;
        }
        vk_mem::AllocationCreateInfo {
            flags,
            required_flags: required,
            preferred_flags: preferred,
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_needs_the_capability() {
        assert!(MemoryKind::Mapped.check(&Limits::least(), "x").is_err());
        assert!(MemoryKind::Mapped.check(&Limits::orin(), "x").is_ok());
        assert!(MemoryKind::Upload.check(&Limits::least(), "x").is_ok());
        assert!(!MemoryKind::Device.is_mapped());
    }
}
