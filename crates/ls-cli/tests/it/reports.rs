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
fn doctor_says_what_there_is() {
    let text = stdout(&leanstream(&["doctor"]));
    for name in ["cores", "simd", "memory", "disk", "vulkan"] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn doctor_tries_out_a_processor_only_when_it_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let processor = |report: &Value| {
        let devices = report["vulkan"]["devices"].as_array().cloned().unwrap_or_default();
        devices.into_iter().find(|device| device["kind"] == "processor")
    };
    let Some(listed) = processor(&examined_with(&["doctor", "--json"], cache.path())) else {
        let required = std::env::var_os("LEANSTREAM_REQUIRE_VULKAN").is_some();
        assert!(!required, "Vulkan is required, and there is no driver for processors");
        eprintln!("skipped: no Vulkan driver for processors");
        return;
    };
    assert!(listed["found"].is_null() && listed["is_chosen"] == false, "{listed}");
    let name = listed["name"].as_str().unwrap();
    let tried = examined_with(&["doctor", "--json", "--gpu", name], cache.path());
    let tried = processor(&tried).unwrap();
    let found = &tried["found"];
    assert_eq!((&tried["is_chosen"], &found["failures"]), (&true.into(), &Value::Array(vec![])));
    assert_eq!(found["control"][0], "staged", "{found}");
    assert!(found["round_trips"][0]["median_us"].as_f64().unwrap() > 0.0);
    assert!(found["copies"]["upload_gb_per_s"].as_f64().unwrap() > 0.0);
    assert!(found["limits"]["max_buffer_bytes"].as_u64().unwrap() > 0);
    // What was found is known from now on.
    let kept = std::fs::read_dir(cache.path().join("leanstream/vulkan")).unwrap().count();
    assert_eq!(kept, 1);
    let text = command(&["doctor", "--gpu", name]).env("XDG_CACHE_HOME", cache.path()).output();
    let text = stdout(&text.unwrap());
    for part in ["taken by --device vulkan", "self-test: kernels ", "round trip: staged "] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_machine_without_the_loader_is_told_what_to_install() {
    // No driver is found then; whether there is a loader is the machine's matter.
    let mut command = command(&["doctor", "--json"]);
    let output = command.env("VK_DRIVER_FILES", "/no/such").env("VK_ICD_FILENAMES", "/no/such");
    let report: Value = serde_json::from_str(&stdout(&output.output().unwrap())).unwrap();
    let problem = report["vulkan"]["problem"].as_str().unwrap_or_default();
    assert!(
        problem.contains("mesa-vulkan-drivers") || problem.contains("built without"),
        "{report}"
    );
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
