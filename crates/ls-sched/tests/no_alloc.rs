//! The steady state does not allocate. Alone in its process, since all threads' allocations count.

#![allow(clippy::unwrap_used)]

use std::alloc::System;

use ls_sched::{Chunk, Command, Config, Controller, Count, Curve, Event, Layout, Mode, Policy};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const N_LAYERS: u32 = 6;
const N_CHUNKS: u32 = 300;

/// Does what the controller says, at once; `todo` and `scores` are memory for it.
fn obey(controller: &mut Controller, todo: &mut Vec<Command>, scores: &mut [f32], token: u32) {
    loop {
        todo.extend(std::iter::from_fn(|| controller.next_command()));
        let Some(command) = todo.pop() else { return };
        let event = match command {
            Command::Rank { layer, .. } => {
                for (i, score) in scores.iter_mut().enumerate() {
                    let x = (i as u32 * 7919 + layer * 31 + token * token) % 251;
                    *score = x as f32 / 50.0;
                }
                Event::Scores { layer, scores }
            }
            Command::Submit { read } => {
                let Some(read) = controller.read(read) else { continue };
                for chunk in read.chunks() {
                    controller.handle(Event::Arrived(chunk), 0).unwrap();
                }
                continue;
            }
            Command::RunStage { stage } => Event::StageDone { stage },
            _ => continue,
        };
        controller.handle(event, 0).unwrap();
    }
}

fn token(controller: &mut Controller, todo: &mut Vec<Command>, scores: &mut [f32], number: u32) {
    controller.handle(Event::TokenBegun, 0).unwrap();
    for layer in 0..N_LAYERS {
        obey(controller, todo, scores, number);
        controller.handle(Event::LayerEntered { layer }, 0).unwrap();
    }
    obey(controller, todo, scores, number);
}

#[test]
fn the_steady_state_does_not_allocate() {
    for (mode, count, price) in [
        (Mode::Exact, Count::Fixed, 0.0),
        (Mode::Sparse, Count::Fixed, 0.0),
        (Mode::Sparse, Count::Fixed, 1.0),
        (Mode::Sparse, Count::ByWorth, 0.1),
    ] {
        let layout = Layout::even(N_LAYERS, N_CHUNKS, 4096, 0.4);
        let budget = u64::from(N_LAYERS * N_CHUNKS / 3) * 4096;
        let mut config = Config::new(mode, Policy::Fixed(1), budget, Curve::line(20.0, 1.0));
        (config.count, config.price) = (count, price);
        config.transit_frames = 100;
        let mut controller = Controller::new(layout, config).unwrap();
        let mut scores = vec![0.0; N_CHUNKS as usize];
        let mut todo = Vec::with_capacity(10_000);
        (0..4).for_each(|number| token(&mut controller, &mut todo, &mut scores, number));
        let region = Region::new(ALLOCATOR);
        (4..20).for_each(|number| token(&mut controller, &mut todo, &mut scores, number));
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{mode:?} {price}");
        let stats = controller.stats();
        assert!(stats.tokens == 20 && stats.evicted > 1000, "{stats:?}");
        assert!(controller.is_resident(Chunk { layer: 0, index: 0 }) || mode == Mode::Sparse);
    }
}
