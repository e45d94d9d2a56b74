//! Opening devices, buffers, commands.

use std::sync::Arc;

use ls_vk::{
    Buffer, Choice, Device, For, Instance, Limits, MemoryKind, Recorder, Validation, VkError,
};

use crate::{Checked, TIMEOUT};

#[test]
fn the_limits_are_plausible() {
    let checked = Checked::open();
    let limits = checked.device.limits();
    assert!(limits.max_storage_range >= 1 << 27);
    assert!(limits.max_workgroup_threads >= 128);
    assert!(limits.subgroup_size.is_power_of_two());
    assert_eq!(limits, checked.device.found_limits());
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let instance = Instance::new(Validation::Off).unwrap();
    let error = Device::open(&instance, &Choice::Named("abacus".into())).unwrap_err();
    assert!(matches!(&error, VkError::NoDevice { asked, .. } if asked.contains("abacus")));
    assert!(Device::open(&instance, &Choice::Index(1000)).is_err());
}

#[test]
fn copies_arrive_and_stay_in_bounds() {
    let checked = Checked::open();
    let buffer = |kind, name| Buffer::new(&checked.device, kind, 64, name).map(Arc::new).unwrap();
    let (from, there) = (buffer(MemoryKind::Upload, "from"), buffer(MemoryKind::Device, "there"));
    let back = buffer(MemoryKind::Readback, "back");
    from.write(0, &(0..64).collect::<Vec<u8>>()).unwrap();
    back.fill(0xee).unwrap();
    let mut recorder = Recorder::new(&checked.device, For::Transfer, "copies").unwrap();
    recorder.copy(&from, &there, &[(0, 32, 32), (32, 0, 32)]).unwrap();
    recorder.barrier().copy(&there, &back, &[(0, 0, 60)]).unwrap();
    assert!(recorder.copy(&from, &there, &[(60, 0, 8)]).is_err());
    recorder.finish().unwrap().run(TIMEOUT).unwrap();
    let mut bytes = [0; 64];
    back.read(0, &mut bytes).unwrap();
    let want: Vec<u8> = (32..64).chain(0..28).chain([0xee; 4]).collect();
    assert_eq!(bytes.to_vec(), want);
    assert!(matches!(back.read(60, &mut [0; 8]), Err(VkError::OutOfRange { end: 68, .. })));
    assert!(matches!(there.read(0, &mut [0; 4]), Err(VkError::NotMapped { .. })));
}

#[test]
fn a_lost_device_says_so_once_and_for_all() {
    let checked = Checked::open();
    let recorder = Recorder::new(&checked.device, For::Compute, "after the end").unwrap();
    let commands = recorder.finish().unwrap();
    checked.device.give_up();
    let error = commands.submit().unwrap_err();
    assert_eq!(error, VkError::DeviceLost { during: "after the end".into() });
    assert!(checked.device.is_lost());
}

#[test]
fn capabilities_can_be_taken_but_not_given() {
    let checked = Checked::narrowed(|_| Limits::orin());
    let (limits, found) = (checked.device.limits(), checked.device.found_limits());
    assert_eq!(*limits, found.narrowed(&Limits::orin()));
    assert!(limits.max_storage_range <= found.max_storage_range);

    let least = Checked::narrowed(|_| Limits::least());
    let made = Buffer::new(&least.device, MemoryKind::Mapped, 4, "mapped");
    assert!(matches!(made, Err(VkError::Missing { .. })));
}
