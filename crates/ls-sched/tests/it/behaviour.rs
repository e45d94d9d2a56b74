//! Single decisions.

use ls_sched::{
    Chunk, Command, Config, Controller, Count, Curve, Event, Keep, Layout, Mode, Policy, Read,
    SchedError, Worth,
};

const KIB: u64 = 1024;

/// Sparse, of two layers of 32 chunks of 16 KiB, four of which are computed.
fn sparse(policy: Policy, frames: u64, curve: Curve) -> (Layout, Config) {
    let layout = Layout::even(2, 32, 16 << 10, 0.125);
    let config = Config::new(Mode::Sparse, policy, frames * 16 * KIB, curve);
    (layout, Config { stages: 2, ..config })
}

fn commands(controller: &mut Controller) -> Vec<Command> {
    std::iter::from_fn(|| controller.next_command()).collect()
}

fn reads(controller: &Controller, commands: &[Command]) -> Vec<Read> {
    let read = |command: &Command| match command {
        Command::Submit { read } => controller.read(*read),
        _ => None,
    };
    commands.iter().filter_map(read).collect()
}

fn scores(best: &[(usize, f32)]) -> [f32; 32] {
    let mut scores = [0.01; 32];
    best.iter().for_each(|(i, score)| scores[*i] = *score);
    scores
}

/// The reads of layer 0 for these scores.
fn first_reads(curve: Curve, best: &[(usize, f32)]) -> Vec<(u32, u64)> {
    let (layout, config) = sparse(Policy::OneShot, 32, curve);
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    controller.handle(Event::Scores { layer: 0, scores: &scores(best) }, 0).unwrap();
    let commands = commands(&mut controller);
    let reads = reads(&controller, &commands);
    reads.iter().map(|read| (read.first, read.wanted)).collect()
}

#[test]
fn gaps_are_read_through_where_a_read_costs_more() {
    let best = [(3, 9.0), (5, 2.0), (9, 4.0), (20, 3.0)];
    // A read costs as much as 16 KiB: one gap chunk is as good as another read.
    let found = first_reads(Curve::line(16.0, 1.0), &best);
    assert_eq!(found, [(3, 0b101), (9, 1), (20, 1)]);
    // As much as 64 KiB.
    let found = first_reads(Curve::line(64.0, 1.0), &best);
    assert_eq!(found, [(3, 0b1000101), (20, 1)]);
    let found = first_reads(Curve::line(0.0, 1.0), &best);
    assert_eq!(found, [(3, 1), (9, 1), (20, 1), (5, 1)]);
}

#[test]
fn a_layer_that_counts_more_reads_more() {
    let first = |weight: f32| {
        let (mut layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
        layout.layers[0].weight = weight;
        // Of 32 chunks each costs half of the mean score.
        let config = Config { count: Count::ByWorth, price: 0.5, ..config };
        let mut controller = Controller::new(layout, config).unwrap();
        controller.handle(Event::TokenBegun, 0).unwrap();
        let mut all = [1.0; 32];
        (all[3], all[9], all[20]) = (0.6, 0.3, 0.15);
        controller.handle(Event::Scores { layer: 0, scores: &all }, 0).unwrap();
        let commands = commands(&mut controller);
        let reads = reads(&controller, &commands);
        reads.iter().map(|read| read.wanted.count_ones()).sum::<u32>()
    };
    assert_eq!([1.0, 2.0, 4.0].map(first), [30, 31, 32]);
}

#[test]
fn a_layer_starts_with_what_is_there_and_takes_in_what_comes() {
    let (layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    let best = scores(&[(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    for index in [4, 2, 1] {
        controller.handle(Event::Arrived(Chunk { layer: 0, index }), 5).unwrap();
    }
    commands(&mut controller);
    controller.handle(Event::LayerEntered { layer: 0 }, 9).unwrap();
    let found = commands(&mut controller);
    let [Command::Rank { layer: 1, .. }, Command::RunStage { stage }] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(controller.stage(stage).unwrap().chunks, [1, 2]);
    controller.handle(Event::StageDone { stage }, 10).unwrap();
    let found = commands(&mut controller);
    let [Command::RunStage { stage }] = found[..] else { panic!("{found:?}") };
    assert_eq!(controller.stage(stage).unwrap().chunks, [4]);
    controller.handle(Event::Arrived(Chunk { layer: 0, index: 3 }), 11).unwrap();
    controller.handle(Event::StageDone { stage }, 12).unwrap();
    let found = commands(&mut controller);
    let [Command::RunStage { stage }] = found[..] else { panic!("{found:?}") };
    controller.handle(Event::StageDone { stage }, 13).unwrap();
    let found = commands(&mut controller);
    assert_eq!(found, [Command::Retain { layer: 0 }, Command::LayerDone { layer: 0 }]);
}

/// A controller that has entered layer 0 and ranked nothing; all chunks are in memory.
fn all_there(policy: Policy) -> Controller {
    let (layout, config) = sparse(policy, 64, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout, config).unwrap();
    for chunk in (0..2).flat_map(|layer| (0..32).map(move |index| Chunk { layer, index })) {
        controller.handle(Event::Found(chunk), 0).unwrap();
    }
    controller.handle(Event::TokenBegun, 0).unwrap();
    controller.handle(Event::LayerEntered { layer: 0 }, 0).unwrap();
    commands(&mut controller);
    controller
}

fn stage_sizes(controller: &mut Controller) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(stage) = commands(controller).into_iter().find_map(|command| match command {
        Command::RunStage { stage } => Some(stage),
        _ => None,
    }) {
        sizes.push(controller.stage(stage).unwrap().chunks.len());
        controller.handle(Event::StageDone { stage }, 0).unwrap();
    }
    sizes
}

#[test]
fn where_nothing_can_come_in_between_there_is_one_stage() {
    let best = scores(&[(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]);
    // The next layer's ranking is there, and it will not be ranked again.
    let mut controller = all_there(Policy::OneShot);
    controller.handle(Event::Scores { layer: 1, scores: &best }, 0).unwrap();
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    assert_eq!(stage_sizes(&mut controller), [4]);
    // It is to be ranked again after the first.
    let mut controller = all_there(Policy::Fixed(1));
    controller.handle(Event::Scores { layer: 1, scores: &best }, 0).unwrap();
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    assert_eq!(stage_sizes(&mut controller), [2, 2]);
    // Its first ranking is still to come.
    let mut controller = all_there(Policy::OneShot);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    assert_eq!(stage_sizes(&mut controller), [2, 2]);
}

#[test]
fn what_comes_together_is_taken_in_as_one_until_something_is_impossible() {
    let (layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    let best = scores(&[(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    controller.handle(Event::LayerEntered { layer: 0 }, 1).unwrap();
    commands(&mut controller);
    let chunk = |index| Chunk { layer: 0, index };
    let events = [chunk(4), chunk(2), chunk(9), chunk(1)].map(Event::Arrived);
    let error = controller.handle_all(events, 2).unwrap_err();
    assert!(matches!(error, SchedError::Order { .. }), "{error}");
    let there = [4, 2, 9, 1].map(|index| controller.is_resident(chunk(index)));
    assert_eq!(there, [true, true, false, false]);
    let found = commands(&mut controller);
    let [Command::RunStage { stage }] = found[..] else { panic!("{found:?}") };
    assert_eq!(controller.stage(stage).unwrap().chunks, [2, 4]);
}

#[test]
fn the_price_can_change() {
    let (layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout, config).unwrap();
    let worth = Worth { price: 0.5, horizon: 3.0 };
    controller.set_worth(worth).unwrap();
    let Config { price, horizon, .. } = *controller.config();
    assert_eq!(Worth { price, horizon }, worth);
    assert!(controller.set_worth(Worth { price: -1.0, ..worth }).is_err());
    assert_eq!(controller.config().price, 0.5);
}

#[test]
fn a_new_ranking_takes_back_what_is_not_wanted_and_reads_the_new() {
    let (layout, config) = sparse(Policy::Fixed(1), 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    let old = scores(&[(1, 4.0), (12, 3.0), (23, 2.0), (30, 1.0)]);
    controller.handle(Event::Scores { layer: 0, scores: &old }, 0).unwrap();
    controller.handle(Event::LayerEntered { layer: 0 }, 1).unwrap();
    controller.handle(Event::Scores { layer: 1, scores: &old }, 2).unwrap();
    commands(&mut controller);
    let new = scores(&[(1, 4.0), (12, 90.0), (9, 2.0), (30, 1.0)]);
    controller.handle(Event::Scores { layer: 1, scores: &new }, 3).unwrap();
    let found = commands(&mut controller);
    let chunk = |index| Chunk { layer: 1, index };
    assert!(found.contains(&Command::Cancel { chunk: chunk(23) }), "{found:?}");
    let moved = |command: &&Command| matches!(command, Command::Reprioritise { chunk: c, .. } if *c == chunk(12));
    assert_eq!(found.iter().filter(moved).count(), 1);
    assert_eq!(reads(&controller, &found)[0].first, 9);
    // If the same is wanted again before the answer, it is read again after it.
    controller.handle(Event::Scores { layer: 1, scores: &old }, 4).unwrap();
    commands(&mut controller);
    controller.handle(Event::Cancelled(chunk(23)), 5).unwrap();
    let found = commands(&mut controller);
    assert_eq!(reads(&controller, &found)[0].first, 23);
}

#[test]
fn late_chunks_are_dropped_as_far_as_fidelity_allows() {
    let (layout, mut config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    config.fidelity.late_share = 0.1;
    config.late_ns = 100;
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    let best = scores(&[(1, 10.0), (12, 6.0), (23, 3.0), (30, 1.0)]);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    controller.handle(Event::LayerEntered { layer: 0 }, 10).unwrap();
    commands(&mut controller);
    assert_eq!(controller.next_deadline(), Some(110));
    controller.handle(Event::Time, 109).unwrap();
    assert_eq!(commands(&mut controller), []);
    controller.handle(Event::Time, 110).unwrap();
    let late = Chunk { layer: 0, index: 30 };
    let expected = [Command::Drop { chunk: late, share: 0.05 }, Command::Cancel { chunk: late }];
    assert_eq!(commands(&mut controller), expected);
    assert_eq!(controller.stats().late_chunks, 1);
    controller.handle(Event::Arrived(Chunk { layer: 0, index: 1 }), 120).unwrap();
    assert_eq!(controller.stats().stall_miss_bytes, 16 * KIB);
}

#[test]
fn a_read_that_hangs_is_given_up_and_not_waited_for_again() {
    let (layout, mut config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    config.read_deadline_ns = 1000;
    config.fidelity.lost_share = 0.1;
    let mut controller = Controller::new(layout, config).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap();
    let best = scores(&[(1, 10.0), (12, 6.0), (23, 3.0), (30, 1.0)]);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 0).unwrap();
    controller.handle(Event::LayerEntered { layer: 0 }, 10).unwrap();
    for index in [1, 12, 23] {
        controller.handle(Event::Arrived(Chunk { layer: 0, index }), 20).unwrap();
    }
    let before = commands(&mut controller);
    assert_eq!(controller.next_deadline(), Some(1000));
    controller.handle(Event::Time, 1000).unwrap();
    let found = commands(&mut controller);
    let hung = Chunk { layer: 0, index: 30 };
    assert!(found.contains(&Command::Drop { chunk: hung, share: 0.05 }), "{found:?}");
    assert_eq!((controller.stats().lost_chunks, controller.occupied_frames()), (1, 4));

    // Its frame is lost for now; the next token chooses another chunk.
    controller.handle(Event::TokenAbandoned, 1001).unwrap();
    for command in before.into_iter().chain(found) {
        if let Command::RunStage { stage } = command {
            controller.handle(Event::StageDone { stage }, 1001).unwrap();
        }
    }
    controller.handle(Event::RankFailed { layer: 1 }, 1001).unwrap();
    controller.handle(Event::TokenBegun, 1002).unwrap();
    commands(&mut controller);
    controller.handle(Event::Scores { layer: 0, scores: &best }, 1003).unwrap();
    let found = commands(&mut controller);
    let found = reads(&controller, &found);
    assert_eq!(found.iter().map(|read| read.first).collect::<Vec<_>>(), [0]);
    controller.handle(Event::Arrived(hung), 1004).unwrap();
    assert!(controller.is_resident(hung));
}

#[test]
fn exact_mode_keeps_the_first_chunks_of_each_layer() {
    let layout = Layout::even(4, 64, 16 << 10, 1.0);
    let budget = 32 * 4 * 16 * KIB;
    let mut config = Config::new(Mode::Exact, Policy::OneShot, budget, Curve::line(54.0, 1.0));
    config.transit_frames = 64;
    config.ahead = 2;
    assert_eq!(config.keep, Keep::Hot);
    let mut controller = Controller::new(layout, config).unwrap();
    for _ in 0..4 {
        controller.handle(Event::TokenBegun, 0).unwrap();
        for layer in 0..4 {
            controller.handle(Event::LayerEntered { layer }, 0).unwrap();
            loop {
                let found = commands(&mut controller);
                if found.is_empty() {
                    break;
                }
                let runs = reads(&controller, &found);
                for chunk in runs.iter().flat_map(Read::chunks) {
                    controller.handle(Event::Arrived(chunk), 0).unwrap();
                }
                for command in &found {
                    if let Command::RunStage { stage } = command {
                        controller.handle(Event::StageDone { stage: *stage }, 0).unwrap();
                    }
                }
            }
        }
    }
    let stats = controller.stats();
    assert_eq!((stats.tokens, stats.aborted, stats.unused_bytes, stats.gap_bytes), (4, 0, 0, 0));
    // Of each layer 16 chunks stay.
    let kept = (0..16).filter(|index| controller.is_resident(Chunk { layer: 0, index: *index }));
    assert_eq!(kept.count(), 16);
}

#[test]
fn what_was_found_in_memory_is_not_read() {
    let (layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout.clone(), config).unwrap();
    let found = |index| Chunk { layer: 0, index };
    for index in 0..layout.layers[0].n_chunks {
        controller.handle(Event::Found(found(index)), 0).unwrap();
        assert!(controller.is_resident(found(index)));
    }
    controller.handle(Event::Found(found(0)), 0).unwrap_err();
    assert_eq!(controller.occupied_frames(), layout.layers[0].n_chunks.into());
    controller.handle(Event::TokenBegun, 0).unwrap();
    controller.handle(Event::Found(Chunk { layer: 1, index: 0 }), 0).unwrap_err();
    assert_eq!(controller.chosen(0), None);
    controller.handle(Event::LayerEntered { layer: 0 }, 0).unwrap();
    let n = layout.layers[0].n_chunks as usize;
    controller.handle(Event::Scores { layer: 0, scores: &vec![1.0; n] }, 0).unwrap();
    let n_keep = layout.layers[0].n_keep as usize;
    assert_eq!(controller.chosen(0).map(<[u16]>::len), Some(n_keep));
    let commands: Vec<_> = std::iter::from_fn(|| controller.next_command()).collect();
    assert!(commands.iter().any(|command| matches!(command, Command::RunStage { .. })));
    assert!(!commands.iter().any(|command| matches!(command, Command::Submit { .. })));
}

#[test]
fn what_cannot_have_happened_is_refused() {
    let (layout, config) = sparse(Policy::OneShot, 32, Curve::line(0.0, 1.0));
    let mut controller = Controller::new(layout.clone(), config.clone()).unwrap();
    let chunk = Chunk { layer: 0, index: 0 };
    for event in [
        Event::LayerEntered { layer: 0 },
        Event::Arrived(chunk),
        Event::Gone(chunk),
        Event::TokenAbandoned,
        Event::Arrived(Chunk { layer: 9, index: 0 }),
        Event::Arrived(Chunk { layer: 1, index: 32 }),
        Event::Scores { layer: 0, scores: &[1.0] },
        Event::Scores { layer: 7, scores: &[] },
        Event::BudgetChanged { bytes: 1 },
    ] {
        controller.handle(event, 0).unwrap_err();
    }
    controller.handle(Event::TokenBegun, 0).unwrap();
    controller.handle(Event::TokenBegun, 0).unwrap_err();
    controller.handle(Event::LayerEntered { layer: 1 }, 0).unwrap_err();

    let tiny = Config { budget_bytes: 100, ..config.clone() };
    let error = Controller::new(layout.clone(), tiny).unwrap_err();
    assert_eq!(error, SchedError::Budget { found: 0, least: 1 });
    let far = Config { ahead: 2, ..config };
    assert!(Controller::new(layout, far).is_err());
}
