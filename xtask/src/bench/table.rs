//! Markdown tables of runs.

use std::fmt::Write as _;

use super::mean::{Mean, digits};
use super::run::{Engine, Run, Streamed};

/// Where there is no value.
const NONE: &str = "–";

/// One line for each budget, over all turns. `compute` is the speed of computing alone.
pub fn budgets(runs: &[Run], compute_tok_per_s: f64) -> String {
    let mut out = String::from(
        "| budget MiB | tok/s (min–max) | llama.cpp tok/s (min–max) | ratio | first token s | \
         llama.cpp first token s | MB/token | stall ms/token | disk MB/s | ms/token | floor ms | \
         measured ÷ floor | planned MiB | peak MiB | llama.cpp peak MiB |\n",
    );
    rule(&mut out, 15);
    let mut budgets: Vec<Option<u64>> = runs.iter().map(|run| run.budget_bytes).collect();
    budgets.dedup();
    budgets.sort_unstable();
    budgets.dedup();
    for budget in budgets {
        let of = |engine| Group::of(runs, |run| run.engine == engine && run.budget_bytes == budget);
        let (ours, peer) = (of(Engine::Ours), of(Engine::Peer));
        let ratio = ours.mean(|run| run.tok_per_s).zip(peer.mean(|run| run.tok_per_s));
        let cells = [
            mib(budget),
            ours.speed(),
            peer.speed(),
            cell(ratio.map(|(ours, peer)| ours / peer)),
            cell(ours.mean(|run| run.first_token_s)),
            cell(peer.mean(|run| run.first_token_s)),
        ];
        let peaks = [mib(ours.planned()), mib(ours.peak()), mib(peer.peak())];
        line(&mut out, cells.into_iter().chain(ours.streaming(compute_tok_per_s)).chain(peaks));
    }
    out
}

/// One line for each variant.
pub fn variants(runs: &[Run], compute_tok_per_s: f64) -> String {
    let mut out = String::from(
        "| flags | tok/s (min–max) | missed | read KiB | in flight | MB/token | stall ms/token | \
         disk MB/s | ms/token | floor ms | measured ÷ floor | planned MiB | peak MiB |\n",
    );
    rule(&mut out, 13);
    let mut seen: Vec<&str> = Vec::new();
    for run in runs {
        if seen.contains(&run.variant.as_str()) {
            continue;
        }
        seen.push(&run.variant);
        let group = Group::of(runs, |other| other.variant == run.variant);
        let missed = group.mean(|run| run.streamed.demand_miss_ratio);
        let cells = [
            format!("`{}`", run.variant),
            group.speed(),
            missed.map_or(NONE.to_owned(), |ratio| format!("{:.0} %", 100.0 * ratio)),
            cell(group.mean(|run| run.streamed.read_kib)),
            cell(group.mean(|run| run.streamed.io_depth)),
        ];
        let peaks = [mib(group.planned()), mib(group.peak())];
        line(&mut out, cells.into_iter().chain(group.streaming(compute_tok_per_s)).chain(peaks));
    }
    out
}

/// One line for each policy and cache. `compute` is the speed of computing alone.
pub fn ablation(runs: &[Run], compute_tok_per_s: f64) -> String {
    let mut out = String::from(
        "| variant | tok/s (min–max) | perplexity | KL | top 1 | computed | stall miss | demand miss | wasted | \
         refinements/token | p50 ms | p99 ms | MB/token | stall ms/token | disk MB/s | ms/token | \
         floor ms | measured ÷ floor |\n",
    );
    rule(&mut out, 18);
    let mut seen: Vec<&str> = Vec::new();
    for run in runs {
        if seen.contains(&run.variant.as_str()) {
            continue;
        }
        seen.push(&run.variant);
        let group = Group::of(runs, |other| other.variant == run.variant);
        let of = |value: fn(&Streamed) -> Option<f64>| cell(group.mean(|run| value(&run.streamed)));
        let cells = [
            run.variant.clone(),
            group.speed(),
            of(|s| s.ppl),
            of(|s| s.kl),
            of(|s| s.top1_agreement),
            of(|s| s.computed_fraction),
            of(|s| s.stall_miss_ratio),
            of(|s| s.demand_miss_ratio),
            of(|s| s.wasted_ratio),
            of(|s| s.refinements_per_token),
            of(|s| s.p50_ms),
            of(|s| s.p99_ms),
        ];
        line(&mut out, cells.into_iter().chain(group.streaming(compute_tok_per_s)));
    }
    out
}

/// Runs of the same thing.
struct Group<'a>(Vec<&'a Run>);

impl<'a> Group<'a> {
    fn of(runs: &'a [Run], belongs: impl Fn(&Run) -> bool) -> Self {
        Self(runs.iter().filter(|run| belongs(run)).collect())
    }

    /// Mean over the runs that have a value.
    fn mean(&self, value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        Mean::of(self.0.iter().filter_map(|run| value(run))).map(|mean| mean.mean)
    }

    /// Speed of decoding, or a bound, or what went wrong. Trouble in one of several turns shows.
    fn speed(&self) -> String {
        let speed = Mean::of(self.0.iter().filter_map(|run| run.tok_per_s)).map(Mean::shown);
        let bound = self.0.iter().filter_map(|run| run.below_tok_per_s).reduce(f64::max);
        let bound = bound.map(|bound| format!("< {}", cell(Some(bound))));
        let unexplained = |run: &&&Run| run.tok_per_s.or(run.below_tok_per_s).is_none();
        let trouble =
            self.0.iter().filter(unexplained).find_map(|run| run.end.trouble()).map(escaped);
        let parts: Vec<String> = [speed, bound, trouble].into_iter().flatten().collect();
        if parts.is_empty() { NONE.to_owned() } else { parts.join("; ") }
    }

    /// MB a token, stall, disk, time of a token, its floor, and one over the other.
    fn streaming(&self, compute_tok_per_s: f64) -> [String; 6] {
        let time = self.mean(|run| Some(1e3 / run.tok_per_s?));
        let floor = self.mean(|run| Some(1e3 * run.floor_s(compute_tok_per_s)?));
        [
            cell(self.mean(|run| Some(run.streamed.bytes_per_token? / 1e6))),
            cell(self.mean(|run| run.streamed.stall_ms_per_token)),
            self.mean(|run| run.streamed.disk_mb_per_s)
                .map_or(NONE.to_owned(), |rate| format!("{rate:.0}")),
            cell(time),
            cell(floor),
            time.zip(floor).map_or(NONE.to_owned(), |(time, floor)| format!("{:.2}", time / floor)),
        ]
    }

    fn planned(&self) -> Option<u64> {
        self.0.iter().filter_map(|run| run.streamed.planned_bytes).max()
    }

    /// The highest of all turns.
    fn peak(&self) -> Option<u64> {
        self.0.iter().filter_map(|run| run.peak_bytes).max()
    }
}

fn cell(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{value:.*}", digits(value)))
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or(NONE.to_owned(), |bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20)))
}

/// Text that ends no cell.
fn escaped(text: String) -> String {
    text.replace('|', r"\|")
}

/// A line of a table.
pub fn line(out: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    // Writing to a String does not fail.
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

/// The line below the head of a table.
pub fn rule(out: &mut String, columns: usize) {
    let _ = writeln!(out, "|{}", "---|".repeat(columns));
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;
    use crate::cap::End;

    fn ours(budget: u64, tok_per_s: f64) -> Run {
        let mut run = run(Engine::Ours, budget);
        run.tok_per_s = Some(tok_per_s);
        run.first_token_s = Some(2.0);
        run.peak_bytes = Some(710 << 20);
        run.streamed.planned_bytes = Some(699 << 20);
        run.streamed.bytes_per_token = Some(400e6);
        run.streamed.stall_ms_per_token = Some(30.0);
        run.streamed.disk_mb_per_s = Some(2000.0);
        run.streamed.demand_miss_ratio = Some(0.5);
        run
    }

    fn rows(table: &str) -> Vec<&str> {
        let lines: Vec<&str> = table.lines().collect();
        let columns = lines[0].matches('|').count();
        assert!(lines.iter().all(|line| line.replace(r"\|", "").matches('|').count() == columns));
        lines[2..].to_vec()
    }

    #[test]
    fn turns_of_a_budget_are_one_line() {
        let mut peer = run(Engine::Peer, 700 << 20);
        peer.tok_per_s = Some(0.8);
        peer.peak_bytes = Some(732 << 20);
        let table = budgets(&[ours(700 << 20, 4.0), peer, ours(700 << 20, 4.0)], 20.0);
        let line = "| 700 | 4.00 (4.00–4.00) | 0.800 (0.800–0.800) | 5.00 | 2.00 | – | 400.0 | 30.0 | \
                    2000 | 250.0 | 200.0 | 1.25 | 699 | 710 | 732 |";
        assert_eq!(rows(&table), [line]);
    }

    #[test]
    fn budgets_come_in_order_and_trouble_is_shown() {
        let mut slow = run(Engine::Peer, 450 << 20);
        (slow.end, slow.below_tok_per_s) = (End::TimedOut, Some(0.0512));
        let mut dead = run(Engine::Peer, 700 << 20);
        dead.end = End::Killed;
        let mut refused = run(Engine::Ours, 450 << 20);
        refused.end = End::Failed("error: a | b".to_owned());
        let table = budgets(&[ours(700 << 20, 4.0), dead, refused, slow], 20.0);
        let rows = rows(&table);
        assert!(rows[0].starts_with(r"| 450 | error: a \| b | < 0.051 | – |"), "{table}");
        assert!(rows[1].contains("| killed, probably out of memory | – | 2.00 |"), "{table}");
    }

    #[test]
    fn variants_keep_their_order() {
        let mut runs = [ours(700 << 20, 4.0), ours(700 << 20, 5.0), ours(700 << 20, 6.0)];
        (runs[0].variant, runs[1].variant) = ("--cache lru".to_owned(), "--cache hot".to_owned());
        runs[2].variant = runs[0].variant.clone();
        let table = variants(&runs, 20.0);
        let rows = rows(&table);
        assert!(rows[0].starts_with("| `--cache lru` | 5.00 (4.00–6.00) | 50 % |"), "{table}");
        assert!(rows[1].starts_with("| `--cache hot` | 5.00 (5.00–5.00) |"), "{table}");
    }
}
