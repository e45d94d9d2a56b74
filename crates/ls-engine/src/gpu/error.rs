//! What can be wrong with a GPU.

use std::path::PathBuf;

/// Why a GPU does not compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The program cannot use Vulkan.
    #[error(
        "this program was built without Vulkan; build it with the feature `vulkan`, and not linked \
         statically"
    )]
    NotBuilt,
    /// Only a pack has chunks.
    #[error("{} is no pack; a GPU computes packs only, so pack it first", path.display())]
    NeedsPack {
        /// The model.
        path: PathBuf,
    },
    /// Weights of a kind that no kernel takes.
    #[error("layer {layer} cannot be computed on a GPU: {what}; leave it to the CPU")]
    Unsupported {
        /// The layer.
        layer: usize,
        /// What no kernel takes.
        what: String,
    },
    /// The device does not compute what it should.
    #[error("its self-test failed ({why})")]
    SelfTest {
        /// What did not pass.
        why: String,
    },
    /// The cache's memory was not imported.
    #[error("the driver does not import the cache's memory (injected)")]
    Import,
    /// It failed before.
    #[error("it failed before")]
    Retired,
    /// What the driver, or the crate that speaks to it, says.
    #[cfg(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl"))))]
    #[error(transparent)]
    Vulkan(#[from] ls_vk::VkError),
}

impl GpuError {
    /// Whether the device failed, so that the CPU takes over; anything else was never possible.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Self::SelfTest { .. } | Self::Retired => true,
            #[cfg(all(
                feature = "vulkan",
                not(any(target_feature = "crt-static", target_env = "musl"))
            ))]
            Self::Vulkan(error) => {
                use ls_vk::VkError as E;
                let lost = matches!(error, E::DeviceLost { .. } | E::Timeout { .. });
                lost || matches!(error, E::Stalled { .. } | E::WrongAnswer { .. })
            }
            _ => false,
        }
    }
}
