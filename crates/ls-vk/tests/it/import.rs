//! Slabs over memory of the host that the device reads where it lies.

#![allow(unsafe_code)] // the tests own such memory

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ls_vk::control::{Mode, Runner, RunnerOptions};
use ls_vk::format::{ColumnFormat, RowFormat};
use ls_vk::kernels::mlp::{MlpShape, Tuning};
use ls_vk::twin::Random;
use ls_vk::{Limits, Slab, SlabKind, VkError};
use stable_deref_trait::StableDeref;

use crate::Checked;
use crate::mlp::{Layer, run, shape};

const PAGE: usize = 1 << 16;

/// Pages of which only a part may be shown, and how many such owners live.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
    shown: (usize, usize),
    alive: Arc<AtomicUsize>,
}

impl Pages {
    /// `len` bytes from byte `skip` of a page on.
    fn new(skip: usize, len: usize, alive: &Arc<AtomicUsize>) -> Self {
        let layout = Layout::from_size_align((skip + len).next_multiple_of(PAGE), PAGE).unwrap();
        // SAFETY: the layout has bytes.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        alive.fetch_add(1, Ordering::Relaxed);
        Self { start, layout, shown: (skip, len), alive: Arc::clone(alive) }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.shown.1);
        // SAFETY: within the pages, as just checked; the device, which reads what lies there, is
        // given nothing to do meanwhile.
        unsafe {
            let to = self.start.add(self.shown.0 + at);
            to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
    }
}

/// What a slab gets; the tests keep another to write to.
#[derive(Clone, Debug)]
struct Shared(Arc<Pages>);

impl Deref for Shared {
    type Target = [UnsafeCell<u8>];

    fn deref(&self) -> &Self::Target {
        let Pages { start, shown: (skip, len), .. } = &*self.0;
        // SAFETY: the shown bytes, which live as long as `self`; nobody has a plain reference to them.
        unsafe { std::slice::from_raw_parts(start.add(*skip).as_ptr().cast(), *len) }
    }
}

// SAFETY: pages do not move.
unsafe impl StableDeref for Shared {}
// SAFETY: bytes are written by the test's thread alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Pages {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

fn shared(skip: usize, len: usize) -> (Shared, Arc<AtomicUsize>) {
    let alive = Arc::default();
    #[allow(clippy::arc_with_non_send_sync)] // `Shared` says why it may be sent
    let pages = Arc::new(Pages::new(skip, len, &alive));
    (Shared(pages), alive)
}

fn small_shape() -> MlpShape {
    let formats = (RowFormat::Q4_0, RowFormat::Q8_0, ColumnFormat::Q6);
    shape(256, formats, 5, 0)
}

/// A layer whose frames lie in imported memory.
fn imported(checked: &Checked, n_frames: u32, memory: &Shared) -> Layer {
    let (shape, bytes) = (small_shape(), 4096);
    assert!(shape.bytes_for(5) <= bytes);
    let slab = Slab::import(&checked.device, memory.clone(), bytes as u32, n_frames).unwrap();
    let mut random = Random::new(3);
    let frames: Vec<(Vec<u8>, u32)> =
        (0..n_frames).map(|_| (random.frame(&shape, 5, bytes), 5)).collect();
    for (i, (frame, _)) in frames.iter().enumerate() {
        memory.0.write(i * bytes, frame);
    }
    Layer { shape, slab, frames, per_frame: 5 }
}

fn options(mode: Mode) -> RunnerOptions {
    // Of a persistent dispatch as many as meet here.
    let workgroups = (mode != Mode::Persistent).then_some(2);
    let tuning = Tuning { workgroups, ..Tuning::default() };
    RunnerOptions { mode: Some(mode), tuning, ..RunnerOptions::default() }
}

/// As for a layer in the device's own memory, in any variant.
const BOUND: f64 = 6e-3;

fn assert_is_twin(layer: &Layer, runner: &mut Runner, what: &str) {
    let x = Random::new(4).floats(layer.shape.d_model);
    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let out = run(runner, &x, &layer.all());
    let error = layer.error(&layer.all(), &exact, &out);
    assert!(error <= BOUND, "{what}: {error:e}");
}

#[test]
fn imported_frames_are_computed_as_their_owner_writes_them() {
    let checked = Checked::open();
    let (memory, _) = shared(0, 7 * 4096);
    let mut layer = imported(&checked, 7, &memory);
    assert_eq!((layer.slab.kind(), layer.slab.n_frames()), (SlabKind::Imported, 7));
    for mode in [Mode::Blocking, Mode::Staged, Mode::Persistent] {
        let mut runner = Runner::new(&layer.slab, layer.shape, &options(mode)).unwrap();
        assert_is_twin(&layer, &mut runner, "as imported");
        // What is written afterwards is seen by the next stage.
        for (round, frame) in [(0, 3), (1, 0), (2, 6), (3, 3)] {
            let bytes = Random::new(10 + round).frame(&layer.shape, 5, 4096);
            memory.0.write(frame * 4096, &bytes);
            layer.frames[frame].0 = bytes;
            assert_is_twin(&layer, &mut runner, &format!("{mode} after {round}"));
        }
    }
}

#[test]
fn imported_memory_may_take_several_buffers() {
    // 45 frames fit the range, but only an even number ends at a multiple of the alignment.
    let checked = Checked::narrowed(|found| Limits {
        max_storage_range: 45 * 4096 + 100,
        host_import: Some(8192),
        ..found.clone()
    });
    let (memory, _) = shared(0, 100 * 4096);
    let layer = imported(&checked, 100, &memory);
    let layout = layer.slab.layout();
    assert_eq!((layout.frames_per_slab, layout.n_slabs), (44, 3));
    let mut runner = Runner::new(&layer.slab, layer.shape, &options(Mode::Blocking)).unwrap();
    assert_is_twin(&layer, &mut runner, "three buffers");
}

#[test]
fn what_cannot_be_imported_is_refused() {
    let checked = Checked::open();
    let import = |memory: &Shared, bytes, n| {
        Slab::import(&checked.device, memory.clone(), bytes, n).map(drop).unwrap_err()
    };
    let alignment = checked.device.limits().host_import.unwrap();
    let (shifted, _) = shared(256, 4 * 4096);
    let error = import(&shifted, 4096, 4);
    assert!(matches!(error, VkError::Unaligned { multiple, .. } if multiple == alignment));
    assert!(error.to_string().contains("the device imports multiples of"), "{error}");
    // The last bytes fill no multiple.
    let (cut, _) = shared(0, 4 * 4096 - 256);
    assert!(matches!(import(&cut, 4096 - 64, 4), VkError::Unaligned { .. }));
    let (short, _) = shared(0, 4 * 4096);
    assert!(matches!(import(&short, 4096, 5), VkError::OutOfRange { .. }));
    assert!(matches!(import(&short, 6, 4), VkError::Shape { .. }));
    // Nothing in it is ours to write or to keep.
    let slab = Slab::import(&checked.device, short, 4096, 4).unwrap();
    assert!(matches!(slab.write(0), Err(VkError::Frame { state: "someone else's", .. })));
    assert!(matches!(slab.lease(0), Err(VkError::Frame { state: "someone else's", .. })));
    let made = Slab::new(&checked.device, 4096, 4, Some(SlabKind::Imported));
    assert!(matches!(made, Err(VkError::Shape { .. })));

    let without = Checked::narrowed(|found| Limits { host_import: None, ..found.clone() });
    let (memory, alive) = shared(0, 4096);
    let error = Slab::import(&without.device, memory, 4096, 1).map(drop).unwrap_err();
    assert!(matches!(error, VkError::Missing { .. }), "{error}");
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn the_owner_stays_until_nothing_uses_its_memory() {
    let checked = Checked::open();
    let (memory, alive) = shared(0, 3 * 4096);
    let layer = imported(&checked, 3, &memory);
    drop(memory);
    let mut runner = Runner::new(&layer.slab, layer.shape, &options(Mode::Staged)).unwrap();
    assert_is_twin(&layer, &mut runner, "its owner is gone here");
    drop(layer);
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    drop(runner);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}
