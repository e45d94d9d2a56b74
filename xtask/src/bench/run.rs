//! One run of an engine within a budget: cold, under a memory limit, measured.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Setup, name_of};
use crate::cap::{self, Cgroup, End, Home};
use crate::flags::BenchArgs;
use crate::size::Size;

/// What the memory limit leaves a program beyond its budget: its own pages, which the page cache
/// holds, and what the kernel keeps for it.
const BEYOND_BUDGET: u64 = 32 << 20;

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub model: String,
    pub engine: Engine,
    /// What was chosen, other than the budget.
    pub variant: String,
    /// `None`: no budget, and no memory limit.
    pub budget_bytes: Option<u64>,
    /// The memory limit.
    pub limit_bytes: Option<u64>,
    pub threads: u32,
    pub end: End,
    /// The most memory that was charged to the limit.
    pub peak_bytes: Option<u64>,
    /// Of decoding.
    pub tok_per_s: Option<f64>,
    /// Where the time ran out: more than this it was not.
    pub below_tok_per_s: Option<f64>,
    /// From a prompt of `--ttft` tokens to the first token, the engine loaded.
    pub first_token_s: Option<f64>,
    /// What ours says of its decoding; empty for the peer.
    #[serde(flatten)]
    pub streamed: Streamed,
}

/// Who ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    Ours,
    Peer,
}

/// The keys of `leanstream bench` that tell of streaming.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Streamed {
    pub planned_bytes: Option<u64>,
    pub peak_rss_bytes: Option<u64>,
    pub bytes_per_token: Option<f64>,
    pub stall_ms_per_token: Option<f64>,
    pub demand_miss_ratio: Option<f64>,
    pub disk_mb_per_s: Option<f64>,
    pub read_kib: Option<f64>,
    pub io_depth: Option<f64>,
    pub io: Option<String>,
    pub computed_fraction: Option<f64>,
    pub ppl: Option<f64>,
    pub kl: Option<f64>,
    pub ppl_rise: Option<f64>,
    pub ppl_rise_stderr: Option<f64>,
    pub top1_agreement: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub stall_miss_ratio: Option<f64>,
    pub wasted_ratio: Option<f64>,
    pub refinements_per_token: Option<f64>,
}

/// A row of `leanstream bench -o json`, as far as it is used here.
#[derive(Debug, Deserialize)]
struct Row {
    test: String,
    avg_ts: f64,
    #[serde(flatten)]
    streamed: Streamed,
}

/// Runs engines under limits.
#[derive(Debug)]
pub struct Runner<'a> {
    pub setup: &'a Setup,
    pub args: &'a BenchArgs,
    home: Option<Home>,
    /// Whether it was said that the page cache cannot be dropped.
    warned: bool,
}

impl<'a> Runner<'a> {
    pub fn new(setup: &'a Setup, args: &'a BenchArgs) -> Result<Self> {
        cap::catch_interrupts()?;
        Ok(Self { setup, args, home: setup.memory_limits()?, warned: false })
    }

    /// Ours on a pack within `budget`, with more flags, which also name the variant.
    pub fn ours(
        &mut self,
        model: &Path,
        pack: &Path,
        budget: Option<&Size>,
        flags: &[&str],
    ) -> Result<Run> {
        let mut command = Command::new(&self.setup.program);
        command.arg("bench").arg(pack).args(["-o", "json"]).args(flags);
        let counts = [
            // Without a budget it is computing alone that is asked for, which decoding tells.
            ("-p", if budget.is_some() { self.args.ttft } else { 0 }),
            ("-n", self.args.generate()),
            ("-r", self.args.repetitions()),
            ("-t", self.setup.threads),
        ];
        for (flag, value) in counts {
            command.args([flag, &value.to_string()]);
        }
        let bytes = budget.map_or("none".to_owned(), |size| size.bytes.to_string());
        command.args(["--budget", &bytes]);
        if let Some(rate) = self.args.disk_rate.as_ref().filter(|_| budget.is_some()) {
            command.args(["--disk-rate", &rate.bytes.to_string()]);
        }
        let (mut run, finished) = self.run(&command, model, Engine::Ours, budget, None)?;
        run.variant = flags.join(" ");
        if run.end == End::Done {
            run.take(&finished.stdout(), self.args.ttft)?;
        }
        Ok(run)
    }

    /// Runs the command cold, and under the limit that belongs to the budget.
    pub fn run(
        &mut self,
        command: &Command,
        model: &Path,
        engine: Engine,
        budget: Option<&Size>,
        timeout: Option<std::time::Duration>,
    ) -> Result<(Run, cap::Finished)> {
        let limit_bytes = match (&self.home, budget) {
            (Some(_), Some(size)) => Some(size.bytes.saturating_add(BEYOND_BUDGET)),
            _ => None,
        };
        let cgroup = match (&self.home, limit_bytes) {
            (Some(home), Some(limit)) => Some(Cgroup::create(home, limit)?),
            _ => None,
        };
        if budget.is_some() {
            self.drop_page_cache();
        }
        let finished = cap::run(command, cgroup.as_ref(), timeout)?;
        if let Some(trouble) = finished.end.trouble() {
            eprintln!("{engine:?}: {trouble}");
        }
        let run = Run {
            model: name_of(model),
            engine,
            variant: String::new(),
            budget_bytes: budget.map(|size| size.bytes),
            limit_bytes,
            threads: self.setup.threads,
            end: finished.end.clone(),
            peak_bytes: finished.peak_bytes,
            tok_per_s: None,
            below_tok_per_s: None,
            first_token_s: None,
            streamed: Streamed::default(),
        };
        Ok((run, finished))
    }

    fn drop_page_cache(&mut self) {
        if let Err(error) = cap::drop_page_cache(Path::new("/"))
            && !std::mem::replace(&mut self.warned, true)
        {
            eprintln!("Runs may start warm: {error:#}");
        }
    }
}

impl Run {
    /// Takes over what `leanstream bench` printed.
    fn take(&mut self, json: &str, prompt: u32) -> Result<()> {
        let rows: Vec<Row> =
            serde_json::from_str(json).context("`bench` printed something unknown")?;
        for row in rows {
            if row.test.starts_with("tg") {
                self.tok_per_s = Some(row.avg_ts);
                self.streamed = row.streamed;
            } else {
                self.first_token_s = Some(f64::from(prompt) / row.avg_ts);
            }
        }
        Ok(())
    }

    /// Called otherwise than by its flags.
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.variant);
        self
    }

    /// Seconds that a token must take: those of computing it, or those of reading its bytes at the
    /// speed at which the disk was read, whichever is more.
    pub fn floor_s(&self, compute_tok_per_s: f64) -> Option<f64> {
        let bytes = self.streamed.bytes_per_token?;
        let reading = match self.streamed.disk_mb_per_s {
            Some(rate) if rate > 0.0 => bytes / (rate * 1e6),
            // Nothing was read.
            _ => 0.0,
        };
        Some(reading.max(1.0 / compute_tok_per_s))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn run(engine: Engine, budget_bytes: u64) -> Run {
        Run {
            model: "m".to_owned(),
            engine,
            variant: String::new(),
            budget_bytes: Some(budget_bytes),
            limit_bytes: Some(budget_bytes + BEYOND_BUDGET),
            threads: 2,
            end: End::Done,
            peak_bytes: None,
            tok_per_s: None,
            below_tok_per_s: None,
            first_token_s: None,
            streamed: Streamed::default(),
        }
    }

    #[test]
    fn rows_are_told_apart_by_their_test() {
        let json = r#"[
            {"test": "pp512", "avg_ts": 256.0, "bytes_per_token": 1.0, "io": "io_uring"},
            {"test": "tg16", "avg_ts": 4.0, "bytes_per_token": 5e8, "disk_mb_per_s": 1000.0}]"#;
        let mut run = run(Engine::Ours, 700 << 20);
        run.take(json, 512).unwrap();
        assert_eq!((run.first_token_s, run.tok_per_s), (Some(2.0), Some(4.0)));
        assert_eq!(run.streamed.bytes_per_token, Some(5e8));
        assert!(run.take("no", 512).is_err());
    }

    #[test]
    fn the_floor_is_the_slower_of_computing_and_reading() {
        let mut run = run(Engine::Ours, 700 << 20);
        assert_eq!(run.floor_s(10.0), None);
        run.streamed.bytes_per_token = Some(5e8);
        run.streamed.disk_mb_per_s = Some(1000.0);
        assert_eq!(run.floor_s(10.0), Some(0.5));
        assert_eq!(run.floor_s(1.0), Some(1.0));
        (run.streamed.bytes_per_token, run.streamed.disk_mb_per_s) = (Some(0.0), Some(0.0));
        assert_eq!(run.floor_s(10.0), Some(0.1));
    }

    #[test]
    fn json_has_the_keys_of_streaming_at_the_top() {
        let json = serde_json::to_value(run(Engine::Peer, 1)).unwrap();
        assert_eq!((&json["engine"], &json["end"]), (&"peer".into(), &"done".into()));
        assert!(json.get("bytes_per_token").is_some(), "{json}");
    }
}
