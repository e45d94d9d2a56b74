//! Predictors are trained, found beside the model, and used.

use std::path::Path;

use serde_json::Value;

use super::{leanstream, stderr, stdout, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn predictors_are_trained_and_then_found() {
    let dir = tempfile::tempdir().unwrap();
    let pack = path(dir.path(), "tiny.lspack");
    assert_eq!(leanstream(&["pack", MODEL, "-o", &pack]).status.code(), Some(0));
    let text =
        write(dir.path(), "text", "The borrow checker looks at borrows. ".repeat(200).as_bytes());
    let run = ["run", &pack, "-p", "The", "-n", "8", "--temp", "0", "--json", "--mode", "sparse"];
    let missing = stderr(&leanstream(&run));
    assert!(
        missing.contains("tiny.lspred is not there; make it with: leanstream train"),
        "{missing}"
    );
    let train = [
        "train",
        &pack,
        "-f",
        &text,
        "-c",
        "64",
        "--tokens",
        "1000",
        "--steps",
        "2",
        "--windows",
        "1",
        "--size",
        "30",
    ];
    let output = leanstream(&[&train[..], &["--json"]].concat());
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["n_layers"], report["costs"].as_array().unwrap().len()), (&5.into(), 8));
    assert!((0.2..0.4).contains(&report["share"].as_f64().unwrap()), "{report}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "pack, text and predictors: {left:?}");
    let again = leanstream(&train);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("tiny.lspred exists; --force replaces it"));
    for keep in ["0.5", "auto:20"] {
        let output = leanstream(&[&run[..], &["--keep", keep]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(report["mode"], "sparse");
        let (keep, computed) = (&report["keep"], report["computed_fraction"].as_f64().unwrap());
        assert!((computed - keep.as_f64().unwrap()).abs() < 0.12, "{report}");
    }
    let compared = leanstream(&[
        "perplexity",
        &pack,
        "-f",
        &text,
        "-c",
        "64",
        "--chunks",
        "2",
        "--mode",
        "sparse",
        "--json",
    ]);
    let report: Value = serde_json::from_str(&stdout(&compared)).unwrap();
    assert_eq!((&report["choose"], &report["keep"]), (&"predicted".into(), &0.5.into()));
    assert!(report["kl"].as_f64() > Some(0.0), "{report}");
    streams(&pack, &text, &run);
    let other = path(dir.path(), "other.lspack");
    let again = ["pack", MODEL, "-o", &other, "--chunk-kib", "8", "--calibrate", &text];
    assert_eq!(leanstream(&again).status.code(), Some(0));
    let from = path(dir.path(), "tiny.lspred");
    let take = ["train", &other, "--from", &from, "--json"];
    let output = leanstream(&take);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let run = ["run", &other, "-p", "The", "-n", "8", "--temp", "0", "--mode", "sparse"];
    assert_eq!(leanstream(&run).status.code(), Some(0));
    let wrong = leanstream(&[&take[..], &["--force", "--from-pack", &other]].concat());
    assert!(stderr(&wrong).contains("was trained for another pack"), "{}", stderr(&wrong));
}

/// Under a budget only what is chosen is read, as the flags say.
fn streams(pack: &str, text: &str, run: &[&str]) {
    let budget = ["--budget", "1GB"];
    let output = leanstream(&[run, &budget[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["policy"], &report["cache"]), (&"refine".into(), &"priority".into()));
    assert!(report["refinements_per_token"].as_f64() > Some(0.0), "{report}");
    assert_eq!(report["dropped_share"], 0.0);
    let bench = ["bench", pack, "-p", "0", "-n", "6", "-r", "1", "-o", "json", "-f", text];
    let sparse = ["--mode", "sparse", "--policy", "fixed:2", "--cache", "lru", "--price", "0"];
    let record = format!("{pack}.record");
    let output = leanstream(&[&bench[..], &sparse, &budget, &["--record", &record]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(std::fs::read(&record).unwrap().starts_with(b"LSTR"));
    assert!(!std::fs::exists(format!("{record}.part")).unwrap());
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let row = &rows[0];
    assert_eq!((&row["policy"], &row["cache"]), (&"fixed:2".into(), &"lru".into()));
    assert_eq!((&row["price"], &row["by_worth"]), (&0.0.into(), &true.into()));
    assert!(row["rank_us"].as_f64() > Some(0.0) && row["cache_bytes"].as_u64() > Some(0), "{row}");
    assert!(row["ppl"].as_f64() > Some(1.0) && row["p50_ms"].as_f64() > Some(0.0), "{row}");
    let long = ["bench", pack, "-p", "0", "-n", "100000", "-o", "json", "-f", text];
    let short = leanstream(&long);
    assert!(stderr(&short).contains("use a longer text, or a smaller -n or -r"));
    for (flags, message) in [
        (&["--policy", "oneshot"][..], "--policy goes with --mode sparse by predictors"),
        (&["--cache", "priority"], "--cache priority goes with --mode sparse"),
        (&["--mode", "sparse", "--budget", "1GB", "--cache", "none"], "goes with --mode exact"),
        (&["--record", "record"], "--record goes with --mode sparse by predictors"),
        (&["--policy", "sometimes"], "no policy is called \"sometimes\""),
        (&["--reach", "0.5"], "expected a number from 1 on"),
    ] {
        let output = leanstream(&[&bench[..10], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{flags:?}: {}", stderr(&output));
    }
}
