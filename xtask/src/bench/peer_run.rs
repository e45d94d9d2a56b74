//! The peer within a budget: on the GGUF file as it comes, mapped, under the memory limit alone.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::run::{Engine, Run, Runner};
use crate::cap::{End, Finished};
use crate::size::Size;

/// A line of `peer_bench.py --stream`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Event {
    /// The model is loaded and a short prompt computed: decoding begins.
    Begin,
    /// One more token, and the seconds since decoding began.
    Token(f64),
    /// All of a longer prompt, and the seconds that it took.
    Prompt(f64),
}

/// Runs the peer.
pub fn peer(runner: &mut Runner<'_>, python: &Path, model: &Path, budget: &Size) -> Result<Run> {
    let mut command = Command::new(python);
    command.arg("-c").arg(include_str!("../peer_bench.py")).arg(model).arg("--stream");
    let n = runner.args.generate();
    for (flag, value) in
        [("-p", runner.args.ttft), ("-n", n), ("-r", 1), ("-t", runner.setup.threads)]
    {
        command.args([flag, &value.to_string()]);
    }
    let timeout = Duration::from_secs(runner.args.peer_timeout);
    let (mut run, finished) =
        runner.run(&command, model, Engine::Peer, Some(budget), Some(timeout))?;
    read(&mut run, &finished, n);
    Ok(run)
}

/// Takes over what the peer did until its end.
fn read(run: &mut Run, finished: &Finished, n: u32) {
    let mut began: Option<Duration> = None;
    let mut tokens: Vec<f64> = Vec::new();
    for (at, line) in &finished.lines {
        match serde_json::from_str(line) {
            Ok(Event::Begin) => began = Some(*at),
            Ok(Event::Token(seconds)) => tokens.push(seconds),
            Ok(Event::Prompt(seconds)) => run.first_token_s = Some(seconds),
            // The libraries may have their say.
            Err(_) => {}
        }
    }
    match (tokens.last(), began) {
        (Some(seconds), _) if tokens.len() == n as usize => {
            run.tok_per_s = Some(f64::from(n) / seconds);
        }
        // Not even one more token came in the time that was left.
        (_, Some(began)) if finished.end == End::TimedOut => {
            let time = finished.time.saturating_sub(began).as_secs_f64();
            run.below_tok_per_s = Some((tokens.len() + 1) as f64 / time.max(1e-3));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;

    fn after(end: End, seconds: u64, lines: &[(u64, &str)]) -> Run {
        let at = |&(s, line): &(u64, &str)| (Duration::from_secs(s), line.to_owned());
        let finished = Finished {
            end,
            lines: lines.iter().map(at).collect(),
            time: Duration::from_secs(seconds),
            peak_bytes: None,
        };
        let mut run = run(Engine::Peer, 1);
        read(&mut run, &finished, 2);
        run
    }

    #[test]
    fn a_whole_run_has_a_speed_and_a_first_token() {
        let lines = [
            (1, r#""begin""#),
            (2, "a word of warning"),
            (3, r#"{"token": 2.0}"#),
            (5, r#"{"token": 4.0}"#),
            (8, r#"{"prompt": 3.0}"#),
        ];
        let run = after(End::Done, 8, &lines);
        assert_eq!((run.tok_per_s, run.first_token_s), (Some(0.5), Some(3.0)));
        assert_eq!(run.below_tok_per_s, None);
    }

    #[test]
    fn a_run_that_was_ended_has_a_bound() {
        let run = after(End::TimedOut, 21, &[(1, r#""begin""#), (11, r#"{"token": 10.0}"#)]);
        assert_eq!((run.tok_per_s, run.below_tok_per_s), (None, Some(0.1)));
        let run = after(End::TimedOut, 21, &[(1, r#""begin""#)]);
        assert_eq!(run.below_tok_per_s, Some(0.05));
    }

    #[test]
    fn a_run_that_never_began_or_died_has_none() {
        assert_eq!(after(End::TimedOut, 21, &[]).below_tok_per_s, None);
        let run = after(End::Killed, 21, &[(1, r#""begin""#), (2, r#"{"token": 1.0}"#)]);
        assert_eq!((run.tok_per_s, run.below_tok_per_s), (None, None));
    }
}
