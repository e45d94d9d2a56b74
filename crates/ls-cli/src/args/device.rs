//! Where MLPs are computed.

use clap::{Args, ValueEnum};
use ls_engine::{Control, VulkanOptions};

use crate::output::UsageError;
use crate::{folder, size};

/// Where MLPs are computed, and how a GPU is used.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// Where the MLPs are computed; all else is computed on the processor. A GPU takes a .lspack
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: Device,
    /// Which GPU, by a part of its name [default: LEANSTREAM_VK_DEVICE, or the best one that does not
    /// compute on the processor]
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Most bytes of weights that the GPU holds [default: as many as it has memory for]
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    pub gpu_memory: Option<u64>,
    /// How work is handed to the GPU [default: the best way that passed the self-test]
    #[arg(long, value_name = "WAY")]
    pub gpu_control: Option<GpuControl>,
}

/// Where MLPs are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// On the processor
    Cpu,
    /// On a GPU, through Vulkan
    Vulkan,
}

/// How work is handed to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GpuControl {
    /// A kernel that stays and watches for work
    Persistent,
    /// Recorded work that waits for a signal
    Staged,
    /// Work that is submitted when it is there
    Blocking,
}

impl DeviceArgs {
    /// As the engine has it. `mode` is what else was asked for, if that is only done on the processor.
    ///
    /// # Errors
    ///
    /// If flags do not go together.
    pub fn engine(&self, cpu_only: Option<&str>) -> Result<ls_engine::Device, UsageError> {
        let flags = [
            ("--gpu", self.gpu.is_some()),
            ("--gpu-memory", self.gpu_memory.is_some()),
            ("--gpu-control", self.gpu_control.is_some()),
        ];
        if self.device == Device::Cpu {
            return match flags.iter().find(|(_, is_given)| *is_given) {
                Some((flag, _)) => Err(UsageError(format!("{flag} goes with --device vulkan"))),
                None => Ok(ls_engine::Device::Cpu),
            };
        }
        if let Some(mode) = cpu_only {
            let message =
                format!("{mode} is computed on the processor only; leave --device vulkan out");
            return Err(UsageError(message));
        }
        Ok(ls_engine::Device::Vulkan(VulkanOptions {
            name: self.gpu.clone().or_else(named_gpu),
            cache: gpu_cache(),
            memory: self.gpu_memory,
            control: self.gpu_control.map(|way| match way {
                GpuControl::Persistent => Control::Persistent,
                GpuControl::Staged => Control::Staged,
                GpuControl::Blocking => Control::Blocking,
            }),
            ..VulkanOptions::default()
        }))
    }
}

/// The device that the environment names.
pub fn named_gpu() -> Option<String> {
    std::env::var("LEANSTREAM_VK_DEVICE").ok().filter(|name| !name.is_empty())
}

/// Where results of self-tests are kept.
pub fn gpu_cache() -> Option<std::path::PathBuf> {
    folder::cache().map(|folder| folder.join("vulkan"))
}
