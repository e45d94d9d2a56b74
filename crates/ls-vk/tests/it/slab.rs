//! Frames: who may write, who may keep.

use ls_vk::{Slab, SlabKind, VkError};

use crate::Checked;

#[test]
fn a_leased_frame_is_not_written_and_an_empty_one_not_leased() {
    let checked = Checked::open();
    for kind in [SlabKind::Mapped, SlabKind::Copied] {
        let slab = Slab::new(&checked.device, 4096, 3, Some(kind)).unwrap();
        assert_eq!((slab.kind(), slab.n_frames(), slab.frame_bytes()), (kind, 3, 4096));
        assert!(matches!(slab.lease(0), Err(VkError::Frame { state: "empty", .. })));
        assert!(matches!(slab.lease(3), Err(VkError::Frame { .. })));
        let mut writer = slab.write(0).unwrap();
        assert_eq!((writer.len(), writer.frame()), (4096, 0));
        writer.fill(1);
        assert!(matches!(slab.lease(0), Err(VkError::Frame { state: "being written", .. })));
        assert!(slab.write(0).is_err());
        writer.finish().unwrap();
        let (first, second) = (slab.lease(0).unwrap(), slab.lease(0).unwrap());
        assert!(slab.write(0).is_err());
        drop(first);
        assert!(slab.write(0).is_err());
        assert_eq!(second.frame(), 0);
        drop(second);
        // What is not finished is gone.
        drop(slab.write(0).unwrap());
        assert!(slab.lease(0).is_err());
    }
}

#[test]
fn impossible_slabs_are_refused() {
    let checked = Checked::open();
    for (bytes, n) in [(0, 1), (6, 1), (4096, 0), (u32::MAX - 3, 100), (4096, 1 << 23)] {
        assert!(Slab::new(&checked.device, bytes, n, None).is_err(), "{bytes} {n}");
    }
}
