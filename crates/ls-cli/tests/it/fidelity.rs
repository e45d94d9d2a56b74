//! Sparse computation is compared with dense, and flags without meaning are refused.

use std::path::Path;

use serde_json::Value;

use super::{leanstream, stderr, stdout, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");

fn packed(dir: &Path) -> String {
    let path = dir.join("tiny.lspack").to_str().unwrap().to_owned();
    assert_eq!(leanstream(&["pack", MODEL, "-o", &path]).status.code(), Some(0));
    path
}

fn text(dir: &Path) -> String {
    write(dir, "text", "The borrow checker looks at borrows. ".repeat(60).as_bytes())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_choice_is_compared_with_dense_and_the_oracle() {
    let dir = tempfile::tempdir().unwrap();
    let (pack, text) = (packed(dir.path()), text(dir.path()));
    let run = |more: &[&str]| -> Value {
        let args = ["perplexity", &pack, "-f", &text, "-c", "64", "--chunks", "4", "--json"];
        let output = leanstream(&[&args, more].concat());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let sparse = ["--mode", "sparse", "--budget", "none", "--keep", "0.5"];
    let exact = run(&["--budget", "none"]);
    let random = run(&[&sparse[..], &["--choose", "random"]].concat());
    assert_eq!(random["dense_ppl"], exact["ppl"]);
    assert_eq!((&random["mode"], &random["keep"]), (&"sparse".into(), &0.5.into()));
    assert_eq!((&random["choose"], &random["unit"]), (&"random".into(), &"neuron".into()));
    assert!((number(&random["computed_fraction"]) - 0.5).abs() < 0.01);
    assert_eq!(random["oracle_ppl"], random["oracle"]["ppl"]);
    let rise = number(&random["ppl"]) / number(&exact["ppl"]) - 1.0;
    assert!((number(&random["rise"]) - rise).abs() < 1e-9, "{random}");
    assert!(number(&random["kl"]) > number(&random["oracle"]["kl"]));
    assert!(number(&random["oracle"]["top1_agreement"]) <= 1.0);
    assert!(random["completions"].is_null());
    // By whole chunks, with completions.
    let more = ["--choose", "oracle", "--unit", "chunk", "--completions"];
    let oracle = run(&[&sparse[..], &more].concat());
    assert_eq!(oracle["ppl"], oracle["oracle_ppl"]);
    assert!((number(&oracle["touched_fraction"]) - 0.5).abs() < 0.1, "{oracle}");
    assert_eq!((&oracle["completions"]["prompts"], &oracle["unit"]), (&50.into(), &"chunk".into()));
    assert_eq!(oracle["completions"], oracle["oracle_completions"]);
    assert!(number(&oracle["completions"]["prefix"]) <= 1.0);
}

#[test]
fn the_figures_stand_side_by_side_and_the_oracle_is_missing_within_a_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (pack, text) = (packed(dir.path()), text(dir.path()));
    let run = |more: &[&str]| {
        let args = ["perplexity", &pack, "-f", &text, "-c", "64", "--mode", "sparse", "--choose"];
        leanstream(&[&args, more].concat())
    };
    let output = run(&["hot", "--budget", "none"]);
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 5), "{lines:?}");
    for (line, start) in lines.iter().skip(1).zip(["dense", "oracle", "hot"]) {
        assert!(line.starts_with(start), "{line}");
    }
    let output = run(&["hot", "--budget", "60MiB"]);
    assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(0), 4));
    assert!(stderr(&output).contains("the oracle is left out"), "{}", stderr(&output));
    let output = run(&["oracle", "--budget", "60MiB"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--budget none"), "{}", stderr(&output));
}

#[test]
fn what_means_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (pack, text) = (packed(dir.path()), text(dir.path()));
    let usage = |more: &[&str]| {
        let output = leanstream(&[&["perplexity", &pack, "-f", &text], more].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
        stderr(&output)
    };
    for flags in
        [&["--keep", "0.5"][..], &["--choose", "hot"], &["--unit", "chunk"], &["--completions"]]
    {
        assert_eq!(usage(flags), format!("error: {} goes with --mode sparse\n", flags[0]));
    }
    usage(&["--mode", "sparse", "--keep", "1.5"]);
    let output = leanstream(&["perplexity", MODEL, "-f", &text, "--mode", "sparse"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("leanstream pack"), "{}", stderr(&output));
}
