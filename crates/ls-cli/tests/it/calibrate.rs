//! Traces are made, bounded, and not replaced unasked.

use std::path::Path;

use serde_json::Value;

use super::{leanstream, stderr, stdout, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");

fn packed(dir: &Path) -> String {
    let path = dir.join("tiny.lspack").to_str().unwrap().to_owned();
    assert_eq!(leanstream(&["pack", MODEL, "-o", &path]).status.code(), Some(0));
    path
}

#[test]
fn a_trace_is_made_within_its_limit_and_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path());
    let text =
        write(dir.path(), "text", "The borrow checker looks at borrows. ".repeat(200).as_bytes());
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let calibrate = |name: &str, more: &[&str]| {
        let out = out(name);
        let args = ["calibrate", &pack, "-f", &text, "-o", &out, "-c", "64", "--tokens", "900"];
        leanstream(&[&args, more].concat())
    };
    let run = |name: &str, more: &[&str]| -> Value {
        let output = calibrate(name, &[more, &["--trace-limit", "500kB", "--json"]].concat());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let report = run("a", &["--budget", "none"]);
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    let expected = [
        "path",
        "bytes",
        "tokens",
        "sampled_tokens",
        "windows",
        "n_layers",
        "d_model",
        "seed",
        "resumed_at_layer",
        "seconds",
        "threads",
        "budget_bytes",
    ];
    assert_eq!(keys[..expected.len()], expected);
    let bytes = report["bytes"].as_u64().unwrap();
    assert_eq!(bytes, std::fs::metadata(out("a")).unwrap().len());
    assert!((490_000..=500_000).contains(&bytes), "{report}");
    // 900 = 14 · 64 + 4, and four tokens are no window.
    assert_eq!((&report["tokens"], &report["windows"]), (&896.into(), &14.into()));
    assert!(report["sampled_tokens"].as_u64().unwrap() < 896);
    // The same bytes within a budget.
    let floor = stderr(&calibrate("b", &["--budget", "1MB"]));
    assert!(floor.contains("is too small"), "{floor}");
    let report = run("b", &["--budget", "60MiB"]);
    assert!(report["bytes_read"].as_u64().unwrap() > 0, "{report}");
    assert!(std::fs::read(out("a")).unwrap() == std::fs::read(out("b")).unwrap());

    let again = calibrate("a", &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).ends_with("(--force)\n"), "{}", stderr(&again));
    run("a", &["--force"]);
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path());
    let text = write(dir.path(), "text", b"Too short");
    let out = dir.path().join("out").to_str().unwrap().to_owned();
    let failure = |model: &str, more: &[&str]| {
        let args = ["calibrate", model, "-f", &text, "-o", &out];
        let output = leanstream(&[&args, more].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
        stderr(&output)
    };
    assert!(failure(MODEL, &[]).contains("leanstream pack"));
    assert!(failure(&pack, &[]).contains("too few to record"));
    let text = write(dir.path(), "text", "The borrow checker looks. ".repeat(20).as_bytes());
    let error = failure(&pack, &["--trace-limit", "100"]);
    assert!(error.contains("one token takes") && error.ends_with("(--trace-limit)\n"), "{error}");
    let args = ["calibrate", &pack, "-f", &text, "--trace-limit", "auto"];
    assert_eq!(leanstream(&args).status.code(), Some(2));
}
