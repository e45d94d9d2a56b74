//! The program with MLPs on a GPU: lavapipe, which computes on the processor. Without Vulkan the tests are
//! skipped, unless `LEANSTREAM_REQUIRE_VULKAN` is set.

use std::path::Path;
use std::process::Output;
use std::sync::LazyLock;

use serde_json::Value;

use super::{command, stderr, stdout};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/real/book-held.txt");
const PROMPT: &str = "When a value goes out of scope,";

/// The self-test runs once for all tests.
static CACHE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

fn run(args: &[&str]) -> Output {
    command(args).env("XDG_CACHE_HOME", CACHE.path()).output().unwrap()
}

/// What a command says with the GPU; `None`, and the reason is said, where there is no Vulkan.
fn with_gpu(args: &[&str]) -> Option<Value> {
    let output = run(&[args, &["--json", "--device", "vulkan", "--gpu", "llvmpipe"]].concat());
    if output.status.success() {
        return Some(serde_json::from_str(&stdout(&output)).unwrap());
    }
    let said = stderr(&output);
    let reasons = ["loader is missing", "no Vulkan driver", "no Vulkan device", "without Vulkan"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    let required = std::env::var_os("LEANSTREAM_REQUIRE_VULKAN").is_some();
    assert!(!required, "Vulkan is required: {said}");
    eprintln!("skipped: {said}");
    None
}

fn on_cpu(args: &[&str]) -> Value {
    let output = run(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn packed(dir: &Path) -> String {
    let path = dir.join("tiny.lspack").to_str().unwrap().to_owned();
    on_cpu(&["pack", MODEL, "-o", &path, "--chunk-kib", "4"]);
    path
}

#[test]
fn a_gpu_gives_the_same_text_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let args = ["run", &path, "-p", PROMPT, "-n", "12", "--temp", "0"];
    let cpu = on_cpu(&args);
    for more in [&[][..], &["--budget", "512MiB"], &["--gpu-memory", "100KiB"]] {
        let Some(gpu) = with_gpu(&[&args[..], more].concat()) else { return };
        assert_eq!(gpu["text"], cpu["text"], "{more:?}");
        assert_eq!((&gpu["device"], &gpu["gpu_control"]), (&"vulkan".into(), &"staged".into()));
        assert!(gpu["gpu"].as_str().unwrap().contains("llvmpipe"), "{gpu}");
        // Within a budget it reads the cache in place.
        let (held, holds) = (gpu["gpu_bytes"].as_u64().unwrap(), more.first() != Some(&"--budget"));
        assert!((held > 0) == holds && gpu["gpu_notice"].is_null(), "{gpu}");
    }
    assert_eq!((&cpu["device"], &cpu["gpu"]), (&"cpu".into(), &Value::Null));
}

#[test]
fn perplexity_and_bench_say_where_they_ran() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    let args = ["perplexity", &path, "-f", TEXT, "-c", "64", "--chunks", "3"];
    let Some(gpu) = with_gpu(&args) else { return };
    let ppl = |report: &Value| report["ppl"].as_f64().unwrap();
    let ratio = ppl(&gpu) / ppl(&on_cpu(&args));
    assert!((ratio - 1.0).abs() < 0.005, "{ratio}");
    assert_eq!(gpu["device"], "vulkan");
    let control = ["--gpu-control", "blocking"];
    let bench = ["bench", &path, "-p", "8", "-n", "4", "-r", "1"];
    let rows = with_gpu(&[&bench[..], &control].concat()).unwrap();
    for row in rows.as_array().unwrap() {
        assert_eq!((&row["device"], &row["gpu_control"]), (&"vulkan".into(), &"blocking".into()));
    }
}

#[test]
fn what_does_not_go_together_is_wrong_usage() {
    for (args, part) in [
        (&["--gpu", "x"][..], "--gpu goes with --device vulkan"),
        (&["--gpu-memory", "1GB"], "--gpu-memory goes with --device vulkan"),
        (&["--device", "vulkan", "--mode", "sparse"], "--mode sparse is computed on the processor"),
    ] {
        let output = run(&[&["run", MODEL, "-p", PROMPT], args].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn a_gpu_that_cannot_be_used_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(dir.path());
    for (model, gpu, part) in [
        (MODEL, "llvmpipe", "pack it first"),
        (&path, "abacus", "no Vulkan device that is called abacus; there are: "),
    ] {
        let args = ["run", model, "-p", PROMPT, "--device", "vulkan", "--gpu", gpu];
        let output = run(&args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let absent = ["loader is missing", "no Vulkan driver", "without Vulkan"];
        assert!(said.contains(part) || absent.iter().any(|a| said.contains(a)), "{said}");
    }
}
