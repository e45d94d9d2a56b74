//! Results as JUnit XML, which farms' CI reads.

use std::fmt::Write as _;

use super::results::{Found, Outcome, Run};

/// The whole run: a suite for each program on each device.
pub fn xml(run: &Run) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let total = |outcome| run.devices.iter().map(|d| d.count(outcome)).sum::<usize>();
    let (passed, failed) = (total(Outcome::Passed), total(Outcome::Failed));
    let skipped = total(Outcome::Skipped);
    let errors = run.devices.iter().filter(|d| d.error.is_some()).count();
    let seconds: f64 = run.devices.iter().map(|d| d.seconds).sum();
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "<testsuites name=\"{}\" tests=\"{}\" failures=\"{failed}\" errors=\"{errors}\" \
         skipped=\"{skipped}\" time=\"{seconds:.3}\">",
        escaped(&run.run),
        passed + failed + skipped + errors,
    );
    for found in &run.devices {
        suites(&mut out, found);
    }
    out + "</testsuites>\n"
}

fn suites(out: &mut String, found: &Found) {
    let device = escaped(&found.device);
    for suite in &found.suites {
        let of = |outcome| suite.cases.iter().filter(|case| case.outcome == outcome).count();
        let name = escaped(&suite.name);
        let _ = writeln!(
            out,
            "  <testsuite name=\"{device}/{name}\" hostname=\"{device}\" tests=\"{}\" \
             failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{:.3}\">",
            suite.cases.len(),
            of(Outcome::Failed),
            of(Outcome::Skipped),
            suite.seconds,
        );
        properties(out, found);
        for case in &suite.cases {
            let head = format!(
                "    <testcase classname=\"{device}.{}\" name=\"{}\"",
                name.replace("::", "."),
                escaped(&case.name)
            );
            let _ = match case.outcome {
                Outcome::Passed => writeln!(out, "{head}/>"),
                Outcome::Skipped => {
                    let why = escaped(&case.text);
                    writeln!(out, "{head}><skipped message=\"{why}\"/></testcase>")
                }
                Outcome::Failed => {
                    let first = escaped(case.text.lines().next().unwrap_or("failed"));
                    let text = escaped(&case.text);
                    writeln!(out, "{head}><failure message=\"{first}\">{text}</failure></testcase>")
                }
            };
        }
        out.push_str("  </testsuite>\n");
    }
    if let Some(error) = &found.error {
        let error = escaped(error);
        let _ = writeln!(
            out,
            "  <testsuite name=\"{device}/device\" hostname=\"{device}\" tests=\"1\" failures=\"0\" \
             errors=\"1\" skipped=\"0\" time=\"{:.3}\">\n    <testcase classname=\"{device}\" \
             name=\"run\"><error message=\"{error}\"/></testcase>\n  </testsuite>",
            found.seconds
        );
    }
}

fn properties(out: &mut String, found: &Found) {
    out.push_str("    <properties>\n");
    let mut property = |name: &str, value: &str| {
        let (name, value) = (escaped(name), escaped(value));
        let _ = writeln!(out, "      <property name=\"{name}\" value=\"{value}\"/>");
    };
    property("target", &found.target);
    property("commit", &found.commit);
    property("kernels", found.kernels.as_deref().unwrap_or("unknown"));
    for (name, value) in &found.facts {
        property(name, value);
    }
    out.push_str("    </properties>\n");
}

/// Text for XML, without the characters that XML cannot hold.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::results::{Case, Suite};

    #[test]
    fn failures_errors_and_skips_are_told_apart() {
        let case = |name: &str, outcome, text: &str| Case {
            name: name.to_owned(),
            outcome,
            text: text.to_owned(),
        };
        let cases = vec![
            case("a", Outcome::Passed, ""),
            case("b<T>", Outcome::Failed, "left & \"right\"\n\u{1b}[1m"),
            case("c", Outcome::Skipped, "slow"),
        ];
        let suite = Suite { name: "ls-io::it".to_owned(), seconds: 1.5, cases };
        let found = Found {
            device: "d".to_owned(),
            suites: vec![suite],
            error: Some("no space".to_owned()),
            ..Found::default()
        };
        let xml = xml(&Run { run: "r".to_owned(), devices: vec![found] });
        for part in [
            "<testsuites name=\"r\" tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\"",
            "<testsuite name=\"d/ls-io::it\" hostname=\"d\" tests=\"3\" failures=\"1\"",
            "<testcase classname=\"d.ls-io.it\" name=\"a\"/>",
            "name=\"b&lt;T&gt;\"><failure message=\"left &amp; &quot;right&quot;\">",
            "<skipped message=\"slow\"/>",
            "<error message=\"no space\"/>",
        ] {
            assert!(xml.contains(part), "{part} in\n{xml}");
        }
        assert!(!xml.contains('\u{1b}'));
    }
}
