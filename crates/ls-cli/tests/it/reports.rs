use serde_json::Value;

use super::{command, leanstream, stderr, stdout};

/// What `doctor` says, with a cache folder of its own.
fn examined(args: &[&str]) -> Value {
    let cache = tempfile::tempdir().unwrap();
    examined_with(args, cache.path())
}

fn examined_with(args: &[&str], cache: &std::path::Path) -> Value {
    let output = command(args).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn doctor_prints_one_json_object() {
    let report = examined(&["doctor", "--json"]);
    assert!(report["cores"]["usable"].as_u64().unwrap() >= 1);
    assert!(report["simd"].is_array());
    assert!(report["memory"]["available_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn doctor_says_what_it_did_not_examine() {
    let text = stdout(&leanstream(&["doctor"]));
    for name in ["cores", "simd", "memory", "not examined"] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn doctor_measures_a_disk_once_and_leaves_no_file_on_it() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().to_str().unwrap();
    let first = examined_with(&["doctor", "--json", "--disk", path], cache.path());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let disk = &first["disk"];
    assert_eq!(disk["is_known"], false);
    // Some file systems answer from memory, in times that fit no curve; then it says so.
    assert_ne!(disk["probe"].is_null(), disk["failure"].is_null(), "{disk}");
    if disk["failure"].is_null() {
        let second = examined_with(&["doctor", "--json", "--disk", path], cache.path());
        assert_eq!(second["disk"]["is_known"], true);
        assert_eq!(second["disk"]["probe"], disk["probe"]);
        let rows = disk["probe"]["table"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["mb_per_s"].as_f64().unwrap() > 0.0));
        let fresh = examined_with(&["doctor", "--json", "--disk", path, "--fresh"], cache.path());
        assert_eq!(fresh["disk"]["is_known"], false);
    }
}

#[test]
fn a_disk_that_is_not_there_is_an_error() {
    let output = leanstream(&["doctor", "--disk", "no/such"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("no/such"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["doctor"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}
