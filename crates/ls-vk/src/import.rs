//! Memory of the host that a device reads where it lies: `VK_EXT_external_memory_host`.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use stable_deref_trait::StableDeref;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Code, Result, VkError};

/// The kind of handle that a pointer of the host is.
pub(crate) const HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
/// What buffers over such memory are for: kernels only read them.
pub(crate) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::STORAGE_BUFFER;

/// What a device lacks that cannot import.
const WHAT: &str = "the import of host memory (VK_EXT_external_memory_host)";

/// Memory that belongs to someone else, who keeps it for as long as this lives.
pub(crate) struct HostMemory {
    owner: Arc<dyn Send + Sync>,
    start: NonNull<u8>,
    len: usize,
}

impl HostMemory {
    /// Nothing here reads or writes the bytes, and a device only reads them: so the owner may go on
    /// handing out references to them. What a device reads meanwhile is for them to keep in order.
    pub fn new<M>(memory: M) -> Self
    where
        M: StableDeref<Target = [UnsafeCell<u8>]> + Send + Sync + 'static,
    {
        let owner = Arc::new(memory);
        // The owner does not move any more, and by `StableDeref` this is where the bytes stay.
        let cells: &[UnsafeCell<u8>] = &owner;
        let (start, len) = (NonNull::from(cells).cast(), cells.len());
        Self { owner, start, len }
    }

    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// The alignment that a device asks of begin and length.
    ///
    /// # Errors
    ///
    /// [`VkError::Missing`] where it cannot import, [`VkError::Unaligned`] if the memory begins
    /// elsewhere.
    pub fn alignment(&self, device: &Device) -> Result<u64> {
        let lacks = || VkError::Missing { device: device.info().name.clone(), what: WHAT };
        let multiple = device.limits().host_import.ok_or_else(lacks)?;
        self.check(0, multiple)?;
        Ok(multiple)
    }

    fn check(&self, at: u64, multiple: u64) -> Result<()> {
        let start = self.start.addr().get() as u64 + at;
        let bytes = self.len() - at;
        if !start.is_multiple_of(multiple) {
            return Err(VkError::Unaligned { start, bytes, multiple });
        }
        Ok(())
    }

    /// A buffer over bytes `at..at + bytes`.
    ///
    /// # Errors
    ///
    /// [`VkError::Unaligned`] unless it begins at a multiple of the device's alignment and there are
    /// whole multiples up to its end; [`VkError::Import`] if the driver refuses.
    pub fn buffer(&self, device: &Arc<Device>, at: u64, bytes: u64, name: &str) -> Result<Buffer> {
        let multiple = self.alignment(device)?;
        self.check(at, multiple)?;
        let end = at.saturating_add(bytes);
        if end > self.len() {
            return Err(VkError::OutOfRange { at, end, len: self.len() });
        }
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST);
        let info =
            vk::BufferCreateInfo::default().size(bytes).usage(USAGE).push_next(&mut external);
        // SAFETY: `info` and what it points to live until the call returns.
        let raw = unsafe { device.raw.create_buffer(&info, None) }.map_err(refused(bytes))?;
        let memory = self.bind(device, raw, (at, bytes, multiple)).inspect_err(|_| {
            // SAFETY: nothing uses the buffer yet.
            unsafe { device.raw.destroy_buffer(raw, None) };
        })?;
        device.name(raw, name);
        Ok(Buffer::imported(device, raw, memory, Arc::clone(&self.owner), bytes))
    }

    /// Imports what the buffer needs and binds it.
    fn bind(
        &self,
        device: &Device,
        raw: vk::Buffer,
        (at, bytes, multiple): (u64, u64, u64),
    ) -> Result<vk::DeviceMemory> {
        // SAFETY: the buffer is alive.
        let needs = unsafe { device.raw.get_buffer_memory_requirements(raw) };
        let size = needs.size.max(bytes).next_multiple_of(multiple);
        if size > self.len() - at {
            return Err(VkError::Unaligned { start: at, bytes: self.len() - at, multiple });
        }
        // SAFETY: within the memory, as just checked.
        let start = unsafe { self.start.add(at as usize) };
        let kind = memory_type(device, start, needs.memory_type_bits).ok_or(VkError::Import {
            bytes: size,
            code: Code(vk::Result::ERROR_FEATURE_NOT_PRESENT.as_raw()),
        })?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT {
            handle_type: HOST,
            p_host_pointer: start.as_ptr().cast(),
            ..Default::default()
        };
        let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(kind);
        let info = info.push_next(&mut import);
        // SAFETY: whole multiples of the alignment, mapped by their owner, whom the buffer keeps
        // until the memory is freed. The device only reads it.
        let memory = unsafe { device.raw.allocate_memory(&info, None) }.map_err(refused(size))?;
        // SAFETY: both are new; the memory has what the buffer needs.
        unsafe { device.raw.bind_buffer_memory(raw, memory, 0) }
            .map_err(refused(size))
            .inspect_err(|_| {
                // SAFETY: nothing uses it.
                unsafe { device.raw.free_memory(memory, None) };
            })?;
        Ok(memory)
    }
}

fn refused(bytes: u64) -> impl Fn(vk::Result) -> VkError {
    move |code| VkError::Import { bytes, code: Code(code.as_raw()) }
}

/// A type of memory that the driver takes the pointer as and the buffer can lie in. A coherent one,
/// so that what the host writes needs no flush.
fn memory_type(device: &Device, start: NonNull<u8>, allowed: u32) -> Option<u32> {
    let functions = device.host_import.as_ref()?;
    let mut found = vk::MemoryHostPointerPropertiesEXT::default();
    // SAFETY: the extension is enabled; the pointer is one of the host's, and only looked at.
    let looked = unsafe {
        let call = functions.fp().get_memory_host_pointer_properties_ext;
        call(functions.device(), HOST, start.as_ptr().cast_const().cast(), &mut found)
    };
    looked.result().ok()?;
    let instance = &device.instance().raw;
    // SAFETY: the handle comes from this instance.
    let all = unsafe { instance.get_physical_device_memory_properties(device.physical) };
    use vk::MemoryPropertyFlags as M;
    let wanted = M::HOST_VISIBLE | M::HOST_COHERENT;
    let fits = |i: usize, flags: M| {
        (found.memory_type_bits & allowed) >> i & 1 == 1 && flags.contains(wanted)
    };
    let types = all.memory_types_as_slice();
    types.iter().enumerate().position(|(i, t)| fits(i, t.property_flags)).map(|i| i as u32)
}
