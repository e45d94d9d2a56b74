//! How fast a model of Mistral-7B's shape would be on machines that are not at hand.
//!
//! Prints a table of policies and caches for each board. Made-up importances; see the crate's
//! `sim::Synthetic`.
//!
//! ```sh
//! cargo run --release -p ls-sched --example simulate -- [board] [share of the MLPs cached]
//! ```

#![allow(clippy::print_stdout)]

use std::time::Instant;

use ls_sched::sim::{Board, Outcome, Setup, Shape, Synthetic, simulate};
use ls_sched::{Config, Keep, Policy};

const WARM_UP: u32 = 12;
const KEEP: f64 = 0.4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let board = args.next();
    let cached: f64 = args.next().map_or(Ok(0.25), |share| share.parse())?;
    let shape = Shape::MISTRAL_7B;
    let of = Synthetic {
        n_tokens: WARM_UP + 12,
        n_layers: shape.n_layers,
        n_chunks: shape.n_chunks,
        keep: KEEP,
        ..Synthetic::default()
    };
    let trace = of.trace()?;
    let hot: Vec<_> = (0..shape.n_layers).map(|l| trace.hot(l, KEEP)).collect::<Result<_, _>>()?;
    for known in Board::ALL.iter().filter(|known| board.as_deref().is_none_or(|b| b == known.name))
    {
        println!("\n{}, {:.0} % of the MLPs cached, {KEEP} computed", known.name, cached * 100.0);
        println!(
            "{:34} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>6} {:>5}",
            "",
            "tok/s",
            "stall",
            "demand",
            "wasted",
            "MB/tok",
            "rank/tk",
            "P50 ms",
            "P99 ms",
            "cover",
            "busy",
            "s"
        );
        for (name, keep, config) in rows(known, &shape, cached) {
            let hot = hot.clone();
            let setup = Setup { warm_up: WARM_UP, hot, ..Setup::new(*known, shape, keep, config) };
            let start = Instant::now();
            let outcome = simulate(&trace, &setup)?;
            print_row(&name, &outcome, start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

fn rows(board: &Board, shape: &Shape, cached: f64) -> Vec<(String, f64, Config)> {
    let budget = (shape.layout(KEEP).total_bytes() as f64 * cached) as u64;
    let config = |policy, keep| Config { keep, ..board.config(policy, budget) };
    let mut rows = Vec::new();
    let mut add = |name: &str, keep: f64, config: Config| {
        let price =
            if config.price > 0.0 { format!(" price {}", config.price) } else { String::new() };
        let name = format!("{} {}{price}{name}", config.policy, config.keep.name());
        rows.push((name, keep, config));
    };
    // As others do it: what is ranked early is computed when all of it is there.
    add(
        ", all at once",
        KEEP,
        Config { stages: 1, least_stage: 1.0, ..config(Policy::OneShot, Keep::Lru) },
    );
    for policy in [
        Policy::Serial,
        Policy::OneShot,
        Policy::Fixed(1),
        Policy::Fixed(2),
        Policy::Fixed(4),
        Policy::Refine,
    ] {
        add("", KEEP, config(policy, Keep::Lru));
        add("", KEEP, config(policy, Keep::Priority));
    }
    for keep in [Keep::Lfu, Keep::Hot] {
        add("", KEEP, config(Policy::Refine, keep));
    }
    for price in [0.5, 1.0, 2.0] {
        add("", KEEP, Config { price, ..config(Policy::Refine, Keep::Priority) });
    }
    for (keep, price) in [(0.5, 4.0), (0.6, 8.0), (0.6, 16.0), (0.8, 32.0)] {
        let config = Config { price, ..config(Policy::Refine, Keep::Priority) };
        add(&format!(" keep {keep}"), keep, config);
    }
    rows
}

fn print_row(name: &str, outcome: &Outcome, seconds: f64) {
    let stats = &outcome.stats;
    println!(
        "{name:34} {:6.2} {:6.3} {:6.3} {:6.3} {:6.0} {:7.0} {:6.0} {:6.0} {:6.3} {:6.2} {seconds:5.1}",
        outcome.tokens_per_s(),
        stats.stall_miss_ratio(),
        stats.demand_miss_ratio(),
        stats.wasted_ratio(),
        outcome.bytes_per_token() / 1e6,
        outcome.ranks_per_token(),
        outcome.quantile_ns(0.5) as f64 / 1e6,
        outcome.quantile_ns(0.99) as f64 / 1e6,
        outcome.coverage,
        outcome.disk_busy,
    );
}
