use super::{command, leanstream, stderr, stdout};

#[test]
fn doctor_prints_one_json_object() {
    let output = leanstream(&["doctor", "--json"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
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
fn a_reader_that_goes_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["doctor"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}
