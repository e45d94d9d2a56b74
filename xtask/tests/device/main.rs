//! `cargo xtask device` as its users run it, on devices that need no hardware: this machine, an sshd that
//! the tests start, and a stand-in for adb. Faults are injected, and runs killed.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod adb;
mod kill;
mod local;
mod ssh;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A farm for one test: an inventory, a bundle, and a place for all that devices hold.
struct Farm {
    dir: tempfile::TempDir,
    path: String,
}

impl Farm {
    /// A farm with the devices of `inventory`, in which `{dir}` stands for the farm's folder.
    fn new(inventory: &str, steps: &[Value]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().to_str().unwrap();
        fs::write(dir.path().join("devices.toml"), inventory.replace("{dir}", here)).unwrap();
        fs::create_dir(dir.path().join("bundle")).unwrap();
        let list = json!({"target": "any", "commit": "none", "steps": steps});
        fs::write(dir.path().join("bundle/bundle.json"), list.to_string()).unwrap();
        Self { dir, path: std::env::var("PATH").unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The driver, about to run on `on`.
    fn driver(&self, on: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["device", "--on", on]).env("PATH", &self.path);
        command.arg("--inventory").arg(self.file("devices.toml"));
        command.arg("--bundle").arg(self.file("bundle")).arg("--out").arg(self.file("out"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs on `on`; says whether all was well, and what was found.
    fn run(&self, on: &str) -> (bool, Value) {
        let output = self.driver(on).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let run = fs::read_to_string(self.file("out/run.json"));
        let run = run.unwrap_or_else(|e| panic!("{e}: {text}"));
        self.assert_nothing_is_left();
        (output.status.success(), serde_json::from_str(&run).unwrap())
    }

    /// Runs on `on` alone.
    fn run_one(&self, on: &str) -> (bool, Value) {
        let (good, run) = self.run(on);
        assert_eq!(run["devices"].as_array().unwrap().len(), 1);
        (good, run["devices"][0].clone())
    }

    /// What runs leave: nothing, in the end. Devices may need a moment to find the driver gone.
    fn assert_nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Folders of runs, and processes in them or in this farm.
    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        for folder in ["work", "work2", "out/staging"] {
            left.extend(self.file(folder).exists().then(|| folder.to_owned()));
        }
        left.extend(
            processes_in(self.dir.path())
                .into_iter()
                .map(|(pid, what)| format!("process {pid}: {what}")),
        );
        left
    }
}

/// Processes whose folder is `folder` or in it, or that name it in their command line, but for the
/// sshd that a test runs there.
fn processes_in(folder: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let is_ours = cwd.starts_with(folder) || command.contains(folder.to_str().unwrap());
        if is_ours && pid != std::process::id() && !command.contains("sshd") {
            found.push((pid, command));
        }
    }
    found
}

/// A device of this machine.
const LOCAL: &str = "[[device]]\nname = \"here\"\ntransport = \"local\"\nwork = \"{dir}/work\"\n\
                     labels = [\"all\"]\npause = 0\n";

/// A step that runs a script as a test program.
fn tests(name: &str, script: &str) -> Value {
    json!({"name": name, "kind": {"is": "tests"}, "commands": [["sh", "-c", script]]})
}

/// A step of one test that passes.
fn passing(name: &str) -> Value {
    tests(name, "echo running 1 test; echo test a ... ok; echo 'test result: ok. 1 passed'")
}

/// Names and outcomes of the cases that did not pass.
fn not_passed(found: &Value) -> Vec<String> {
    let suites = found["suites"].as_array().unwrap();
    let cases = suites.iter().flat_map(|suite| suite["cases"].as_array().unwrap());
    let bad = cases.filter(|case| case["outcome"] != "passed");
    bad.map(|case| format!("{}: {}", case["name"].as_str().unwrap(), case["text"])).collect()
}
