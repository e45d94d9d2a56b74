//! Self-tests and measurements.

use ls_vk::control::Mode;
use ls_vk::kernels::mlp::Variant;
use ls_vk::{DeviceKind, Limits, Report, SelfTest, measure};

use crate::Checked;

#[test]
fn a_sound_device_passes_and_results_are_kept() {
    let checked = Checked::open();
    let folder = tempfile::tempdir().unwrap();
    let result = SelfTest::cached(&checked.device, folder.path()).unwrap();
    assert_eq!(result.failures, Vec::<String>::new());
    assert_eq!(result.modes, [Mode::Persistent, Mode::Staged, Mode::Blocking]);
    assert!(result.variants.contains(&Variant::One) && result.variants.contains(&Variant::Plain));
    let limits = checked.device.limits();
    let has_halves = limits.subgroup_arithmetic && limits.float16;
    assert_eq!(result.variants.contains(&Variant::Half), has_halves);
    assert!(result.persistent_workgroups.is_some() && result.round_trip_ns.is_some());
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap()).collect();
    assert_eq!(files.len(), 1);
    // What was kept is believed: a driver's tests run once.
    let text = std::fs::read_to_string(files[0].path()).unwrap();
    std::fs::write(files[0].path(), text.replace("mode persistent\n", "")).unwrap();
    let again = SelfTest::cached(&checked.device, folder.path()).unwrap();
    assert_eq!(again.mode(), Some(Mode::Staged));
}

#[test]
fn the_least_device_has_the_plainest_ways() {
    let checked = Checked::narrowed(|_| Limits::least());
    let result = SelfTest::run(&checked.device).unwrap();
    assert_eq!(
        (&result.variants[..], &result.modes[..]),
        (&[Variant::One][..], &[Mode::Blocking][..])
    );
    assert_eq!(result.failures.len(), 2, "{:?}", result.failures);
}

#[test]
fn copies_are_measured() {
    let checked = Checked::open();
    let rates = measure::copy_rates(&checked.device, 8 << 20).unwrap();
    assert!(rates.on_device > 0.0 && rates.upload > 0.0 && rates.to_mapped.unwrap() > 0.0);
}

#[test]
fn a_processor_prefers_what_does_not_wait() {
    let modes = vec![Mode::Persistent, Mode::Staged, Mode::Blocking];
    let result = SelfTest { modes: modes.clone(), ..Default::default() };
    assert_eq!(result.modes_for(DeviceKind::Integrated), modes);
    let last = result.modes_for(DeviceKind::Cpu);
    assert_eq!(last, [Mode::Staged, Mode::Blocking, Mode::Persistent]);
}

#[test]
fn a_report_tries_out_what_is_wanted() {
    let checked = Checked::open();
    let folder = tempfile::tempdir().unwrap();
    let none = Report::new(Some(folder.path()), &|_| false);
    assert!(none.problem.is_none() && !none.devices.is_empty());
    assert!(none.devices.iter().all(|device| device.outcome.is_none()));
    let name = checked.device.info().name.clone();
    let one = Report::new(Some(folder.path()), &|info| info.name == name);
    let found = one.devices.into_iter().find_map(|device| device.outcome).unwrap().unwrap();
    let modes: Vec<Mode> = found.round_trips.iter().map(|trip| trip.mode).collect();
    assert_eq!(modes, found.self_test.modes_for(checked.device.info().kind));
    assert!(found.round_trips.iter().all(|trip| trip.median <= trip.p99));
    assert_eq!(&found.limits, checked.device.limits());
}
