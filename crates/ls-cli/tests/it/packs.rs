//! Packs: made, explained, checked, and run within budgets.

use std::fs;
use std::path::Path;

use ls_model::ModelFile;
use serde_json::Value;

use super::{command, leanstream, stderr, stdout, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
const PROMPT: &str = "The borrow checker";
const MIB: u64 = 1 << 20;

/// Runs the program, which must succeed silently, and parses what it prints.
fn json(args: &[&str]) -> Value {
    let output = leanstream(args);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{args:?}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Runs the program, which must fail in one line and without output.
fn failure(args: &[&str]) -> String {
    let output = leanstream(args);
    let message = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()), "{message}");
    assert!(message.starts_with("error: ") && message.lines().count() == 1, "{message}");
    message
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// A pack with many chunks.
fn packed(dir: &Path) -> String {
    let path = dir.join("tiny.lspack").to_str().unwrap().to_owned();
    json(&["pack", MODEL, "-o", &path, "--chunk-kib", "4", "--json"]);
    path
}

/// Changes the byte at `offset`.
fn flip(path: &str, offset: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[usize::try_from(offset).unwrap()] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_pack_gets_the_models_name_and_is_replaced_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let pack = |more: &[&str]| {
        let args = [&["pack", MODEL, "--json"], more].concat();
        command(&args).current_dir(dir.path()).output().unwrap()
    };
    let output = pack(&[]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let expected = [
        "path",
        "file_bytes",
        "source_bytes",
        "resident_bytes",
        "row_bytes",
        "chunk_bytes",
        "stored_chunk_bytes",
        "n_chunks",
        "record_bytes",
        "neurons_per_chunk",
        "down",
        "seconds",
    ];
    assert_eq!((keys(&report), stderr(&output)), (expected.to_vec(), String::new()));
    let path = dir.path().join("tiny-book.lspack");
    assert_eq!(fs::metadata(&path).unwrap().len(), report["file_bytes"].as_u64().unwrap());

    fs::write(&path, "mine").unwrap();
    let output = pack(&[]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("exists already"), "{}", stderr(&output));
    assert!(stderr(&output).contains("(--force)"), "{}", stderr(&output));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(pack(&["--force"]).status.code(), Some(0));
    assert!(fs::metadata(&path).unwrap().len() > 4);

    fs::create_dir(dir.path().join("sub")).unwrap();
    assert_eq!(pack(&["-o", "sub"]).status.code(), Some(0));
    assert!(dir.path().join("sub/tiny-book.lspack").is_file());
    assert_eq!(files(dir.path()), 2, "nothing else is left");
}

#[test]
fn what_cannot_be_packed_says_why_and_leaves_nothing() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = dir.path().join("out.lspack").to_str().unwrap().to_owned();
    let pack = packed(other.path());
    let text = write(other.path(), "text.json", b"by heart");
    let few = write(other.path(), "few.json", b"[[1, 2], [3, 4]]");
    let under_a_file = format!("{few}/out.lspack");
    for (args, reason) in [
        (&["-o", &out, "--scores", &text][..], "text.json is not an array of arrays of numbers"),
        (
            &["-o", &out, "--scores", &few],
            "few.json must have 5 arrays, one for each layer, of 512",
        ),
        (&["-o", &out, "--scores", "no/such.json"], "cannot read no/such.json"),
        (&["-o", "no/such/folder/out.lspack"], "cannot create no/such/folder/out.lspack"),
        (&["-o", &under_a_file], "few.json/out.lspack"),
        (&["-o", MODEL, "--force"], "is the model itself"),
    ] {
        let message = failure(&[&["pack", MODEL], args].concat());
        assert!(message.contains(reason), "{message}");
    }
    let message = failure(&["pack", &pack, "-o", &out]);
    assert!(message.contains("is a pack already"), "{message}");
    assert_eq!((files(dir.path()), files(other.path())), (0, 3));
}

#[test]
fn scores_order_neurons() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let layer: Vec<usize> = (0..512).collect();
    let scores = serde_json::to_vec(&vec![layer; 5]).unwrap();
    let scores = write(dir.path(), "scores.json", &scores);
    let ordered = dir.path().join("ordered.lspack").to_str().unwrap().to_owned();
    json(&["pack", MODEL, "-o", &ordered, "--scores", &scores, "--json"]);
    let reordered = |path: &str| json(&["inspect", path, "--json"])["pack"]["reordered"].clone();
    assert_eq!((reordered(&path), reordered(&ordered)), (false.into(), true.into()));
    let order = ModelFile::open(&ordered).unwrap().pack().unwrap().order(0).unwrap().to_vec();
    assert_eq!(order[..3], [511, 510, 509]);
}

#[test]
fn a_text_orders_neurons_once_and_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/real/book-held.txt");
    let (by_text, by_scores, scores) = (place("a.lspack"), place("b.lspack"), place("s.json"));
    let calibrate = ["--calibrate", text, "--calibrate-tokens", "256", "--write-scores", &scores];
    json(&[&["pack", MODEL, "-o", &by_text, "--json"], &calibrate[..]].concat());
    let found: Vec<Vec<f32>> = serde_json::from_slice(&fs::read(&scores).unwrap()).unwrap();
    let model = ModelFile::open(&by_text).unwrap();
    for (layer, scores) in found.iter().enumerate() {
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-3);
        let order = model.pack().unwrap().order(layer).unwrap();
        assert!(order.is_sorted_by(|a, b| scores[*a as usize] >= scores[*b as usize]));
    }
    json(&["pack", MODEL, "-o", &by_scores, "--scores", &scores, "-t", "1", "--json"]);
    assert_eq!(fs::read(&by_text).unwrap(), fs::read(&by_scores).unwrap());

    let perplexity = |model: &str| {
        let args = ["perplexity", model, "-f", text, "-c", "128", "--chunks", "2", "--json"];
        json(&args)["ppl"].as_f64().unwrap()
    };
    let (ordered, natural) = (perplexity(&by_text), perplexity(&packed(dir.path())));
    assert!((ordered / natural - 1.0).abs() < 0.01, "{ordered} and {natural}");
    let message = failure(&["pack", MODEL, "-o", &place("c.lspack"), "--calibrate", "no/such.txt"]);
    assert!(message.contains("no/such.txt"), "{message}");
}

#[test]
fn inspect_explains_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let text = stdout(&leanstream(&["inspect", &path, "--verify"]));
    assert!(text.contains("\nsmallest budget  "), "{text}");
    assert!(text.contains("streamed for each token\n"), "{text}");
    // Budgets count what the program itself holds, which is never twice the same.
    let is_stable = |line: &&str| {
        !line.starts_with("smallest budget")
            && !line.contains(" MiB  ")
            && !line.ends_with("streamed for each token")
    };
    let text: Vec<&str> = text.lines().filter(is_stable).collect();
    let text = text.join("\n").replace(&path, "PATH").replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(text);
}

#[test]
fn inspect_knows_the_budgets_of_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let pack = json(&["inspect", &path, "--json", "-c", "100"])["pack"].clone();
    let smallest = &pack["smallest_budget"]["exact"];
    let bytes = |value: &Value| value.as_u64().unwrap();
    let parts = ["process_bytes", "resident_bytes", "kv_bytes", "buffer_bytes", "streaming_bytes"];
    let sum: u64 = parts.iter().map(|part| bytes(&smallest[part])).sum();
    assert_eq!(sum, bytes(&smallest["budget_bytes"]));
    let rows = pack["budgets"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["context"] == 100 && bytes(&row["budget_bytes"]) > sum));
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(bytes(&row["streamed_bytes"]))));
    assert_eq!(rows.last().unwrap()["streamed_bytes"], 0);
    let unpacked = json(&["inspect", MODEL, "--json"]);
    assert!(unpacked["pack"].is_null());
    assert_eq!(unpacked["parameters"], json(&["inspect", &path, "--json"])["parameters"]);
}

#[test]
fn a_damaged_pack_is_found_out_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let whole = json(&["inspect", &path, "--verify", "--json"])["verified"].clone();
    assert_eq!((&whole["n_damaged"], whole["damaged"].as_array().unwrap().len()), (&0.into(), 0));
    let (chunk, tensor) = {
        let model = ModelFile::open(&path).unwrap();
        let norm = model.tensors().iter().find(|info| info.name == "output_norm.weight").unwrap();
        (model.pack().unwrap().layers()[2].chunk_offset(3), norm.offset())
    };

    flip(&path, chunk + 9);
    let output = leanstream(&["inspect", &path, "--verify", "--json"]);
    let named = "chunk 3 of layer 2 is damaged";
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(named), "{}", stderr(&output));
    assert!(stderr(&output).contains("pack the model again"), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["verified"]["n_damaged"], 1);
    for budget in ["none", "64MB"] {
        let message = failure(&["run", &path, "-p", PROMPT, "--budget", budget, "--json"]);
        assert!(message.contains(named), "{message}");
    }

    flip(&path, tensor);
    let output = leanstream(&["inspect", &path, "--verify"]);
    assert!(stdout(&output).contains(named), "{}", stdout(&output));
    assert!(stderr(&output).contains("tensor \"output_norm.weight\" is damaged"));
    let message = failure(&["run", &path, "-p", PROMPT, "--budget", "64MB"]);
    assert!(message.contains("tensor \"output_norm.weight\" is damaged"), "{message}");
}

#[test]
fn only_packs_can_be_verified() {
    let output = leanstream(&["inspect", MODEL, "--verify"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
    assert!(stderr(&output).contains("--verify needs a .lspack file"), "{}", stderr(&output));
}

#[test]
fn a_pack_that_was_cut_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let bytes = fs::read(&path).unwrap();
    for len in [bytes.len() - 1, bytes.len() / 2, 5000, 100, 9] {
        let cut = write(dir.path(), "cut.lspack", &bytes[..len]);
        for args in [
            &["inspect", &cut][..],
            &["inspect", &cut, "--verify"],
            &["run", &cut, "-p", "a"],
            &["run", &cut, "-p", "a", "--budget", "64MB"],
            &["bench", &cut, "--budget", "64MB"],
        ] {
            let message = failure(args);
            assert!(message.contains("cut.lspack"), "{message}");
        }
    }
}

#[test]
fn a_budget_changes_nothing_but_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let run = |more: &[&str]| {
        let args = ["run", &path, "-p", PROMPT, "-n", "12", "--temp", "0", "--json", "--budget"];
        json(&[&args[..], more].concat())
    };
    let free = run(&["none"]);
    assert!(free["budget_bytes"].is_null() && free["bytes_read"].is_null(), "{free}");
    let smallest = &json(&["inspect", &path, "--json"])["pack"]["smallest_budget"]["exact"];
    let small = smallest["budget_bytes"].as_u64().unwrap() + 3 * MIB;
    for more in [
        &[&small.to_string()[..]][..],
        &["64MB"],
        &["64MiB", "--cache", "none"],
        &["64MiB", "--cache", "hot", "--io", "pread", "--no-prefetch", "--io-depth", "1"],
    ] {
        let report = run(more);
        for key in ["text", "token_ids"] {
            assert_eq!(report[key], free[key], "{more:?}");
        }
        let bytes = |key: &str| report[key].as_u64().unwrap();
        assert!(bytes("planned_bytes") <= bytes("budget_bytes"), "{report}");
        assert!(bytes("bytes_read") > 0);
    }
    let report = run(&["64MB", "--cache", "none", "--disk-rate", "40MB"]);
    assert_eq!(report["text"], free["text"]);
    let rate = report["disk_mb_per_s"].as_f64().unwrap();
    assert!(rate > 0.0 && rate <= 41.0, "{report}");
    let report = run(&["64MB", "--cache", "none"]);
    assert_eq!((&report["cache"], &report["demand_miss_ratio"]), (&"none".into(), &1.0.into()));
    for key in [
        "text",
        "tokens",
        "prompt_tokens",
        "tok_per_s",
        "ttft_ms",
        "budget_bytes",
        "planned_bytes",
        "peak_rss_bytes",
        "bytes_read",
        "bytes_per_token",
        "stall_miss_ratio",
        "demand_miss_ratio",
        "wasted_ratio",
        "device",
        "mode",
        "keep",
    ] {
        assert!(!report[key].is_null(), "{key}");
    }
}

#[test]
fn a_run_can_say_where_its_budget_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let output = leanstream(&["run", &path, "-p", PROMPT, "-n", "2", "--budget", "64MiB", "-v"]);
    let said = stderr(&output);
    assert!(said.contains("\nbudget 64.0 MiB: program "), "{said}");
    assert!(said.contains("0 B of 1.68 MiB of chunks are read for each token"), "{said}");
    assert!(said.contains("\nstreamed "), "{said}");
}

#[test]
fn a_budget_below_the_floor_is_refused_with_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let text = write(dir.path(), "text", "a word and another ".repeat(100).as_bytes());
    for args in [
        &["run", &path, "-p", PROMPT][..],
        &["bench", &path],
        &["perplexity", &path, "-f", &text, "-c", "64"],
    ] {
        let message = failure(&[args, &["--budget", "1MB"]].concat());
        for part in
            ["at least ", "keys and values", "for streaming", "for the program", "(--budget "]
        {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn perplexity_is_the_same_under_a_budget() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let text = "Rust has a number of features that allow you to manage your code. ".repeat(12);
    let text = write(dir.path(), "text", text.as_bytes());
    let measure = |budget| {
        json(&["perplexity", &path, "-f", &text, "-c", "64", "--json", "--budget", budget])
    };
    let (free, streamed) = (measure("none"), measure("64MB"));
    for key in ["ppl", "stderr", "tokens", "mode", "keep"] {
        assert_eq!(free[key], streamed[key], "{key}");
        assert!(!free[key].is_null(), "{key}");
    }
    assert_eq!(
        (&free["budget_bytes"], &streamed["budget_bytes"]),
        (&Value::Null, &64_000_000.into())
    );
}

#[test]
fn bench_has_the_metrics_of_streaming() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let args = ["bench", &path, "-p", "8", "-n", "4", "-r", "1", "--budget", "64MB"];
    let rows = json(&[&args[..], &["--json", "--cache", "none"]].concat());
    for row in rows.as_array().unwrap() {
        for key in [
            "model",
            "size_bytes",
            "test",
            "avg_ts",
            "stddev_ts",
            "threads",
            "device",
            "mode",
            "keep",
            "cache",
            "budget_bytes",
            "planned_bytes",
            "bytes_per_token",
            "stall_miss_ratio",
            "demand_miss_ratio",
            "stall_ms_per_token",
            "wasted_ratio",
            "peak_rss_bytes",
        ] {
            assert!(!row[key].is_null(), "{key}");
        }
        // Nothing is ranked where everything is needed.
        assert!(row["policy"].is_null());
    }
    let table = stdout(&leanstream(&args));
    assert!(
        table.starts_with("| model | budget | policy | cache | test | t/s | MB/token |"),
        "{table}"
    );
}

#[test]
fn a_model_that_is_no_pack_is_packed_once() {
    let (cache, packs) = (tempfile::tempdir().unwrap(), "leanstream/packs");
    let run = |budget: &str| {
        let args = ["run", MODEL, "-p", PROMPT, "-n", "8", "--temp", "0", "--json"];
        let args = [&args[..], &["--budget", budget]].concat();
        command(&args).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
    };
    let args = ["run", MODEL, "-p", PROMPT, "-c", "4000000000", "--budget", "100MB"];
    let refused = command(&args).env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("use a smaller --context"), "{}", stderr(&refused));
    let refused = run("400KB");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("of its weights cannot be streamed"), "{}", stderr(&refused));
    assert!(!cache.path().join(packs).exists());

    let (first, second) = (run("100MB"), run("100MB"));
    assert!(stderr(&first).contains("packing it once, as "), "{}", stderr(&first));
    assert!(stderr(&second).contains("streaming from "), "{}", stderr(&second));
    assert_eq!(files(&cache.path().join(packs)), 1);
    let report = |output| serde_json::from_str::<Value>(&stdout(output)).unwrap();
    let (first, second) = (report(&first), report(&second));
    assert_eq!((&first["text"], &first["budget_bytes"]), (&second["text"], &100_000_000.into()));

    // One that does not open any more is made again.
    let pack = fs::read_dir(cache.path().join(packs)).unwrap().next().unwrap().unwrap().path();
    fs::File::options().write(true).open(&pack).unwrap().set_len(5000).unwrap();
    let third = run("100MB");
    assert!(stderr(&third).contains("packing it once, as "), "{}", stderr(&third));
    assert_eq!(report(&third)["text"], second["text"]);
}

#[test]
fn bench_compares_predictions_with_those_of_an_exact_run() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path());
    let text =
        write(dir.path(), "text.txt", "A value has one owner at a time. ".repeat(20).as_bytes());
    let other = write(
        dir.path(),
        "other.txt",
        "Threads share what is behind a lock. ".repeat(20).as_bytes(),
    );
    let logits = dir.path().join("exact.logits").to_str().unwrap().to_owned();
    let bench = ["bench", &pack, "-p", "0", "-n", "6", "-r", "2", "--json"];
    let written = json(&[&bench[..], &["-f", &text, "--write-logits", &logits]].concat());
    assert!(written[0]["kl"].is_null() && written[0]["ppl"].is_number(), "{written}");
    let of = ["-f", &text, "--compare-logits", &logits, "--budget", "64MB"];
    let exact = json(&[&bench[..], &of].concat());
    let number = |row: &Value, key: &str| row[0][key].as_f64().unwrap();
    assert!(number(&exact, "kl") < 1e-9 && number(&exact, "top1_agreement") == 1.0, "{exact}");
    assert_eq!(number(&exact, "ppl"), number(&written, "ppl"));
    let shown = leanstream(&[&bench[..8], &of[..4]].concat());
    assert!(stdout(&shown).contains("divergence 0.000, the same likeliest token in 100 %"));
    let message = failure(&[&bench[..], &["-f", &other, "--compare-logits", &logits]].concat());
    assert!(message.contains("the text and -n must be the same"), "{message}");
}
