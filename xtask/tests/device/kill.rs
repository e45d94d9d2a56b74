//! Runs that are ended from outside leave nothing behind, wherever they are.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{Farm, LOCAL, adb, processes_in, ssh, tests};

/// A step that says that it has begun and then takes long, with a process of its own in the back.
fn long() -> [serde_json::Value; 1] {
    let script = "sh -c 'trap \"\" TERM INT HUP; sleep 321 & wait' & touch $TMPDIR/../../../begun; \
                  cd $TMPDIR; sleep 321 & wait";
    [tests("p::long", script)]
}

fn signal(child: &Child, name: &str) {
    signal_pid(child.id(), name);
}

fn signal_pid(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a run on `device` and waits until its step is under way.
fn begun(farm: &Farm, device: &str) -> Child {
    let child = farm.driver(device).spawn().unwrap();
    wait_until("the step", || farm.file("begun").exists());
    child
}

fn ended_by(farm: &Farm, device: &str, name: &str) {
    let mut child = begun(farm, device);
    assert!(!farm.left().is_empty());
    signal(&child, name);
    let status = child.wait().unwrap();
    assert!(!status.success());
    farm.assert_nothing_is_left();
    fs::remove_file(farm.file("begun")).unwrap();
    fs::remove_dir_all(farm.file("out")).unwrap();
}

#[test]
fn a_run_in_the_middle_of_a_step() {
    let (here, phone) = (Farm::new(LOCAL, &long()), adb::farm("", &long()));
    for name in ["INT", "TERM", "KILL"] {
        ended_by(&here, "here", name);
        ended_by(&phone, "phone", name);
    }
    let Some(server) = ssh::server(&long()) else { return };
    for name in ["INT", "TERM", "KILL"] {
        ended_by(&server.farm, "board", name);
    }
}

/// Kills runs on `device`, each `step` later in its life than the one before.
fn killed_at_any_moment(farm: &Farm, device: &str, rounds: u32, step: Duration) {
    for round in 0..rounds {
        let mut child = farm.driver(device).spawn().unwrap();
        std::thread::sleep(step * round);
        signal(&child, "KILL");
        child.wait().unwrap();
        farm.assert_nothing_is_left();
        let _ = fs::remove_dir_all(farm.file("out"));
    }
}

#[test]
fn a_run_at_any_moment() {
    killed_at_any_moment(&Farm::new(LOCAL, &long()), "here", 24, Duration::from_millis(4));
    killed_at_any_moment(&adb::farm("", &long()), "phone", 12, Duration::from_millis(10));
    let Some(server) = ssh::server(&long()) else { return };
    killed_at_any_moment(&server.farm, "board", 8, Duration::from_millis(120));
}

#[test]
fn what_a_killed_keeper_leaves_is_removed_by_the_next_run() {
    let farm = Farm::new(LOCAL, &long());
    let mut child = begun(&farm, "here");
    let here = farm.dir.path().to_owned();
    let keepers = move || -> Vec<u32> {
        let all = processes_in(&here).into_iter();
        let keepers = all.filter(|(_, command)| command.contains("read -r word"));
        keepers.map(|(pid, _)| pid).collect()
    };
    // The driver first: it would see to the folder otherwise.
    signal(&child, "STOP");
    keepers().into_iter().for_each(|pid| signal_pid(pid, "KILL"));
    signal(&child, "KILL");
    child.wait().unwrap();
    assert!(farm.file("work").exists(), "nobody was left to remove it");
    fs::remove_dir_all(farm.file("out")).unwrap();

    let list = fs::read_to_string(farm.file("bundle/bundle.json")).unwrap();
    let mut list: serde_json::Value = serde_json::from_str(&list).unwrap();
    list["steps"] = serde_json::json!([super::passing("p::it")]);
    fs::write(farm.file("bundle/bundle.json"), list.to_string()).unwrap();
    let (good, found) = farm.run_one("here");
    assert!(good, "{found}");
    let log = fs::read_to_string(farm.file("out/here/log.txt")).unwrap();
    assert!(log.contains("removing what an earlier run left"), "{log}");
}
