//! What a run found: of each device, its facts, its tests, its figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A whole run: `run.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Name of the run: when it began.
    pub run: String,
    pub devices: Vec<Found>,
}

/// What was found on one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    pub device: String,
    pub transport: String,
    pub target: String,
    pub commit: String,
    /// Speeds there say nothing about hardware.
    pub emulated: bool,
    /// What the device says of itself: model, SoC, kernel, drivers.
    pub facts: BTreeMap<String, String>,
    /// Instruction set that compute code chose.
    pub kernels: Option<String>,
    /// All that `leanstream doctor` said.
    pub doctor: Value,
    pub suites: Vec<Suite>,
    pub figures: Vec<Figure>,
    pub seconds: f64,
    /// Why the connection was lost, once for each time.
    pub lost: Vec<String>,
    /// Why the run could not be finished on this device.
    pub error: Option<String>,
}

/// The tests of one program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Suite {
    pub name: String,
    pub seconds: f64,
    pub cases: Vec<Case>,
}

/// A test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub name: String,
    pub outcome: Outcome,
    /// What it printed, or why it was skipped.
    #[serde(default)]
    pub text: String,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Something measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub unit: String,
    /// The more the better.
    pub mean: f64,
    /// Standard deviation over repetitions; `None` for something done once.
    pub sd: Option<f64>,
}

impl Found {
    /// Tests by outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let cases = self.suites.iter().flat_map(|suite| &suite.cases);
        cases.filter(|case| case.outcome == outcome).count()
    }

    /// Whether everything ran and nothing failed.
    pub fn is_good(&self) -> bool {
        let passed = self.count(Outcome::Passed);
        self.error.is_none() && self.count(Outcome::Failed) == 0 && passed > 0
    }
}

impl Case {
    /// A case that ended as `result` says.
    pub fn of(name: &str, result: Result<(), String>) -> Self {
        let outcome = if result.is_ok() { Outcome::Passed } else { Outcome::Failed };
        Self { name: name.to_owned(), outcome, text: result.err().unwrap_or_default() }
    }
}

/// Reads what Rust's test harness printed. A program that did not come to its end, or whose tests
/// cannot be told, has a failed case that says so.
pub fn read_tests(text: &str, code: i32) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut begun: Option<&str> = None;
    let mut promised = None;
    let mut is_summed = false;
    for line in text.lines() {
        if let Some(n) = line.strip_prefix("running ") {
            promised = n.split(' ').next().and_then(|n| n.parse::<usize>().ok());
        }
        is_summed |= line.starts_with("test result: ");
        let test = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        let (name, verdict) = match (test, begun) {
            (Some((name, verdict)), _) => (name, verdict),
            // What the test printed may stand between its name and its verdict.
            (None, Some(name)) => (name, line),
            (None, None) => continue,
        };
        match outcome_of(verdict) {
            Some((outcome, why)) => {
                let name = name.trim_end_matches(" - should panic").to_owned();
                cases.push(Case { name, outcome, text: why.to_owned() });
                begun = None;
            }
            None => begun = Some(name),
        }
    }
    for case in cases.iter_mut().filter(|case| case.outcome == Outcome::Failed) {
        case.text = output_of(text, &case.name);
    }
    let failed = cases.iter().any(|case| case.outcome == Outcome::Failed);
    let told = cases.len();
    cases.extend(left_out(text));
    let fault = match promised {
        _ if !is_summed => Some(format!("ended with {} before its summary", shown(code))),
        Some(n) if n != told => Some(format!("{n} tests ran, {told} were told")),
        _ if (code != 0) != failed => Some(format!("exit code {code} does not fit its tests")),
        _ => None,
    };
    if let Some(fault) = fault {
        let tail: Vec<&str> = text.lines().rev().take(30).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        cases.push(Case::of("(program)", Err(format!("{fault}\n{}", tail.join("\n")))));
    }
    cases
}

/// An exit code, and what it tells.
pub fn shown(code: i32) -> String {
    match code {
        // A time limit ends programs like this as well, and is named beside it.
        137 => "exit code 137: killed, perhaps since memory ran out".to_owned(),
        code if code > 128 => format!("exit code {code}: ended by signal {}", code - 128),
        code => format!("exit code {code}"),
    }
}

/// Tests that the program was told to leave out; its summary counts them.
fn left_out(text: &str) -> Option<Case> {
    let summary = text.lines().rev().find(|line| line.starts_with("test result: "))?;
    let count = summary.split("; ").find_map(|part| part.strip_suffix(" filtered out"))?;
    let text = format!("{count} left out, which take too long here");
    let name = "(left out)".to_owned();
    (count != "0").then_some(Case { name, outcome: Outcome::Skipped, text })
}

fn outcome_of(verdict: &str) -> Option<(Outcome, &str)> {
    let verdict = verdict.trim();
    let (word, why) = verdict.split_once(", ").unwrap_or((verdict, ""));
    let word = word.split(" <").next().unwrap_or(word);
    match word {
        "ok" => Some((Outcome::Passed, "")),
        "FAILED" => Some((Outcome::Failed, "")),
        "ignored" => Some((Outcome::Skipped, why)),
        // Its output, and at the end of the line its verdict.
        _ if verdict.ends_with("FAILED") => Some((Outcome::Failed, "")),
        _ => None,
    }
}

/// The section of a failed test's output.
fn output_of(text: &str, name: &str) -> String {
    let head = format!("---- {name} stdout ----\n");
    let Some((_, rest)) = text.split_once(&head) else { return String::new() };
    let end = rest.find("\n---- ").or_else(|| rest.find("\nfailures:\n")).unwrap_or(rest.len());
    rest[..end].trim().to_owned()
}

/// Reads the rows of `leanstream bench`.
pub fn read_figures(model: &str, rows: &Value) -> Result<Vec<Figure>, String> {
    let rows = rows.as_array().ok_or("the benchmark printed no array")?;
    let mut figures = Vec::new();
    for row in rows {
        let (Some(test), Some(mean)) = (row["test"].as_str(), row["avg_ts"].as_f64()) else {
            return Err(format!("a row lacks test or avg_ts: {row}"));
        };
        figures.push(Figure {
            name: format!("{model} {test}"),
            unit: "tok/s".to_owned(),
            mean,
            sd: row["stddev_ts"].as_f64(),
        });
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\nrunning 4 tests\ntest a::good ... ok\ntest noisy ... SKIPPED for one\n\
        more noise\nok\ntest slow ... ignored, takes hours\ntest bad ... FAILED\n\nfailures:\n\n\
        ---- bad stdout ----\nthread 'bad' panicked at x.rs:1:\nno\n\nfailures:\n    bad\n\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n";

    fn names(cases: &[Case]) -> Vec<(&str, Outcome)> {
        cases.iter().map(|case| (case.name.as_str(), case.outcome)).collect()
    }

    #[test]
    fn tests_are_read_with_noise_between() {
        let cases = read_tests(TEXT, 101);
        let expected = [
            ("a::good", Outcome::Passed),
            ("noisy", Outcome::Passed),
            ("slow", Outcome::Skipped),
            ("bad", Outcome::Failed),
        ];
        assert_eq!(names(&cases), expected);
        assert_eq!(cases[2].text, "takes hours");
        assert_eq!(cases[3].text, "thread 'bad' panicked at x.rs:1:\nno");
    }

    #[test]
    fn what_was_left_out_is_seen() {
        let some = TEXT.replace("0 filtered out", "3 filtered out");
        let cases = read_tests(&some, 101);
        assert_eq!(
            (cases[4].outcome, cases[4].text.get(..10)),
            (Outcome::Skipped, Some("3 left out"))
        );
        assert_eq!(cases.len(), 5);
    }

    #[test]
    fn a_program_that_was_cut_short_failed() {
        let (cut, _) = TEXT.split_once("test bad").unwrap();
        let cases = read_tests(cut, 139);
        let last = cases.last().unwrap();
        assert_eq!((last.name.as_str(), last.outcome), ("(program)", Outcome::Failed));
        assert!(
            last.text.contains("exit code 139: ended by signal 11 before its summary"),
            "{}",
            last.text
        );
        assert!(read_tests("", 0).iter().any(|case| case.outcome == Outcome::Failed));
    }

    #[test]
    fn an_exit_code_that_contradicts_the_tests_is_a_failure() {
        let good = "running 1 test\ntest a ... ok\ntest result: ok. 1 passed; 0 failed;\n";
        assert_eq!(names(&read_tests(good, 0)), [("a", Outcome::Passed)]);
        for (text, code) in [(good, 1), (TEXT, 0)] {
            let cases = read_tests(text, code);
            assert!(cases.last().unwrap().text.contains("does not fit"), "{cases:?}");
        }
        let fewer = good.replace("running 1 test", "running 2 tests");
        assert!(read_tests(&fewer, 0).last().unwrap().text.contains("2 tests ran, 1 were told"));
    }

    #[test]
    fn figures_come_from_rows() {
        let rows = serde_json::json!([{"test": "tg8", "avg_ts": 5.0, "stddev_ts": 0.5}]);
        let figures = read_figures("m", &rows).unwrap();
        assert_eq!(
            (figures[0].name.as_str(), figures[0].mean, figures[0].sd),
            ("m tg8", 5.0, Some(0.5))
        );
        assert!(read_figures("m", &serde_json::json!([{"test": "tg8"}])).is_err());
    }
}
