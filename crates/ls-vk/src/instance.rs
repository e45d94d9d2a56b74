//! The loader, its drivers, and the devices that they have.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::ffi::CStr;
use std::sync::Arc;

use ash::{ext, vk};

use crate::debug::{self, Messages};
use crate::error::{Checked, Result, VkError};

/// Whether calls are checked by the validation layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// They are not loaded.
    #[default]
    Off,
    /// They are loaded, and it is an error if they are not installed. Messages are collected in
    /// [`Instance::messages`].
    On,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A graphics card with memory of its own.
    Discrete,
    /// Shares memory with the processor.
    Integrated,
    /// A share of a device, in a virtual machine.
    Virtual,
    /// A program that runs on the processor.
    Cpu,
    /// Something else.
    Other,
}

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place in the driver's order.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Major and minor version of Vulkan.
    pub api: (u32, u32),
    /// Version of the driver, as the vendor packs it.
    pub driver: u32,
    /// The vendor's number.
    pub vendor: u32,
    /// Identifies device and driver: pipelines and self-tests hold for the same one.
    pub uuid: [u8; 16],
}

/// Which device to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A discrete one, else an integrated one, else a virtual one; never one that computes on the
    /// processor.
    #[default]
    Best,
    /// The one at this index of [`Instance::devices`].
    Index(usize),
    /// The first whose name contains this text, upper or lower case.
    Named(String),
    /// One that computes on the processor: for tests.
    Cpu,
}

impl Choice {
    /// The place of the device that it means, if that is there.
    pub fn among(&self, devices: &[DeviceInfo]) -> Option<usize> {
        pick(devices, self)
    }
}

/// The loaded library and its connection to drivers.
pub struct Instance {
    pub(crate) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Messages,
    pub(crate) validation: Validation,
    // Last: the library stays loaded until all else is destroyed.
    _entry: ash::Entry,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("validation", &self.validation).finish_non_exhaustive()
    }
}

const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    /// Loads the loader and asks it for its drivers.
    ///
    /// # Errors
    ///
    /// [`VkError::LoaderMissing`], [`VkError::NoDriver`], or a missing validation layer.
    pub fn new(validation: Validation) -> Result<Arc<Self>> {
        // SAFETY: the system's loader is trusted as other system libraries are.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|error| VkError::LoaderMissing { why: error.to_string() })?;
        let messages = Messages::default();
        let mut debug_info = debug::create_info(&messages);
        let app = vk::ApplicationInfo::default()
            .application_name(c"leanstream")
            .api_version(vk::API_VERSION_1_3);
        let (mut layers, mut extensions) = (vec![], vec![]);
        let mut info = vk::InstanceCreateInfo::default().application_info(&app);
        if validation == Validation::On {
            need_layer(&entry)?;
            layers.push(LAYER.as_ptr());
            extensions.push(ext::debug_utils::NAME.as_ptr());
            info = info.push_next(&mut debug_info);
        }
        info = info.enabled_layer_names(&layers).enabled_extension_names(&extensions);
        // SAFETY: `info` and what it points to live until the call returns.
        let raw = match unsafe { entry.create_instance(&info, None) } {
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return Err(VkError::NoDriver),
            other => other.during("vkCreateInstance")?,
        };
        let messenger = (validation == Validation::On).then(|| {
            let functions = ext::debug_utils::Instance::new(&entry, &raw);
            let info = debug::create_info(&messages);
            // SAFETY: the extension is enabled; `messages` outlives the messenger.
            let made = unsafe { functions.create_debug_utils_messenger(&info, None) };
            made.map(|messenger| (functions, messenger))
        });
        let messenger = messenger.transpose().during("vkCreateDebugUtilsMessengerEXT")?;
        Ok(Arc::new(Self { raw, messenger, messages, validation, _entry: entry }))
    }

    /// What the validation layers had to say.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    pub(crate) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>> {
        // SAFETY: the instance is alive.
        match unsafe { self.raw.enumerate_physical_devices() } {
            Err(vk::Result::ERROR_INITIALIZATION_FAILED) => Err(VkError::NoDriver),
            other => other.during("vkEnumeratePhysicalDevices"),
        }
    }

    /// All devices, in the drivers' order.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let devices = self.physical_devices()?;
        Ok(devices.into_iter().enumerate().map(|(i, device)| self.info(i, device)).collect())
    }

    fn info(&self, index: usize, device: vk::PhysicalDevice) -> DeviceInfo {
        // SAFETY: the handle comes from this instance.
        let p = unsafe { self.raw.get_physical_device_properties(device) };
        let name = p.device_name_as_c_str().unwrap_or(c"unknown").to_string_lossy();
        let kind = match p.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        };
        let api = (vk::api_version_major(p.api_version), vk::api_version_minor(p.api_version));
        DeviceInfo {
            index,
            name: name.into_owned(),
            kind,
            api,
            driver: p.driver_version,
            vendor: p.vendor_id,
            uuid: p.pipeline_cache_uuid,
        }
    }

    /// The device that `choice` means.
    pub(crate) fn choose(&self, choice: &Choice) -> Result<(vk::PhysicalDevice, DeviceInfo)> {
        let (handles, infos) = (self.physical_devices()?, self.devices()?);
        if infos.is_empty() {
            return Err(VkError::NoDriver);
        }
        let index = pick(&infos, choice).ok_or_else(|| VkError::NoDevice {
            asked: match choice {
                Choice::Best => "no processor; ask for one by name to use it".into(),
                Choice::Index(i) => format!("number {i}"),
                Choice::Named(name) => format!("called {name}"),
                Choice::Cpu => "a processor".into(),
            },
            found: infos.iter().map(|info| info.name.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        Ok((handles[index], infos[index].clone()))
    }
}

fn need_layer(entry: &ash::Entry) -> Result<()> {
    // SAFETY: the loader is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() };
    let layers = layers.during("vkEnumerateInstanceLayerProperties")?;
    if layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(LAYER)) {
        return Ok(());
    }
    let what = "validation layers (Debian: apt-get install vulkan-validationlayers)";
    Err(VkError::Missing { device: "the loader".into(), what })
}

fn pick(devices: &[DeviceInfo], choice: &Choice) -> Option<usize> {
    let first = |kind| devices.iter().position(|device| device.kind == kind);
    match choice {
        Choice::Best => [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Virtual]
            .into_iter()
            .find_map(first),
        Choice::Index(index) => (*index < devices.len()).then_some(*index),
        Choice::Named(name) => {
            let name = name.to_lowercase();
            devices.iter().position(|device| device.name.to_lowercase().contains(&name))
        }
        Choice::Cpu => first(DeviceKind::Cpu),
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance, so none is left; the messenger goes before it.
        unsafe {
            if let Some((functions, messenger)) = self.messenger.take() {
                functions.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: DeviceKind) -> DeviceInfo {
        let name = name.to_owned();
        DeviceInfo { index: 0, name, kind, api: (1, 3), driver: 1, vendor: 2, uuid: [0; 16] }
    }

    #[test]
    fn a_processor_is_only_chosen_when_asked_for() {
        let cpu = device("llvmpipe (LLVM 15)", DeviceKind::Cpu);
        let both = [cpu.clone(), device("Adreno 750", DeviceKind::Integrated)];
        assert_eq!(pick(&both, &Choice::Best), Some(1));
        assert_eq!(pick(&both[..1], &Choice::Best), None);
        assert_eq!(pick(&both, &Choice::Cpu), Some(0));
        assert_eq!(pick(&both, &Choice::Named("LLVMPIPE".into())), Some(0));
        assert_eq!(pick(&both, &Choice::Index(2)), None);
    }

    #[test]
    fn discrete_devices_come_first() {
        let devices = [
            device("Virtio", DeviceKind::Virtual),
            device("Iris", DeviceKind::Integrated),
            device("H200", DeviceKind::Discrete),
        ];
        assert_eq!(pick(&devices, &Choice::Best), Some(2));
        assert_eq!(pick(&devices[..2], &Choice::Best), Some(1));
    }
}
