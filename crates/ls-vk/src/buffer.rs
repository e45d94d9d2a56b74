//! Buffers, and how the host reads and writes those that it sees.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;

use crate::device::Device;
use crate::error::{Code, Result, VkError};
use crate::memory::MemoryKind;

/// A storage buffer.
///
/// The host's view of a mapped buffer is memory that the device may write at any time, so no
/// reference to it is handed out here: bytes are copied in and out, by one thread at a time.
pub struct Buffer {
    device: Arc<Device>,
    pub(crate) raw: vk::Buffer,
    backing: Backing,
    mapped: Option<NonNull<u8>>,
    // Held while bytes are copied.
    copying: Mutex<()>,
    bytes: u64,
    kind: MemoryKind,
}

/// What the bytes of a buffer lie in.
enum Backing {
    Allocated(vk_mem::Allocation),
    /// The host's memory, whose owner is alive for as long as the driver has it.
    Imported {
        memory: vk::DeviceMemory,
        _owner: Arc<dyn Send + Sync>,
    },
}

// SAFETY: handles may be used from any thread; what the pointer leads to is copied under a lock, or
// touched by whoever promised to keep others away (see `bytes_mut`).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes, {})", self.bytes, self.kind.name())
    }
}

impl Buffer {
    /// Makes a buffer of `bytes` bytes (rounded up to whole words), whose contents are undefined.
    ///
    /// # Errors
    ///
    /// [`VkError::OutOfMemory`]; [`VkError::Missing`] where the device has no such memory.
    pub fn new(device: &Arc<Device>, kind: MemoryKind, bytes: u64, name: &str) -> Result<Self> {
        kind.check(device.limits(), &device.info().name)?;
        let bytes = bytes.max(4).next_multiple_of(4);
        use vk::BufferUsageFlags as U;
        let usage = U::STORAGE_BUFFER | U::TRANSFER_SRC | U::TRANSFER_DST;
        let families: Vec<u32> = std::iter::once(device.compute.family)
            .chain(device.transfer.as_ref().map(|queue| queue.family))
            .collect();
        let mut info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        if families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        use vk_mem::Alloc;
        // SAFETY: the allocator belongs to the device that the buffer keeps alive.
        let made = unsafe { device.allocator.create_buffer(&info, &kind.allocation()) };
        let (raw, allocation) = made.map_err(|code| VkError::OutOfMemory {
            bytes,
            kind: kind.name(),
            code: Code(code.as_raw()),
        })?;
        device.name(raw, name);
        let pointer = device.allocator.get_allocation_info(&allocation).mapped_data;
        let mapped = kind.is_mapped().then(|| NonNull::new(pointer.cast())).flatten();
        let (device, backing) = (Arc::clone(device), Backing::Allocated(allocation));
        Ok(Self { device, raw, backing, mapped, copying: Mutex::new(()), bytes, kind })
    }

    /// Takes over a buffer that is bound to imported `memory` of `owner`. Nothing here touches its
    /// bytes.
    pub(crate) fn imported(
        device: &Arc<Device>,
        raw: vk::Buffer,
        memory: vk::DeviceMemory,
        owner: Arc<dyn Send + Sync>,
        bytes: u64,
    ) -> Self {
        let backing = Backing::Imported { memory, _owner: owner };
        let device = Arc::clone(device);
        let kind = MemoryKind::Upload;
        Self { device, raw, backing, mapped: None, copying: Mutex::new(()), bytes, kind }
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never true: a buffer has a word at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory that it lies in.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The host's pointer to bytes `at..at + len`.
    fn place(&self, at: u64, len: u64) -> Result<NonNull<u8>> {
        let end = at.saturating_add(len);
        if end > self.bytes {
            return Err(VkError::OutOfRange { at, end, len: self.bytes });
        }
        let base = self.mapped.ok_or(VkError::NotMapped { kind: self.kind.name() })?;
        // SAFETY: within the mapping, as just checked; a mapping fits the address space.
        Ok(unsafe { base.add(at as usize) })
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `bytes` to byte `at` on.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let to = self.place(at, bytes.len() as u64)?;
        let _held = self.hold();
        // SAFETY: `to` has room for them; no other thread of the host copies. What the device may
        // see of it meanwhile is the caller's protocol with the kernel.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The same of words.
    pub fn write_words(&self, at: u64, words: &[u32]) -> Result<()> {
        // SAFETY: any u32 is four bytes without padding, and bytes have no alignment.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 4 * words.len()) };
        self.write(at, bytes)
    }

    /// The same of floats.
    pub fn write_floats(&self, at: u64, floats: &[f32]) -> Result<()> {
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), 4 * floats.len()) };
        self.write(at, bytes)
    }

    /// Fills the whole buffer with one byte.
    pub fn fill(&self, byte: u8) -> Result<()> {
        let to = self.place(0, self.bytes)?;
        let _held = self.hold();
        // SAFETY: as for `write`.
        unsafe { to.as_ptr().write_bytes(byte, self.bytes as usize) };
        Ok(())
    }

    /// Copies bytes from `at` on into `bytes`.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let from = self.place(at, bytes.len() as u64)?;
        let _held = self.hold();
        // SAFETY: within the mapping; `bytes` is not part of it; no other thread writes.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// `n` floats from byte `at` on.
    pub fn read_floats(&self, at: u64, n: usize) -> Result<Vec<f32>> {
        Ok(self.read_words(at, n)?.into_iter().map(f32::from_bits).collect())
    }

    /// `n` words from byte `at` on.
    pub fn read_words(&self, at: u64, n: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * n];
        self.read(at, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// One word, read now: the device may be writing it.
    pub(crate) fn peek(&self, word: u64) -> Result<u32> {
        let from = self.place(4 * word, 4)?;
        // SAFETY: within the mapping, and aligned, as mappings begin at multiples of 64 bytes.
        let value = unsafe { from.cast::<u32>().as_ptr().read_volatile() };
        // What the device wrote before this word is read after it.
        fence(Ordering::Acquire);
        Ok(value)
    }

    /// Takes floats from word `first` on until one is [`ABSENT`], which the device never writes; how
    /// many there were.
    pub(crate) fn take_present(&self, first: u64, to: &mut [f32]) -> Result<usize> {
        let from = self.place(4 * first, 4 * to.len() as u64)?.cast::<u32>();
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: within the mapping, as just checked, and aligned as for `peek`.
            let bits = unsafe { from.add(i).as_ptr().read_volatile() };
            if bits == ABSENT {
                return Ok(i);
            }
            *to = f32::from_bits(bits);
        }
        Ok(to.len())
    }

    /// Makes `n` words from word `first` on [`ABSENT`].
    pub(crate) fn clear(&self, first: u64, n: usize) -> Result<()> {
        let to = self.place(4 * first, 4 * n as u64)?;
        // SAFETY: as for `write`.
        unsafe { to.as_ptr().write_bytes(0xff, 4 * n) };
        Ok(())
    }

    /// Writes a word after all that was written before, for a device that watches it.
    pub(crate) fn post(&self, word: u64, value: u32) -> Result<()> {
        let to = self.place(4 * word, 4)?;
        flush_writes();
        // SAFETY: as for `write`; aligned as in `peek`.
        unsafe { to.cast::<u32>().as_ptr().write_volatile(value) };
        flush_writes();
        Ok(())
    }

    /// The bytes `at..at + len` themselves, to read.
    ///
    /// # Safety
    ///
    /// Until the slice is dropped neither the device nor another thread writes these bytes.
    pub(crate) unsafe fn bytes(&self, at: u64, len: u64) -> Result<&[u8]> {
        let place = self.place(at, len)?;
        // SAFETY: within the mapping; nobody writes, by the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(place.as_ptr(), len as usize) })
    }

    /// The bytes `at..at + len` themselves, to write.
    ///
    /// # Safety
    ///
    /// Until the slice is dropped neither the device nor another thread touches these bytes.
    #[allow(clippy::mut_from_ref)] // exclusive by the caller's promise
    pub(crate) unsafe fn bytes_mut(&self, at: u64, len: u64) -> Result<&mut [u8]> {
        let place = self.place(at, len)?;
        // SAFETY: within the mapping; exclusive by the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), len as usize) })
    }
}

/// Bits of no value: the device writes another NaN in its place.
const ABSENT: u32 = u32::MAX;

/// Lets writes leave the processor's buffers: mapped device memory is write-combining, where
/// writes wait to be joined with later ones and pass each other.
pub(crate) fn flush_writes() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: what uses the buffer on the device keeps it alive until it is done. The owner of
        // imported memory, which goes after this, has it back then.
        unsafe {
            match &mut self.backing {
                Backing::Allocated(allocation) => {
                    self.device.allocator.destroy_buffer(self.raw, allocation);
                }
                Backing::Imported { memory, .. } => {
                    self.device.raw.destroy_buffer(self.raw, None);
                    self.device.raw.free_memory(*memory, None);
                }
            }
        }
    }
}
