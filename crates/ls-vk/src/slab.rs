//! The slab: frames of weights in the device's memory.
//!
//! A frame holds one chunk. Whoever reads chunks from flash takes a free frame to write, fills it
//! and finishes it; whoever computes leases frames, and a leased frame is not written. Which chunk
//! lies where and which one goes is for others to decide: a slab knows frames by their index.
//!
//! Ways differ by what the memory is like ([`SlabKind`]). Where all memory is the device's and the
//! host sees it, bytes are written where they stay. So it is on a discrete card that maps its memory,
//! over the bus: write a frame once, from front to back, and never read it. Otherwise bytes are
//! written to the host's memory and copied, by a queue of its own where there is one.
//!
//! Or a slab lies over memory of the host that belongs to someone else ([`Slab::import`]): then whoever
//! owns it writes its frames and keeps them as they are while stages read them.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stable_deref_trait::StableDeref;

use crate::buffer::{Buffer, flush_writes};
use crate::device::Device;
use crate::error::{Result, VkError};
use crate::import::HostMemory;
use crate::kernels::mlp::{FrameLayout, MAX_FRAMES};
use crate::kernels::shaders::MAX_SLABS;
use crate::memory::MemoryKind;
use crate::recorder::{For, Recorder};

/// How frames get their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabKind {
    /// Written where they stay.
    Mapped,
    /// Written to the host's memory and copied.
    Copied,
    /// Memory of someone else, who writes it: see [`Slab::import`].
    Imported,
}

/// A frame's state: free, being written, or whole with a number of leases.
const FREE: u32 = 0;
const WRITING: u32 = u32::MAX;
const WHOLE: u32 = 1;

/// Frames of one length.
#[derive(Debug)]
pub struct Slab {
    device: Arc<Device>,
    buffers: Vec<Arc<Buffer>>,
    kind: SlabKind,
    layout: FrameLayout,
    n_frames: u32,
    /// Empty if the frames are someone else's.
    states: Vec<AtomicU32>,
    staging: Mutex<Vec<Arc<Buffer>>>,
    /// Times that frames were finished.
    fillings: AtomicU64,
}

/// How long a copy may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(10);

impl Slab {
    /// Makes a slab of `n_frames` frames of `frame_bytes` bytes each. Without a `kind` the best is
    /// taken that the device has memory for.
    ///
    /// # Errors
    ///
    /// [`VkError::Limit`] for more than the device's kernels can see, [`VkError::OutOfMemory`].
    pub fn new(
        device: &Arc<Device>,
        frame_bytes: u32,
        n_frames: u32,
        kind: Option<SlabKind>,
    ) -> Result<Arc<Self>> {
        let layout = lay_out(device, frame_bytes, n_frames, 1)?;
        let mapped = device.limits().mapped_device_memory;
        let kinds = match kind {
            Some(SlabKind::Mapped) => &[SlabKind::Mapped][..],
            Some(SlabKind::Copied) => &[SlabKind::Copied],
            Some(SlabKind::Imported) => {
                let what = "memory of someone else is imported, not made".to_owned();
                return Err(VkError::Shape { what });
            }
            None if mapped => &[SlabKind::Mapped, SlabKind::Copied],
            None => &[SlabKind::Copied],
        };
        let mut last = None;
        for kind in kinds {
            match buffers(device, *kind, layout, n_frames) {
                Ok(buffers) => {
                    return Ok(Arc::new(Self {
                        device: Arc::clone(device),
                        buffers,
                        kind: *kind,
                        layout,
                        n_frames,
                        states: (0..n_frames).map(|_| AtomicU32::new(FREE)).collect(),
                        staging: Mutex::default(),
                        fillings: AtomicU64::new(0),
                    }));
                }
                // A card may map less of its memory than it has.
                Err(error @ VkError::OutOfMemory { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("at least one kind was tried"))
    }

    /// Lays a slab over `memory`, of which frame `i` begins at byte `i × frame_bytes`. The device reads
    /// it where it lies; it stays until the slab and all that uses it are gone.
    ///
    /// Its frames are not written or leased here, and stages take them as they are. So what a stage
    /// reads must not change until it is done: else it computes something else, and nothing worse.
    ///
    /// # Errors
    ///
    /// [`VkError::Missing`] where the device cannot import, [`VkError::Unaligned`] if the memory or its
    /// frames do not suit it, [`VkError::Import`] if the driver refuses, [`VkError::OutOfRange`] if there
    /// is less memory than frames, and as [`Slab::new`].
    pub fn import<M>(
        device: &Arc<Device>,
        memory: M,
        frame_bytes: u32,
        n_frames: u32,
    ) -> Result<Arc<Self>>
    where
        M: StableDeref<Target = [UnsafeCell<u8>]> + Send + Sync + 'static,
    {
        let memory = HostMemory::new(memory);
        let layout = lay_out(device, frame_bytes, n_frames, memory.alignment(device)?)?;
        let buffers = pieces(layout, n_frames)
            .map(|(i, at, bytes)| memory.buffer(device, at, bytes, &format!("imported slab {i}")))
            .map(|buffer| buffer.map(Arc::new))
            .collect::<Result<Vec<_>>>()?;
        let (device, kind) = (Arc::clone(device), SlabKind::Imported);
        Ok(Arc::new(Self {
            device,
            buffers,
            kind,
            layout,
            n_frames,
            states: vec![],
            staging: Mutex::default(),
            fillings: AtomicU64::new(0),
        }))
    }

    /// How frames get their bytes.
    pub fn kind(&self) -> SlabKind {
        self.kind
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> u32 {
        self.layout.frame_bytes
    }

    /// Number of frames.
    pub fn n_frames(&self) -> u32 {
        self.n_frames
    }

    /// How frames lie in buffers.
    pub fn layout(&self) -> FrameLayout {
        self.layout
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn buffers(&self) -> &[Arc<Buffer>] {
        &self.buffers
    }

    /// A number that is another one whenever a frame was made whole since; none where that is not
    /// known.
    pub(crate) fn fillings(&self) -> Option<u64> {
        (self.kind != SlabKind::Imported).then(|| self.fillings.load(Ordering::Acquire))
    }

    fn state(&self, frame: u32) -> Result<&AtomicU32> {
        let state = match self.kind {
            SlabKind::Imported => "someone else's",
            _ => "outside of the slab",
        };
        self.states.get(frame as usize).ok_or(VkError::Frame { frame, state })
    }

    /// Takes a frame to write it anew; what it held is gone.
    ///
    /// # Errors
    ///
    /// [`VkError::Frame`] while it is leased or written by another.
    pub fn write(self: &Arc<Self>, frame: u32) -> Result<FrameWriter> {
        let state = self.state(frame)?;
        let take =
            |from| state.compare_exchange(from, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if take(FREE).is_err() && take(WHOLE).is_err() {
            return Err(VkError::Frame { frame, state: "in use" });
        }
        let (buffer, at) = match self.kind {
            SlabKind::Mapped | SlabKind::Imported => self.place(frame),
            SlabKind::Copied => match self.staging_buffer() {
                Ok(buffer) => (buffer, 0),
                Err(error) => {
                    state.store(FREE, Ordering::Release);
                    return Err(error);
                }
            },
        };
        Ok(FrameWriter { slab: Arc::clone(self), frame, buffer, at, whole: false })
    }

    /// Keeps a frame as it is until the lease is dropped.
    ///
    /// # Errors
    ///
    /// [`VkError::Frame`] if it holds nothing or is being written.
    pub fn lease(self: &Arc<Self>, frame: u32) -> Result<FrameLease> {
        let state = self.state(frame)?;
        let more = |n| (n != FREE && n < WRITING - 1).then(|| n + 1);
        match state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more) {
            Ok(_) => Ok(FrameLease { slab: Arc::clone(self), frame }),
            Err(FREE) => Err(VkError::Frame { frame, state: "empty" }),
            Err(_) => Err(VkError::Frame { frame, state: "being written" }),
        }
    }

    /// Finishes many frames at once: one copy where one is needed.
    ///
    /// # Errors
    ///
    /// If the copy fails: then none of them is whole.
    pub fn finish(self: &Arc<Self>, mut writers: Vec<FrameWriter>) -> Result<()> {
        if self.kind == SlabKind::Copied && !writers.is_empty() {
            let mut recorder = Recorder::new(&self.device, For::Transfer, "slab copy")?;
            for writer in &writers {
                let (to, at) = self.place(writer.frame);
                let bytes = u64::from(self.layout.frame_bytes);
                recorder.copy(&writer.buffer, &to, &[(0, at, bytes)])?;
            }
            recorder.finish()?.run(COPY_TIMEOUT)?;
        }
        // What this thread wrote has left its processor before anyone can lease it.
        flush_writes();
        self.fillings.fetch_add(1, Ordering::Release);
        for writer in &mut writers {
            writer.whole = true;
        }
        Ok(())
    }

    /// The buffer and byte where a frame lies.
    fn place(&self, frame: u32) -> (Arc<Buffer>, u64) {
        let (slab, index) =
            (frame / self.layout.frames_per_slab, frame % self.layout.frames_per_slab);
        let at = u64::from(index) * u64::from(self.layout.frame_bytes);
        (Arc::clone(&self.buffers[slab as usize]), at)
    }

    fn staging_buffer(&self) -> Result<Arc<Buffer>> {
        let kept = self.staging.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(buffer) = kept {
            return Ok(buffer);
        }
        let bytes = u64::from(self.layout.frame_bytes);
        let buffer = Buffer::new(&self.device, MemoryKind::Upload, bytes, "slab staging")?;
        Ok(Arc::new(buffer))
    }
}

/// Lays frames out in buffers, each of which begins at a multiple of `align`, a power of two.
fn lay_out(device: &Device, frame_bytes: u32, n_frames: u32, align: u64) -> Result<FrameLayout> {
    let limit = |what, needed: u64, limit: u64| Err(VkError::Limit { what, needed, limit });
    if frame_bytes == 0 || !frame_bytes.is_multiple_of(4) || n_frames == 0 {
        let what = format!("{n_frames} frames of {frame_bytes} bytes: some whole words are needed");
        return Err(VkError::Shape { what });
    }
    if n_frames > MAX_FRAMES {
        return limit("frames", n_frames.into(), MAX_FRAMES.into());
    }
    // Kernels count bytes in 32 bits.
    let range = device.limits().max_storage_range.min(u32::MAX.into());
    // However many there are: it is compiled into kernels, which drivers keep for the next time.
    let mut frames_per_slab = (range / u64::from(frame_bytes)).min(MAX_FRAMES.into()) as u32;
    // As many frames as this end at such a multiple.
    let step = align >> align.trailing_zeros().min(frame_bytes.trailing_zeros());
    if frames_per_slab < n_frames {
        frames_per_slab -= frames_per_slab % u32::try_from(step).unwrap_or(u32::MAX);
    }
    if frames_per_slab == 0 {
        return limit("bytes of a frame", frame_bytes.into(), range);
    }
    let n_slabs = n_frames.div_ceil(frames_per_slab);
    let many = device.limits().dynamic_buffer_index
        && device.limits().max_storage_buffers >= MAX_SLABS + 4;
    let most = if many { MAX_SLABS } else { 1 };
    if n_slabs > most {
        let bytes = u64::from(n_frames) * u64::from(frame_bytes);
        return limit("bytes of a slab", bytes, u64::from(most) * range);
    }
    Ok(FrameLayout { frame_bytes, frames_per_slab, n_slabs })
}

fn buffers(
    device: &Arc<Device>,
    kind: SlabKind,
    layout: FrameLayout,
    n_frames: u32,
) -> Result<Vec<Arc<Buffer>>> {
    let memory = match kind {
        SlabKind::Mapped => MemoryKind::Mapped,
        SlabKind::Copied | SlabKind::Imported => MemoryKind::Device,
    };
    pieces(layout, n_frames)
        .map(|(i, _, bytes)| Buffer::new(device, memory, bytes, &format!("slab {i}")).map(Arc::new))
        .collect()
}

/// The number of each buffer, where it begins among all bytes, and its length.
fn pieces(layout: FrameLayout, n_frames: u32) -> impl Iterator<Item = (u32, u64, u64)> {
    let bytes = move |frames: u32| u64::from(frames) * u64::from(layout.frame_bytes);
    (0..layout.n_slabs).map(move |i| {
        let first = i * layout.frames_per_slab;
        (i, bytes(first), bytes((n_frames - first).min(layout.frames_per_slab)))
    })
}

/// A frame that is being written. Dropped without [`FrameWriter::finish`], the frame is free.
///
/// It is the frame's bytes. In a slab that is [`SlabKind::Mapped`] on a discrete card, reading them
/// is very slow.
#[must_use = "dropping it discards the frame"]
#[derive(Debug)]
pub struct FrameWriter {
    slab: Arc<Slab>,
    frame: u32,
    buffer: Arc<Buffer>,
    at: u64,
    whole: bool,
}

impl FrameWriter {
    /// The frame's index.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Makes the frame whole: from now on it can be leased.
    ///
    /// # Errors
    ///
    /// If it has to be copied and that fails: then it is free.
    pub fn finish(self) -> Result<()> {
        let slab = Arc::clone(&self.slab);
        slab.finish(vec![self])
    }
}

impl Deref for FrameWriter {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the state WRITING belongs to this writer alone, and no stage has a lease, so the
        // device does not touch these bytes; a staging buffer is this writer's. The shared borrow
        // of the writer keeps `deref_mut` away.
        let bytes = unsafe { self.buffer.bytes(self.at, self.slab.layout.frame_bytes.into()) };
        bytes.expect("a frame lies in its mapped buffer")
    }
}

impl DerefMut for FrameWriter {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the writer is borrowed exclusively.
        let bytes = unsafe { self.buffer.bytes_mut(self.at, self.slab.layout.frame_bytes.into()) };
        bytes.expect("a frame lies in its mapped buffer")
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        if self.slab.kind == SlabKind::Copied {
            let mut staging = self.slab.staging.lock().unwrap_or_else(PoisonError::into_inner);
            staging.push(Arc::clone(&self.buffer));
        }
        let state = if self.whole { WHOLE } else { FREE };
        self.slab.states[self.frame as usize].store(state, Ordering::Release);
    }
}

/// A frame that stays as it is while the lease lives. Stages hold theirs until the device is done.
#[must_use = "dropping it ends the lease"]
#[derive(Debug)]
pub struct FrameLease {
    slab: Arc<Slab>,
    frame: u32,
}

impl FrameLease {
    /// The frame's index.
    pub fn frame(&self) -> u32 {
        self.frame
    }
}

impl Drop for FrameLease {
    fn drop(&mut self) {
        self.slab.states[self.frame as usize].fetch_sub(1, Ordering::Release);
    }
}
