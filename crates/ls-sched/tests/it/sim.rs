//! Simulated tokens.

use ls_sched::sim::{Board, Host, Outcome, Setup, Shape, Synthetic, Trace, simulate};
use ls_sched::{Config, Count, Curve, Keep, Mode, Policy};

/// A small model, whose attention is small too.
const SHAPE: Shape = Shape {
    n_layers: 6,
    n_chunks: 600,
    neurons_per_chunk: 1,
    chunk_bytes: 16 << 10,
    layer_bytes: 500_000,
    token_bytes: 3_000_000,
};

/// With half of the chunks in memory, reading takes about as long as computing.
const BALANCED: Board = Board {
    name: "balanced",
    curve: Curve::line(1_000.0, 360.0),
    queue_depth: 16,
    latency_ns: 30_000.0,
    jitter: 0.2,
    compute_rate: 8.0,
    stage_ns: 3_000.0,
    host: Host::Apart,
    rank_ns: 15_000.0,
    rank_stall_ns: 4_000.0,
    choose_ns: 0.0,
    chunk_ns: 0.0,
    between_ns: 20_000.0,
    token_ns: 0.0,
};

fn trace(n_tokens: u32) -> Trace {
    let Shape { n_layers, n_chunks, .. } = SHAPE;
    Synthetic { n_tokens, n_layers, n_chunks, ..Synthetic::default() }.trace().unwrap()
}

fn setup(board: Board, policy: Policy, cached: f64) -> Setup {
    let budget = (SHAPE.layout(0.4).total_bytes() as f64 * cached) as u64;
    let mut config = board.config(policy, budget);
    (config.transit_frames, config.max_reads) = (64, 24);
    Setup { warm_up: 6, ..Setup::new(board, SHAPE, config) }
}

fn play(trace: &Trace, setup: &Setup) -> Outcome {
    simulate(trace, setup).unwrap()
}

/// Nanoseconds of a mean token.
fn mean_ns(outcome: &Outcome) -> f64 {
    1e9 / outcome.tokens_per_s()
}

#[test]
fn exact_mode_is_as_fast_as_disk_or_processor() {
    let trace = trace(9);
    for curve in [Curve::line(17_000.0, 320.0), Curve::line(600.0, 60.0), Curve::line(100.0, 10.0)]
    {
        let board = Board { curve, ..BALANCED };
        let base = setup(board, Policy::OneShot, 0.5);
        let mut config = Config { mode: Mode::Exact, keep: Keep::Hot, ..base.config.clone() };
        (config.ahead, config.transit_frames) = (4, 192);
        let outcome = play(&trace, &Setup { config, ..base });
        let total = SHAPE.layout(1.0).total_bytes() as f64;
        let resident = SHAPE.resident_bytes() as f64;
        // Each layer was read but for its share of what is not for passing through.
        let kept = total / 2.0 - 192.0 * f64::from(SHAPE.chunk_bytes);
        let read = outcome.bytes_per_token();
        assert!((read / (total - kept) - 1.0).abs() < 0.03, "{read} of {}", total - kept);
        let disk = curve.read_ns(512 << 10) * read / f64::from(512 << 10);
        let compute = (total + resident) / board.compute_rate;
        let bound = disk.max(compute);
        let ratio = mean_ns(&outcome) / bound;
        assert!((1.0..1.25).contains(&ratio), "{ratio} of the bound, {curve:?}");
        let mean_read = outcome.disk_bytes as f64 / outcome.stats.reads as f64;
        assert!(mean_read > 200e3, "reads of {mean_read}");
        assert_eq!((outcome.computed, outcome.stats.unused_bytes), (1.0, 0));
    }
}

#[test]
fn reads_that_overlap_with_computing_are_faster_than_serial_ones() {
    let trace = trace(14);
    let [serial, one_shot, fixed] =
        [Policy::Serial, Policy::OneShot, Policy::Fixed(2)].map(|policy| {
            let mut setup = setup(BALANCED, policy, 0.5);
            setup.config.keep = Keep::Lru;
            play(&trace, &setup)
        });
    let ratio = one_shot.tokens_per_s() / serial.tokens_per_s();
    assert!(ratio > 1.07, "{ratio} {} {} {}", serial.coverage, one_shot.coverage, fixed.coverage);
    for outcome in [&serial, &one_shot, &fixed] {
        let computed = 0.4 * SHAPE.layout(0.4).total_bytes() as f64;
        let bytes = computed + SHAPE.resident_bytes() as f64;
        assert!(mean_ns(outcome) > bytes / BALANCED.compute_rate, "faster than can be");
        assert!(outcome.disk_busy <= 1.01 && (outcome.computed - 0.4).abs() < 0.001);
        assert!(outcome.stats.stall_miss_ratio() <= outcome.stats.demand_miss_ratio() + 0.1);
    }
    // What is ranked early is less exact; ranking again makes up for most of it.
    assert!(one_shot.coverage < serial.coverage - 0.02);
    assert!(fixed.coverage > one_shot.coverage + 0.015);
}

#[test]
fn the_adaptive_interval_is_hardly_ever_worse_than_the_best_fixed_one() {
    let trace = trace(16);
    let slow = Board { curve: Curve::line(10_000.0, 220.0), rank_stall_ns: 20_000.0, ..BALANCED };
    // Those who compute rank, and that takes as long as some stages.
    let inline = |board| {
        let costs = Board { rank_ns: 60_000.0, choose_ns: 30_000.0, chunk_ns: 500.0, ..board };
        Board { host: Host::Computes, ..costs }
    };
    let boards = [BALANCED, slow, inline(BALANCED), inline(slow)];
    for (board, cached) in boards.into_iter().flat_map(|board| [(board, 0.5), (board, 0.25)]) {
        let best = (1..=8)
            .map(|k| mean_ns(&play(&trace, &setup(board, Policy::Fixed(k), cached))))
            .fold(f64::MAX, f64::min);
        let adaptive = play(&trace, &setup(board, Policy::Refine, cached));
        let ratio = mean_ns(&adaptive) / best;
        assert!(ratio < 1.02, "{ratio} {board:?} {cached}");
        assert!(adaptive.stats.solves < 8, "{:?}", adaptive.stats);
        let whole = f64::from(adaptive.profile.rank_stall_ns) / (board.rank_ns + board.choose_ns);
        assert!(board.host == Host::Apart || (whole - 1.0).abs() < 0.05, "{whole}");
    }
}

#[test]
fn a_price_buys_time_for_importance() {
    let trace = trace(14);
    let disk = Board { curve: Curve::line(17_000.0, 320.0), ..BALANCED };
    let at = |price: f32| {
        let mut setup = setup(disk, Policy::Fixed(4), 0.25);
        setup.config.price = price;
        play(&trace, &setup)
    };
    let [free, cheap, dear] = [0.0, 0.5, 2.0].map(at);
    assert!(cheap.tokens_per_s() > 1.05 * free.tokens_per_s());
    assert!(dear.tokens_per_s() > 1.3 * free.tokens_per_s());
    assert!(cheap.coverage > free.coverage - 0.005 && dear.coverage > free.coverage - 0.04);
    assert!((dear.computed - 0.4).abs() < 0.001);
}

#[test]
fn what_is_kept_by_priority_hits_most() {
    let trace = trace(40);
    let hot: Vec<_> = (0..SHAPE.n_layers).map(|layer| trace.hot(layer, 0.4).unwrap()).collect();
    let misses = Keep::ALL.map(|keep| {
        let mut setup = setup(BALANCED, Policy::OneShot, 0.5);
        // The first layer is chosen by history otherwise, which then tells of itself.
        (setup.config.keep, setup.config.correct) = (keep, true);
        setup.warm_up = 20;
        setup.hot.clone_from(&hot);
        play(&trace, &setup).stats.demand_miss_ratio()
    });
    let [lru, lfu, hot, priority] = misses;
    assert!(priority < lru && priority < lfu && priority < hot, "{misses:?}");
}

#[test]
fn late_chunks_are_dropped_and_time_is_won() {
    let trace = trace(12);
    let mut setup = setup(BALANCED, Policy::OneShot, 0.25);
    setup.config.correct = true;
    let strict = play(&trace, &setup);
    setup.config.fidelity.late_share = 0.02;
    setup.config.late_ns = 20_000;
    let lenient = play(&trace, &setup);
    assert_eq!(strict.stats.late_chunks, 0);
    assert!(lenient.stats.late_chunks > 0);
    assert!(lenient.tokens_per_s() > 1.02 * strict.tokens_per_s());
    let layers = lenient.stats.layers as f64;
    assert!(lenient.stats.late_share / layers <= 0.02 && lenient.coverage > strict.coverage - 0.02);
}

#[test]
fn who_computes_also_ranks_and_takes_in_what_comes() {
    let trace = trace(10);
    let at = |cached: f64, rank_ns: f64, chunk_ns: f64| {
        let board = Board { host: Host::Computes, rank_ns, chunk_ns, ..BALANCED };
        let mut setup = setup(board, Policy::Fixed(2), cached);
        setup.config.correct = true;
        play(&trace, &setup)
    };
    // All that matters is in memory, so that no time is hidden behind a read.
    let [quick, slow] = [10_000.0, 110_000.0].map(|ns| at(1.5, ns, 0.0));
    let more = (mean_ns(&slow) - mean_ns(&quick)) / 100_000.0;
    assert!(
        (more / slow.ranks_per_token() - 1.0).abs() < 0.05,
        "{more} {}",
        slow.ranks_per_token()
    );
    let [free, dear] = [0.0, 20_000.0].map(|ns| at(0.5, 10_000.0, ns));
    assert_eq!((free.token_ns.len(), dear.token_ns.len()), (4, 4));
    let chunks = (dear.stats.read_bytes - dear.stats.gap_bytes) / u64::from(SHAPE.chunk_bytes);
    let handled = 20_000.0 * chunks as f64 / 4.0;
    assert!(mean_ns(&dear) > handled && mean_ns(&dear) > mean_ns(&free), "{handled}");
}

#[test]
fn layers_that_miss_nothing_are_ranked_ahead_now_and_then() {
    let trace = trace(40);
    let board = Board { host: Host::Computes, rank_ns: 60_000.0, choose_ns: 30_000.0, ..BALANCED };
    let [once, adaptive] = [Policy::OneShot, Policy::Refine].map(|policy| {
        let mut setup = setup(board, policy, 2.5);
        (setup.config.correct, setup.warm_up) = (true, 24);
        play(&trace, &setup)
    });
    let layers = f64::from(SHAPE.n_layers);
    assert!(once.ranks_per_token() >= 2.0 * layers - 1.0, "{}", once.ranks_per_token());
    let ratio = adaptive.ranks_per_token() / layers;
    assert!((1.05..1.5).contains(&ratio), "{ratio}");
    assert!(adaptive.tokens_per_s() > 1.03 * once.tokens_per_s());
    assert!(adaptive.stats.stall_miss_ratio() < 1e-3, "{:?}", adaptive.stats);
}

#[test]
fn of_chunks_the_best_neurons_are_computed() {
    let Shape { n_layers, n_chunks, .. } = SHAPE;
    let (n_tokens, n_chunks) = (10, 4 * n_chunks);
    let trace = Synthetic { n_tokens, n_layers, n_chunks, ..Synthetic::QWEN_1_5B }.trace().unwrap();
    let at = |count, price| {
        let mut setup = setup(BALANCED, Policy::Fixed(2), 0.5);
        setup.shape.neurons_per_chunk = 4;
        setup.config.correct = true;
        (setup.config.count, setup.config.price) = (count, price);
        play(&trace, &setup)
    };
    let kept: u32 = trace.shape().n_keep.iter().sum();
    let share = f64::from(kept) / f64::from(n_layers * n_chunks);
    let [fixed, cheap, dear] =
        [(Count::Fixed, 0.0), (Count::ByWorth, 0.01), (Count::ByWorth, 1.0)].map(|(c, p)| at(c, p));
    assert!((fixed.computed - share).abs() < 0.01, "{} {share}", fixed.computed);
    // More where a layer begins before it is ranked.
    let [some, most] = [dear.computed, cheap.computed];
    assert!(some < most && most < share + 0.05, "{some} {most} {share}");
    assert!(dear.tokens_per_s() > 1.2 * cheap.tokens_per_s() && dear.coverage < cheap.coverage);
    // What is best of more chunks is worth more than all of the best chunks.
    assert!(cheap.coverage > fixed.coverage);
}

#[test]
fn the_same_seed_plays_the_same() {
    let trace = trace(9);
    let setup = setup(BALANCED, Policy::Refine, 0.5);
    assert_eq!(play(&trace, &setup), play(&trace, &setup));
    let other = Setup { seed: 2, ..setup.clone() };
    assert_ne!(play(&trace, &setup).disk_busy, play(&trace, &other).disk_busy);
    let wrong = Setup { shape: Shape { n_layers: 5, ..SHAPE }, ..setup };
    assert!(simulate(&trace, &wrong).is_err());
}
