//! Android's way to a device, over a stand-in that fails as devices do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{Farm, not_passed, passing, tests};

const PHONE: &str = "[[device]]\nname = \"phone\"\ntransport = \"adb\"\nserial = \"phone\"\n\
                     work = \"{dir}/work\"\npause = 0\ngrace = 1\ntimeout = 5\n";

/// A farm with a phone that has `fault`.
pub fn farm(fault: &str, steps: &[Value]) -> Farm {
    let mut farm = Farm::new(PHONE, steps);
    let bin = farm.file("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("adb"), include_str!("adb_stand_in.sh")).unwrap();
    fs::set_permissions(bin.join("adb"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(bin.join("fault"), fault).unwrap();
    farm.path = format!("{}:{}", bin.display(), farm.path);
    farm
}

fn two_steps() -> [Value; 2] {
    let doctor = json!({
        "name": "p::doctor",
        "kind": {"is": "doctor"},
        "commands": [["echo", "{\"kernels\":\"neon-dotprod\"}"]],
    });
    [doctor, passing("p::it")]
}

/// Runs with a fault: whether all was well, what was found.
fn run(fault: &str) -> (bool, Value) {
    farm(fault, &two_steps()).run_one("phone")
}

fn n_lost(found: &Value) -> usize {
    found["lost"].as_array().unwrap().len()
}

#[test]
fn a_phone_is_pushed_to_run_and_pulled_from() {
    let farm = farm("", &two_steps());
    let (good, found) = farm.run_one("phone");
    assert!(good, "{found}");
    assert_eq!((n_lost(&found), &found["kernels"]), (0, &json!("neon-dotprod")));
    let calls = fs::read_to_string(farm.file("bin/calls")).unwrap();
    for call in ["push", "shell", "pull"] {
        assert!(calls.contains(call), "{calls}");
    }
}

#[test]
fn a_device_that_vanishes_and_comes_back_is_run_to_the_end() {
    for fault in ["gone_once", "vanish", "short", "no_pull"] {
        let (good, found) = run(fault);
        assert!(good, "{fault}: {found}");
        assert_eq!(n_lost(&found), 1, "{fault}: {found}");
        assert_eq!(found["suites"].as_array().unwrap().len(), 2, "{fault}: each step counts once");
    }
}

#[test]
fn a_device_that_stays_away_is_given_up() {
    let (good, found) = run("gone");
    assert!(!good);
    assert_eq!(n_lost(&found), 3, "{found}");
    assert_eq!(found["error"], "the connection was lost 3 times");
    assert!(found["lost"][0].as_str().unwrap().contains("not found"), "{found}");
}

#[test]
fn a_device_that_does_not_answer_is_tried_again() {
    let steps =
        [tests("p::it", "echo running 1 test; echo test a ... ok; echo 'test result: ok.'")];
    let farm = farm("hang", &steps);
    let short = fs::read_to_string(farm.file("devices.toml")).unwrap();
    let short = short.replace("timeout = 5", "timeout = 1").replace("grace = 1", "grace = 0");
    fs::write(farm.file("devices.toml"), short).unwrap();
    let (good, found) = farm.run_one("phone");
    assert!(good, "{found}");
    assert!(found["lost"][0].as_str().unwrap().contains("no answer"), "{found}");
}

#[test]
fn faults_that_stay_are_not_tried_again() {
    for (fault, says) in [
        ("full", "no space left on the device"),
        ("full_there", "no space left on the device"),
        ("unauthorized", "unauthorized"),
    ] {
        let (good, found) = run(fault);
        assert!(!good && n_lost(&found) == 0, "{fault}: {found}");
        let error = found["error"].as_str().unwrap();
        assert!(error.contains(says), "{fault}: {error}");
    }
}

#[test]
fn exit_codes_of_the_transport_are_not_believed() {
    for fault in ["code_0", "code_1", "terminal"] {
        let (good, found) = run(fault);
        assert!(good, "{fault}: {found}");
        let bad =
            "echo running 1 test; echo test b ... FAILED; echo 'test result: FAILED.'; exit 9";
        let (good, found) = farm(fault, &[tests("p::bad", bad)]).run_one("phone");
        assert!(!good && n_lost(&found) == 0, "{fault}: {found}");
        assert_eq!(not_passed(&found), ["b: \"\""], "{fault}");
    }
}

#[test]
fn a_crash_is_a_failure_with_its_exit_code() {
    let crash = "echo running 1 test; kill -SEGV $$";
    let (good, found) = farm("", &[tests("p::crash", crash)]).run_one("phone");
    let bad = not_passed(&found);
    assert!(!good && bad.len() == 1 && bad[0].contains("exit code 139"), "{bad:?}");
    assert_eq!(n_lost(&found), 0);
}
