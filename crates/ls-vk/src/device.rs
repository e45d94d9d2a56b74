//! An opened device: its queues, its memory, and what it can do.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, vk};

use crate::error::{Checked, Result, VkError};
use crate::import;
use crate::instance::{Choice, DeviceInfo, DeviceKind, Instance};
use crate::limits::Limits;

/// A device that is ready to compute. Everything made from it keeps it alive.
pub struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) allocator: ManuallyDrop<vk_mem::Allocator>,
    pub(crate) compute: Queue,
    pub(crate) transfer: Option<Queue>,
    debug: Option<ext::debug_utils::Device>,
    pub(crate) host_import: Option<ext::external_memory_host::Device>,
    pub(crate) physical: vk::PhysicalDevice,
    limits: Limits,
    found: Limits,
    info: DeviceInfo,
    lost: AtomicBool,
    // After the device: it needs the instance until it is destroyed.
    instance: Arc<Instance>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
    }
}

/// A queue and its family. The lock is held while something is submitted, as the interface asks.
pub(crate) struct Queue {
    pub family: u32,
    raw: Mutex<vk::Queue>,
}

impl Device {
    /// Opens the device that `choice` means, with all that it can do.
    pub fn open(instance: &Arc<Instance>, choice: &Choice) -> Result<Arc<Self>> {
        Self::open_narrowed(instance, choice, |found| found.clone())
    }

    /// Opens a device and takes capabilities away from it: `narrow` gets what was found, and what
    /// it returns is narrowed by that again, so nothing can be added.
    pub fn open_narrowed(
        instance: &Arc<Instance>,
        choice: &Choice,
        narrow: impl FnOnce(&Limits) -> Limits,
    ) -> Result<Arc<Self>> {
        let (physical, info) = instance.choose(choice)?;
        if info.api < (1, 1) {
            return Err(VkError::Missing { device: info.name, what: "Vulkan 1.1" });
        }
        let found = probe::limits(instance, physical, &info);
        let limits = found.narrowed(&narrow(&found));
        let families = Families::of(instance, physical, &limits, &info)?;
        let raw = create(instance, physical, &info, &found, &families)?;
        let mut allocator = vk_mem::AllocatorCreateInfo::new(&instance.raw, &raw, physical);
        allocator.vulkan_api_version = vk::API_VERSION_1_1;
        // SAFETY: instance and device outlive the allocator, which is dropped first.
        let allocator = match unsafe { vk_mem::Allocator::new(allocator) } {
            Ok(allocator) => allocator,
            Err(code) => {
                // SAFETY: nothing was made from the device yet.
                unsafe { raw.destroy_device(None) };
                return Err(code).during("vmaCreateAllocator");
            }
        };
        let debug = (instance.validation == crate::Validation::On)
            .then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        let host_import = (found.host_import.is_some())
            .then(|| ext::external_memory_host::Device::new(&instance.raw, &raw));
        let queue = |family| {
            // SAFETY: the device was made with a queue in each of these families.
            let queue = unsafe { raw.get_device_queue(family, 0) };
            Queue { family, raw: Mutex::new(queue) }
        };
        let (compute, transfer) = (queue(families.compute), families.transfer.map(queue));
        Ok(Arc::new(Self {
            allocator: ManuallyDrop::new(allocator),
            compute,
            transfer,
            debug,
            host_import,
            physical,
            limits,
            found,
            info,
            lost: AtomicBool::new(false),
            instance: Arc::clone(instance),
            raw,
        }))
    }

    /// What kernels and plans may rely on.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the device was found to have, before anything was taken away.
    pub fn found_limits(&self) -> &Limits {
        &self.found
    }

    /// Name, kind, versions.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The instance that it belongs to.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Whether the device was lost: nothing is submitted any more.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Treats the device as lost from now on: for tests of what happens then, and for a caller
    /// that no longer trusts it.
    pub fn give_up(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Keeps in mind if a result says that the device is lost.
    pub(crate) fn note<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(VkError::DeviceLost { .. })) {
            self.give_up();
        }
        result
    }

    /// Submits to the compute queue or the transfer queue.
    pub(crate) fn submit(
        &self,
        queue: &Queue,
        info: &vk::SubmitInfo<'_>,
        fence: vk::Fence,
        during: &str,
    ) -> Result<()> {
        if self.is_lost() {
            return Err(VkError::DeviceLost { during: during.into() });
        }
        let raw = queue.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock is held; what `info` names is kept alive by callers until the fence or
        // semaphore says that the work is done.
        let result = unsafe { self.raw.queue_submit(*raw, std::slice::from_ref(info), fence) };
        self.note(result.during("vkQueueSubmit").map_err(|error| match error {
            VkError::DeviceLost { .. } => VkError::DeviceLost { during: during.into() },
            error => error,
        }))
    }

    /// Gives an object the name that messages call it by.
    pub(crate) fn name<T: vk::Handle>(&self, object: T, name: &str) {
        let Some(debug) = &self.debug else { return };
        let Ok(name) = std::ffi::CString::new(name) else { return };
        let info = vk::DebugUtilsObjectNameInfoEXT::default();
        // SAFETY: the extension is enabled; the object belongs to this device. A name that could
        // not be set is no reason to fail.
        let _ = unsafe {
            debug.set_debug_utils_object_name(&info.object_handle(object).object_name(&name))
        };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that was made from the device holds it, so nothing is left; the allocator
        // goes before the device.
        unsafe {
            ManuallyDrop::drop(&mut self.allocator);
            self.raw.destroy_device(None);
        }
    }
}

/// Queue families to use.
struct Families {
    compute: u32,
    transfer: Option<u32>,
}

impl Families {
    fn of(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        limits: &Limits,
        info: &DeviceInfo,
    ) -> Result<Self> {
        // SAFETY: the handle comes from this instance.
        let families =
            unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
        let find = |is: &dyn Fn(vk::QueueFlags) -> bool| {
            families.iter().position(|f| f.queue_count > 0 && is(f.queue_flags)).map(|i| i as u32)
        };
        use vk::QueueFlags as Q;
        let compute = find(&|flags| flags.contains(Q::COMPUTE))
            .ok_or_else(|| VkError::Missing { device: info.name.clone(), what: "compute" })?;
        let transfer = limits.transfer_queue.then(|| probe::transfer_family(&families)).flatten();
        Ok(Self { compute, transfer })
    }
}

fn create(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    info: &DeviceInfo,
    found: &Limits,
    families: &Families,
) -> Result<ash::Device> {
    let priority = [1.0];
    let queues: Vec<_> = std::iter::once(families.compute)
        .chain(families.transfer)
        .map(|family| {
            let queue = vk::DeviceQueueCreateInfo::default();
            queue.queue_family_index(family).queue_priorities(&priority)
        })
        .collect();
    let core = vk::PhysicalDeviceFeatures::default()
        .shader_storage_buffer_array_dynamic_indexing(found.dynamic_buffer_index);
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .vulkan_memory_model(found.memory_model)
        .vulkan_memory_model_device_scope(found.memory_model)
        .timeline_semaphore(found.timeline_semaphore)
        .shader_float16(found.float16);
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default()
        .subgroup_size_control(found.subgroup_arithmetic)
        .compute_full_subgroups(found.subgroup_arithmetic)
        .shader_integer_dot_product(found.integer_dot);
    let mut create = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
    create = create.enabled_features(&core);
    let mut extensions = vec![];
    if found.host_import.is_some() {
        extensions.push(ext::external_memory_host::NAME.as_ptr());
    }
    create = create.enabled_extension_names(&extensions);
    if info.api >= (1, 2) {
        create = create.push_next(&mut v12);
    }
    if info.api >= (1, 3) {
        create = create.push_next(&mut v13);
    }
    // SAFETY: all that `create` points to lives until the call returns; only features and
    // extensions that were reported are asked for.
    unsafe { instance.raw.create_device(physical, &create, None) }.during("vkCreateDevice")
}

/// Asking the driver.
mod probe {
    use super::*;

    pub fn transfer_family(families: &[vk::QueueFamilyProperties]) -> Option<u32> {
        use vk::QueueFlags as Q;
        let only_copies = |f: &vk::QueueFamilyProperties| {
            f.queue_flags.contains(Q::TRANSFER)
                && !f.queue_flags.intersects(Q::COMPUTE | Q::GRAPHICS)
                && f.queue_count > 0
        };
        families.iter().position(only_copies).map(|i| i as u32)
    }

    pub fn limits(instance: &Instance, physical: vk::PhysicalDevice, info: &DeviceInfo) -> Limits {
        let raw = &instance.raw;
        let (mut v12, mut v13) = Default::default();
        features(instance, physical, info, &mut v12, &mut v13);
        // SAFETY: the handle comes from this instance.
        let core = unsafe { raw.get_physical_device_features(physical) };
        // SAFETY: as above.
        let families = unsafe { raw.get_physical_device_queue_family_properties(physical) };
        // SAFETY: as above.
        let memory = unsafe { raw.get_physical_device_memory_properties(physical) };
        let (p, rest) = properties(instance, physical, info);
        use vk::MemoryPropertyFlags as M;
        let all = M::DEVICE_LOCAL | M::HOST_VISIBLE | M::HOST_COHERENT;
        let mapped = memory.memory_types_as_slice().iter().any(|t| t.property_flags.contains(all));
        let one_heap = memory
            .memory_heaps_as_slice()
            .iter()
            .all(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let shared = matches!(info.kind, DeviceKind::Integrated | DeviceKind::Cpu);
        Limits {
            max_storage_range: u64::from(p.max_storage_buffer_range),
            max_storage_buffers: p.max_per_stage_descriptor_storage_buffers,
            dynamic_buffer_index: core.shader_storage_buffer_array_dynamic_indexing == vk::TRUE,
            max_workgroup_threads: p
                .max_compute_work_group_invocations
                .min(p.max_compute_work_group_size[0]),
            max_workgroups: p.max_compute_work_group_count[0],
            max_shared_bytes: p.max_compute_shared_memory_size,
            subgroup_size: rest.subgroup_size,
            max_workgroup_subgroups: rest.max_workgroup_subgroups,
            subgroup_arithmetic: rest.subgroup_arithmetic
                && v13.subgroup_size_control == vk::TRUE
                && v13.compute_full_subgroups == vk::TRUE,
            integer_dot: v13.shader_integer_dot_product == vk::TRUE,
            float16: v12.shader_float16 == vk::TRUE,
            // Lavapipe says that it has it, and then a loop that watches a word never sees it change.
            memory_model: v12.vulkan_memory_model == vk::TRUE
                && v12.vulkan_memory_model_device_scope == vk::TRUE
                && !rest.is_lavapipe,
            timeline_semaphore: v12.timeline_semaphore == vk::TRUE,
            mapped_device_memory: mapped,
            unified_memory: mapped && one_heap && shared,
            host_import: host_import(instance, physical),
            transfer_queue: transfer_family(&families).is_some(),
            max_loop_iterations: rest.is_lavapipe.then_some(65_535),
            processors: rest.processors,
            persistent: info.api >= (1, 2),
        }
    }

    fn features(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        info: &DeviceInfo,
        v12: &mut vk::PhysicalDeviceVulkan12Features<'_>,
        v13: &mut vk::PhysicalDeviceVulkan13Features<'_>,
    ) {
        let mut all = vk::PhysicalDeviceFeatures2::default();
        if info.api >= (1, 2) {
            all = all.push_next(v12);
        }
        if info.api >= (1, 3) {
            all = all.push_next(v13);
        }
        // SAFETY: the handle comes from this instance; the chain holds structs of its version.
        unsafe { instance.raw.get_physical_device_features2(physical, &mut all) };
    }

    pub struct Rest {
        subgroup_size: u32,
        max_workgroup_subgroups: u32,
        subgroup_arithmetic: bool,
        is_lavapipe: bool,
        processors: Option<u32>,
    }

    fn properties(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        info: &DeviceInfo,
    ) -> (vk::PhysicalDeviceLimits, Rest) {
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut size = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut sm = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let has_sm = has_extension(instance, physical, ash::nv::shader_sm_builtins::NAME);
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
        if info.api >= (1, 2) {
            all = all.push_next(&mut driver);
        }
        if info.api >= (1, 3) {
            all = all.push_next(&mut size);
        }
        if has_sm {
            all = all.push_next(&mut sm);
        }
        // SAFETY: as above.
        unsafe { instance.raw.get_physical_device_properties2(physical, &mut all) };
        let limits = all.properties.limits;
        let can_require = size
            .required_subgroup_size_stages
            .contains(vk::ShaderStageFlags::COMPUTE)
            && (size.min_subgroup_size..=size.max_subgroup_size).contains(&subgroup.subgroup_size);
        // Where there is only one size, nothing needs to be required.
        let fixed = size.min_subgroup_size == size.max_subgroup_size;
        let arithmetic = vk::SubgroupFeatureFlags::ARITHMETIC;
        let is_lavapipe = driver.driver_id == vk::DriverId::MESA_LLVMPIPE;
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let rest = Rest {
            subgroup_size: subgroup.subgroup_size,
            max_workgroup_subgroups: size.max_compute_workgroup_subgroups,
            subgroup_arithmetic: subgroup.supported_operations.contains(arithmetic)
                && subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
                && (can_require || fixed),
            is_lavapipe,
            processors: match sm.shader_sm_count {
                0 => is_lavapipe.then(cores),
                n => Some(n),
            },
        };
        (limits, rest)
    }

    /// The alignment at which memory of the host is imported to buffers that kernels read.
    fn host_import(instance: &Instance, physical: vk::PhysicalDevice) -> Option<u64> {
        if !has_extension(instance, physical, ext::external_memory_host::NAME) {
            return None;
        }
        let info = vk::PhysicalDeviceExternalBufferInfo::default();
        let info = info.usage(import::USAGE).handle_type(import::HOST);
        let mut buffers = vk::ExternalBufferProperties::default();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
        // SAFETY: the handle comes from this instance; the device has the extension.
        unsafe {
            instance.raw.get_physical_device_external_buffer_properties(
                physical,
                &info,
                &mut buffers,
            );
            instance.raw.get_physical_device_properties2(physical, &mut all);
        }
        let features = buffers.external_memory_properties.external_memory_features;
        let alignment = host.min_imported_host_pointer_alignment;
        (features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
            && alignment.is_power_of_two())
        .then_some(alignment)
    }

    fn has_extension(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        name: &std::ffi::CStr,
    ) -> bool {
        // SAFETY: as above.
        let all = unsafe { instance.raw.enumerate_device_extension_properties(physical) };
        all.is_ok_and(|all| all.iter().any(|e| e.extension_name_as_c_str() == Ok(name)))
    }
}
