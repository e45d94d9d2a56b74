//! The commands on a real, if small, model: trained on a book about Rust, 256 tokens of context.

use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::Value;

use super::{command, leanstream, stderr, stdout, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
const PROMPT: &str = "The borrow checker";

/// Runs the program, which must succeed silently, and parses what it prints.
fn json(args: &[&str]) -> Value {
    let output = leanstream(args);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{args:?}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn run_json(more: &[&str]) -> Value {
    json(&[&["run", MODEL, "-p", PROMPT, "--json"], more].concat())
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn run_reports_text_tokens_and_metrics() {
    let report = run_json(&["--temp", "0", "-n", "12"]);
    for key in ["text", "tokens", "prompt_tokens", "tok_per_s", "ttft_ms", "device", "mode", "keep"]
    {
        assert!(keys(&report).contains(&key), "{key}");
    }
    assert_eq!(report["tokens"], 12);
    assert_eq!(report["token_ids"].as_array().unwrap().len(), 12);
    assert_eq!(report["finish_reason"], "max_tokens");
    assert!(report["tok_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["peak_rss_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn run_streams_the_same_text_that_it_reports() {
    let args = ["run", MODEL, "-p", PROMPT, "--temp", "0", "-n", "12"];
    let output = leanstream(&args);
    assert_eq!(output.status.code(), Some(0));
    let report = json(&[&args[..], &["--json"]].concat());
    assert_eq!(stdout(&output), format!("{}\n", report["text"].as_str().unwrap()));
}

#[test]
fn a_seed_repeats_a_text_and_another_gives_another() {
    let text = |seed| run_json(&["-n", "30", "--seed", seed])["text"].clone();
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn the_prompt_can_come_from_a_file_and_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "prompt.txt", format!("{PROMPT}\n").as_bytes());
    let expected = run_json(&["-n", "1"])["prompt_ids"].clone();
    let from_file = json(&["run", MODEL, "-f", &file, "-n", "1", "--json"]);
    assert_eq!(from_file["prompt_ids"], expected);

    let mut child = command(&["run", MODEL, "-n", "1", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{PROMPT}").unwrap();
    let output = child.wait_with_output().unwrap();
    let from_stdin: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(from_stdin["prompt_ids"], expected);
}

#[test]
fn a_stop_string_ends_the_text_before_itself() {
    let free = run_json(&["--temp", "0", "-n", "20"])["text"].as_str().unwrap().to_string();
    let stop = &free[8..12];
    let report = run_json(&["--temp", "0", "-n", "20", "--stop", stop]);
    assert_eq!(report["finish_reason"], "stop_string");
    assert_eq!(report["text"], free[..free.find(stop).unwrap()]);
}

#[test]
fn a_full_context_is_a_reason_to_end() {
    let report = run_json(&["-n", "-1", "-c", "16"]);
    assert_eq!(report["finish_reason"], "context_full");
    let prompt_tokens = report["prompt_tokens"].as_u64().unwrap();
    assert_eq!(prompt_tokens + report["tokens"].as_u64().unwrap(), 17);
}

#[test]
fn prompts_that_do_not_fit_say_what_to_do() {
    let output = leanstream(&["run", MODEL, "-p", PROMPT, "-c", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("use a larger context (--context)"), "{}", stderr(&output));
}

#[test]
fn a_context_larger_than_memory_is_refused() {
    let output = leanstream(&["run", MODEL, "-p", PROMPT, "-c", "4000000000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    let message = stderr(&output);
    assert!(message.contains("a context of 4000000000 tokens needs 6.98 TiB"), "{message}");
}

#[test]
fn a_chat_without_a_template_says_what_to_do() {
    let output = leanstream(&["run", MODEL, "--chat", "-p", "Hello"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("no chat template; give a prompt with -p"));
}

#[test]
fn perplexity_is_lower_for_english_than_for_the_same_letters_reversed() {
    let dir = tempfile::tempdir().unwrap();
    let english = "Rust has a number of features that allow you to manage your code. \
        The compiler will tell you that the value is used after it was moved. "
        .repeat(8);
    let reversed: String = english.chars().rev().collect();
    let measure = |name, text: &str| {
        let file = write(dir.path(), name, text.as_bytes());
        json(&["perplexity", MODEL, "-f", &file, "-c", "64", "--json"])
    };
    let (english, reversed) = (measure("a", &english), measure("b", &reversed));
    let ppl = |report: &Value| report["ppl"].as_f64().unwrap();
    assert!(ppl(&english) * 4.0 < ppl(&reversed), "{english} {reversed}");
    let chunks = english["chunks"].as_u64().unwrap();
    assert_eq!(english["tokens"], chunks * 31);
    for key in ["stderr", "mode", "keep"] {
        assert!(keys(&english).contains(&key), "{key}");
    }
}

#[test]
fn a_text_too_short_for_perplexity_says_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "short", b"Just a few words.");
    let output = leanstream(&["perplexity", MODEL, "-f", &file, "-c", "64"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("two windows of 64 are needed"), "{}", stderr(&output));
}

#[test]
fn bench_has_a_row_for_each_test() {
    let rows = json(&["bench", MODEL, "-p", "8", "-n", "4", "-r", "2", "-t", "1", "-o", "json"]);
    let tests: Vec<&Value> = rows.as_array().unwrap().iter().map(|row| &row["test"]).collect();
    assert_eq!(tests, ["pp8", "tg4"]);
    assert!(rows[0]["floor_ratio"].is_null());
    assert!(rows[1]["floor_ratio"].as_f64().unwrap() > 0.0);
    assert_eq!((&rows[0]["threads"], &rows[0]["model"]), (&1.into(), &"tiny-book".into()));
    assert!(rows[0]["avg_ts"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_prints_the_finished_rows_before_it_fails() {
    let args = ["bench", MODEL, "no/such.gguf", "-p", "4", "-n", "0", "-r", "1", "--json"];
    let output = leanstream(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no/such.gguf"), "{}", stderr(&output));
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["test"]), (1, &"pp4".into()));
}

#[test]
fn bench_advises_flags_that_it_has() {
    let output = leanstream(&["bench", MODEL, "-p", "4000000000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("use a smaller -p or -n"), "{}", stderr(&output));
}

#[test]
fn mode_and_device_name_what_there_is() {
    let report = run_json(&["-n", "1", "--mode", "exact", "--device", "cpu"]);
    assert_eq!((&report["mode"], &report["device"]), (&"exact".into(), &"cpu".into()));
}

#[test]
fn inspect_goes_on_without_a_usable_tokenizer() {
    const KEY: &[u8] = b"tokenizer.ggml.model";
    let mut bytes = std::fs::read(MODEL).unwrap();
    let key = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap();
    // After the key: 4 bytes of type, 8 of length, then the name of a kind of tokenizer.
    bytes[key + KEY.len() + 12] = b'?';
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "odd.gguf", &bytes);
    let report = json(&["inspect", &path, "--json"]);
    assert!(report["tokenizer"].is_null());
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("odd.gguf: no usable tokenizer: "), "{warning}");
    assert!(!report["tensors"].as_array().unwrap().is_empty());
    let text = stdout(&leanstream(&["inspect", &path]));
    assert!(text.contains("warning: ") && text.contains("no usable tokenizer"), "{text}");
}

#[test]
fn inspect_writes_choices_as_json_does() {
    let config = json(&["inspect", MODEL, "--json"])["config"].clone();
    let choices = [&config["rope"]["layout"], &config["rope"]["scaling"], &config["activation"]];
    assert_eq!(choices, ["interleaved", "none", "silu"]);
}

#[test]
fn inspect_knows_tensors_types_and_memory() {
    let report = json(&["inspect", MODEL, "--json", "--context", "100"]);
    assert_eq!(report["architecture"], "llama");
    let kv = report["memory"]["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!(report["memory"]["kv_bytes"], kv * 100);
    let bytes = |rows: &Value| -> u64 {
        rows.as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(bytes(&report["tensors"]), report["weight_bytes"]);
    assert_eq!(bytes(&report["types"]), report["weight_bytes"]);
    let text = stdout(&leanstream(&["inspect", MODEL, "--tensors"]));
    assert!(text.contains("token_embd.weight"), "{text}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_text_cleanly() {
    // Far more tokens than can be computed before the signal arrives.
    let args = ["run", MODEL, "-p", PROMPT, "-n", "-1", "-c", "100000", "-v"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(rest.ends_with('\n'));
    assert!(stderr(&output).contains("ended by an interruption"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn a_model_that_is_cut_while_it_runs_ends_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "copy.gguf", &std::fs::read(MODEL).unwrap());
    let args = ["run", &path, "-p", PROMPT, "-n", "-1", "-c", "100000"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    // Which comes first depends on where in a token the cut falls.
    let expected = ["a model file was cut or could not be read", "the file was cut from"];
    assert!(expected.iter().any(|text| message.contains(text)), "{message}");
}
