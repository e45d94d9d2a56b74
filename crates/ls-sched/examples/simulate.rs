//! How fast a model of Mistral-7B's shape would be on machines that are not at hand.
//!
//! Prints a table of policies for each board, with made-up importances that have the statistics of a recorded trace;
//! see the crate's `sim::Synthetic::like`. With a trace, it prints that trace's statistics instead.
//!
//! ```sh
//! cargo run --release -p ls-sched --example simulate -- [board [share of the MLPs cached [part of a policy's name
//!     [how many times as fast the disk is]]]]
//! cargo run --release -p ls-sched --example simulate -- trace.lstr
//! ```

#![allow(clippy::print_stdout)]

use ls_sched::sim::{Board, Host, Outcome, Setup, Shape, Synthetic, Trace, simulate};
use ls_sched::{Config, Count, Curve, Keep, Mode, Policy, Worth};

type Failure = Box<dyn std::error::Error>;

const WARM_UP: u32 = 40;
const COUNTED: u32 = 24;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if let Some(path) = first.as_ref().filter(|path| path.ends_with(".lstr")) {
        println!("{:#?}", Synthetic::like(&Trace::from_bytes(&std::fs::read(path)?)?)?);
        return Ok(());
    }
    let shares = args.next().map_or(Ok(vec![0.25, 0.5]), |share| share.parse().map(|s| vec![s]))?;
    let part = args.next().unwrap_or_default();
    let faster: f64 = args.next().map_or(Ok(1.0), |times| times.parse())?;
    let shape = Shape::MISTRAL_7B;
    let of = Synthetic {
        n_tokens: WARM_UP + COUNTED,
        n_layers: shape.n_layers,
        n_chunks: shape.n_chunks * shape.neurons_per_chunk,
        ..Synthetic::QWEN_1_5B
    };
    let trace = of.trace()?;
    for known in Board::ALL.iter().filter(|known| first.as_deref().is_none_or(|b| b == known.name))
    {
        let Curve { fixed_ns, ns_per_kib, .. } = known.curve;
        let (fixed_ns, ns_per_kib) = (fixed_ns / faster, ns_per_kib / faster);
        let board = &Board { curve: Curve { fixed_ns, ns_per_kib, ..known.curve }, ..*known };
        println!("\n{}\n", board.name);
        println!(
            "| cached | policy | tok/s | MB/token | importance | chosen | stall miss | disk busy | p99 ms |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for cached in &shares {
            let budget = (shape.layout(1.0).total_bytes() as f64 * cached) as u64;
            let play = |name: &str, board: Board, config| -> Result<(), Failure> {
                if !name.contains(&part) {
                    return Ok(());
                }
                let setup = Setup { warm_up: WARM_UP, ..Setup::new(board, shape, config) };
                print(*cached, name, &simulate(&trace, &setup)?);
                Ok(())
            };
            for (name, config) in rows(board, budget, *cached) {
                play(name, *board, config)?;
            }
            for (name, config) in rows(board, budget, *cached).into_iter().skip(8) {
                play(&format!("{name}, ranked as here"), as_here(board), config)?;
            }
        }
    }
    Ok(())
}

/// The machine, if those who compute also rank, choose and read, at the speed of two cores of a Xeon: as replays found
/// it of Qwen 1.5B, by the size of the predictors' input and output and the number of chunks.
fn as_here(board: &Board) -> Board {
    let (size, chunks) = (4096.0 * 14336.0 / (1536.0 * 8960.0), 7168.0 / 2240.0);
    Board {
        host: Host::Computes,
        rank_ns: 330_000.0 * size,
        choose_ns: 240_000.0 * chunks,
        chunk_ns: 4_500.0,
        ..*board
    }
}

/// The policies; those that refine as the engine has them by default.
fn rows(board: &Board, budget: u64, cached: f64) -> Vec<(&'static str, Config)> {
    let exact = Config {
        mode: Mode::Exact,
        keep: Keep::Hot,
        ahead: 4,
        ..board.config(Policy::OneShot, budget)
    };
    let one_shot = Config { keep: Keep::Lru, ..board.config(Policy::OneShot, budget) };
    let Worth { price, horizon } = Worth::usual(cached);
    let worth = |policy| Config {
        count: Count::ByWorth,
        price,
        late_price: 4.0,
        horizon,
        correct: true,
        ..board.config(policy, budget)
    };
    let number = |price| {
        let config = board.config(Policy::Refine, budget);
        Config { price, correct: true, ..config }
    };
    let refine = |price, horizon| Config { price, horizon, ..worth(Policy::Refine) };
    vec![
        ("exact", exact),
        ("one-shot, LRU", one_shot),
        ("serial", worth(Policy::Serial)),
        ("fixed, every 2", worth(Policy::Fixed(2))),
        ("refine, fixed number", number(0.0)),
        ("refine, fixed number, price 2", number(2.0)),
        ("refine, price 0.02", refine(0.02, 8.0)),
        ("refine, price 0.05", refine(0.05, 8.0)),
        ("refine (default)", worth(Policy::Refine)),
        ("refine, price 0.6, horizon 2", refine(0.6, 2.0)),
    ]
}

fn print(cached: f64, name: &str, of: &Outcome) {
    println!(
        "| {cached} | {name} | {:.2} | {:.0} | {:.3} | {:.3} | {:.3} | {:.2} | {:.0} |",
        of.tokens_per_s(),
        of.bytes_per_token() / 1e6,
        of.coverage,
        of.computed,
        of.stats.stall_miss_ratio(),
        of.disk_busy,
        of.quantile_ns(0.99) as f64 / 1e6,
    );
}
