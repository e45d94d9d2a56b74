//! Results as Markdown, alone or beside an earlier run.

use std::fmt::Write as _;

use super::results::{Case, Figure, Found, Outcome, Run};

/// A speed has to fall by more than this part before it counts, whatever its spread: machines differ
/// from hour to hour.
const NOISE: f64 = 0.10;
/// And by more than this many standard deviations of the difference.
const DEVIATIONS: f64 = 3.0;

/// The run as Markdown.
pub fn markdown(run: &Run) -> String {
    let mut out = format!("# Devices, {}\n\n", run.run);
    out += "| device | model | kernels | passed | failed | skipped | seconds | outcome |\n\
            |---|---|---|---|---|---|---|---|\n";
    for d in &run.devices {
        let outcome = match (&d.error, d.is_good()) {
            (Some(error), _) => format!("not finished: {error}"),
            (None, true) => "passed".to_owned(),
            (None, false) => "FAILED".to_owned(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {:.0} | {} |",
            d.device,
            cell(&model(d)),
            d.kernels.as_deref().unwrap_or("–"),
            d.count(Outcome::Passed),
            d.count(Outcome::Failed),
            d.count(Outcome::Skipped),
            d.seconds,
            cell(&outcome)
        );
    }
    for d in &run.devices {
        out += &device(d);
    }
    out
}

/// What the device is, in a few words.
fn model(d: &Found) -> String {
    let fact = |name: &str| d.facts.get(name).map(String::as_str);
    let words = ["emulator", "model", "soc", "cpu"].map(fact);
    let text: Vec<&str> = words.into_iter().flatten().take(2).collect();
    if text.is_empty() { "–".to_owned() } else { text.join(", ") }
}

fn device(d: &Found) -> String {
    let mut out = format!("\n## {}\n\nBuilt for {} from {}", d.device, d.target, d.commit);
    let simd: Vec<&str> =
        d.doctor["simd"].as_array().into_iter().flatten().filter_map(|s| s.as_str()).collect();
    if !simd.is_empty() {
        let _ = write!(out, "; the processor has {}", simd.join(", "));
    }
    out += ".\n\n";
    for (name, value) in &d.facts {
        let _ = writeln!(out, "- {name}: {value}");
    }
    if d.emulated {
        out += "- model, cpu, kernel and memory are those of the machine that emulates\n";
    }
    out += "\n| tests | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n";
    for suite in &d.suites {
        let of = |outcome| suite.cases.iter().filter(|case| case.outcome == outcome).count();
        let (passed, failed, skipped) =
            (of(Outcome::Passed), of(Outcome::Failed), of(Outcome::Skipped));
        let (name, seconds) = (&suite.name, suite.seconds);
        let _ = writeln!(out, "| {name} | {passed} | {failed} | {skipped} | {seconds:.1} |");
    }
    if !d.figures.is_empty() {
        let note = if d.emulated { " (emulated: no measure of any hardware)" } else { "" };
        let _ = writeln!(out, "\n| figure{note} | mean | sd |\n|---|---|---|");
        for figure in &d.figures {
            let sd = figure.sd.map_or("–".to_owned(), |sd| format!("{sd:.2}"));
            let _ =
                writeln!(out, "| {} | {:.2} {} | {sd} |", figure.name, figure.mean, figure.unit);
        }
    }
    for (suite, case) in failures(d) {
        let _ = write!(out, "\n{suite} {} failed:\n\n```text\n{}\n```\n", case.name, case.text);
    }
    for why in &d.lost {
        let _ = writeln!(out, "\nThe connection was lost: {why}");
    }
    out
}

fn failures(d: &Found) -> impl Iterator<Item = (&str, &Case)> {
    d.suites.iter().flat_map(|suite| {
        let failed = suite.cases.iter().filter(|case| case.outcome == Outcome::Failed);
        failed.map(|case| (suite.name.as_str(), case))
    })
}

/// What is worse than in the earlier run, one line for each; and the comparison as Markdown.
pub fn compare(run: &Run, earlier: &Run) -> (Vec<String>, String) {
    let mut worse = Vec::new();
    let mut out = format!("\n# Beside {}\n\n", earlier.run);
    out += "| device | what | earlier | now | |\n|---|---|---|---|---|\n";
    for now in &run.devices {
        let Some(then) = earlier.devices.iter().find(|d| d.device == now.device) else {
            let _ = writeln!(out, "| {} | the device | absent | here | |", now.device);
            continue;
        };
        let mut row = |what: &str, a: String, b: String, verdict: &str| {
            let _ = writeln!(out, "| {} | {} | {a} | {b} | {verdict} |", now.device, cell(what));
            if verdict == "WORSE" {
                worse.push(format!("{}: {what}, {a} before, {b} now", now.device));
            }
        };
        let name = |k: &Option<String>| k.clone().unwrap_or_else(|| "none".to_owned());
        let verdict = if now.kernels == then.kernels { "" } else { "CHANGED" };
        row("kernels", name(&then.kernels), name(&now.kernels), verdict);
        for (what, was, is) in changed_tests(then, now) {
            let verdict = if is == "passed" { "better" } else { "WORSE" };
            row(&what, was.to_owned(), is.to_owned(), verdict);
        }
        for figure in &now.figures {
            let Some(before) = then.figures.iter().find(|f| f.name == figure.name) else {
                continue;
            };
            let verdict = if now.emulated { "" } else { change(before, figure) };
            let shown = |f: &Figure| format!("{:.2} {}", f.mean, f.unit);
            row(&figure.name, shown(before), shown(figure), verdict);
        }
    }
    for gone in earlier.devices.iter().filter(|e| !run.devices.iter().any(|d| d.device == e.device))
    {
        let _ = writeln!(out, "| {} | the device | here | absent | |", gone.device);
    }
    (worse, out)
}

/// Whether a speed changed beyond noise.
fn change(before: &Figure, now: &Figure) -> &'static str {
    let (Some(a), Some(b)) = (before.sd, now.sd) else {
        // Done once: no spread is known, so nothing is beyond it.
        return "";
    };
    let noise = (DEVIATIONS * a.hypot(b)).max(NOISE * before.mean);
    match now.mean - before.mean {
        change if change < -noise => "WORSE",
        change if change > noise => "better",
        _ => "",
    }
}

/// Tests whose outcome differs, with both; a test that is gone counts as skipped.
fn changed_tests(then: &Found, now: &Found) -> Vec<(String, &'static str, &'static str)> {
    let all = |d: &Found| -> Vec<(String, Outcome)> {
        let suites = d.suites.iter();
        let of = |suite: &super::results::Suite| {
            let name = suite.name.clone();
            let cases = suite.cases.clone().into_iter();
            cases.map(move |case| (format!("{name} {}", case.name), case.outcome))
        };
        suites.flat_map(of).collect()
    };
    let (then, now) = (all(then), all(now));
    let word = |outcome: Option<Outcome>| match outcome {
        Some(Outcome::Passed) => "passed",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Skipped) => "skipped",
        None => "absent",
    };
    let find = |tests: &[(String, Outcome)], name: &str| {
        tests.iter().find(|(n, _)| n == name).map(|(_, outcome)| *outcome)
    };
    let mut names: Vec<&String> = then.iter().chain(&now).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let both = names.into_iter().map(|n| (n, find(&then, n), find(&now, n)));
    // A new test that passes is no news, nor is one that was never seen to pass.
    let is_news = |was: Option<Outcome>, is: Option<Outcome>| {
        was != is && (was == Some(Outcome::Passed) || is == Some(Outcome::Failed) || was.is_some())
    };
    both.filter(|(_, was, is)| is_news(*was, *is))
        .map(|(name, was, is)| (name.clone(), word(was), word(is)))
        .collect()
}

/// Text that stays within its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::results::Suite;

    fn run(cases: &[(&str, Outcome)], mean: f64, sd: f64) -> Run {
        let cases = cases.iter().map(|(name, outcome)| Case {
            name: (*name).to_owned(),
            outcome: *outcome,
            text: String::new(),
        });
        let figure =
            Figure { name: "m tg8".to_owned(), unit: "tok/s".to_owned(), mean, sd: Some(sd) };
        let suites = vec![Suite { name: "s".to_owned(), seconds: 1.0, cases: cases.collect() }];
        let device = "d".to_owned();
        let found = Found { device, suites, figures: vec![figure], ..Found::default() };
        Run { run: "r".to_owned(), devices: vec![found] }
    }

    #[test]
    fn regressions_are_beyond_noise_or_are_named_tests() {
        use Outcome::{Failed, Passed};
        let worse = |mean, sd, cases: &[(&str, Outcome)]| {
            let earlier = run(&[("a", Passed), ("b", Failed)], 100.0, 1.0);
            compare(&run(cases, mean, sd), &earlier).0
        };
        let same = [("a", Passed), ("b", Failed)];
        assert_eq!(worse(95.0, 1.0, &same), [""; 0], "within a tenth");
        assert_eq!(worse(80.0, 10.0, &same), [""; 0], "within its spread");
        assert_eq!(worse(80.0, 1.0, &same), ["d: m tg8, 100.00 tok/s before, 80.00 tok/s now"]);
        assert_eq!(worse(100.0, 1.0, &[("a", Failed), ("b", Passed)]).len(), 1);
        assert_eq!(worse(100.0, 1.0, &same[..1]).len(), 1, "a test that is gone");
        assert_eq!(worse(100.0, 1.0, &[same[0], same[1], ("c", Failed)]).len(), 1);
    }

    #[test]
    fn a_report_names_devices_and_failures() {
        let text = markdown(&run(&[("a", Outcome::Failed)], 10.0, 1.0));
        assert!(text.contains("| d | – | – | 0 | 1 | 0 | 0 | FAILED |"), "{text}");
        assert!(text.contains("s a failed:"), "{text}");
    }
}
