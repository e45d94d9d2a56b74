//! What holds whatever happens in whatever order.

use ls_sched::{Config, Count, Curve, Fidelity, Keep, Layer, Layout, Mode, Policy};
use proptest::prelude::*;

use crate::world::{End, Faults, World};

fn layout() -> impl Strategy<Value = Layout> {
    let layer = (1u32..70).prop_flat_map(|n_chunks| {
        (1..=n_chunks, 1..=n_chunks.min(12), 0.25f32..4.0).prop_map(
            move |(n_keep, segment_chunks, weight)| Layer {
                weight,
                n_chunks,
                n_keep,
                segment_chunks,
                chunk_bytes: 4096,
            },
        )
    });
    prop::collection::vec(layer, 1..5).prop_map(|layers| Layout { frame_bytes: 4096, layers })
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Serial),
        Just(Policy::OneShot),
        (1u32..5).prop_map(Policy::Fixed),
        Just(Policy::Refine)
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let mode = prop_oneof![Just(Mode::Exact), Just(Mode::Sparse)];
    let numbers = (0u32..4, 1u32..9, 1u32..4, 1u32..9, 0u32..30);
    let shares = (0f32..1.0, 0f32..2.0, prop_oneof![Just(0f32), 0f32..0.3]);
    (
        mode,
        policy(),
        prop::sample::select(&Keep::ALL),
        numbers,
        shares,
        0u32..120,
        0f64..90_000.0,
        (any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |(mode, policy, keep, numbers, shares, frames, fixed, (correct, by_worth))| {
                let mut config = Config::new(mode, policy, 0, Curve::line(fixed, 1000.0));
                config.keep = keep;
                // Completed below: layers ahead and frames depend on the layout.
                (
                    config.ahead,
                    config.stages,
                    config.lanes,
                    config.max_reads,
                    config.transit_frames,
                ) = numbers;
                (config.least_stage, config.price, config.fidelity.late_share) = shares;
                config.budget_bytes = u64::from(frames) * 4096;
                config.correct = correct;
                config.count = if by_worth { Count::ByWorth } else { Count::Fixed };
                config.late_ns = 3000;
                config.read_deadline_ns = 50_000;
                config
            },
        )
}

fn faults() -> impl Strategy<Value = Faults> {
    let kinds = (0u8..4, 0u8..3, 0u8..3, any::<bool>(), any::<bool>());
    kinds.prop_map(|(failing, hanging, unranked, refusing, shaky)| Faults {
        failing,
        hanging,
        refusing,
        unranked,
        shaky,
    })
}

fn world(layout: Layout, mut config: Config, choices: Vec<u16>, faults: Faults) -> World {
    config.ahead = config.ahead.min(layout.n_layers() - 1);
    let least = layout.layers.iter().map(|layer| layer.segment_chunks).max().unwrap();
    config.budget_bytes += u64::from(least) * u64::from(layout.frame_bytes);
    World::new(layout, config, choices, faults)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn without_faults_every_token_is_complete(
        layout in layout(), config in config(), choices in prop::collection::vec(any::<u16>(), 0..1500),
    ) {
        let late = config.fidelity.late_share;
        let config = Config { read_deadline_ns: 1 << 40, ..config };
        let mut world = world(layout, config, choices, Faults::NONE);
        for _ in 0..3 {
            prop_assert_eq!(world.token(), End::Complete);
        }
        prop_assert!(late > 0.0 || world.n_late == 0);
        prop_assert_eq!(world.controller.stats().tokens, 3);
    }

    #[test]
    fn whatever_fails_every_token_ends(
        layout in layout(), config in config(), faults in faults(), lost in 0f32..0.5,
        choices in prop::collection::vec(any::<u16>(), 0..3000),
    ) {
        let mut config = config;
        config.fidelity = Fidelity { lost_share: lost, ..config.fidelity };
        let mut world = world(layout, config, choices, faults);
        let ends: Vec<End> = (0..4).map(|_| world.token()).collect();
        let stats = *world.controller.stats();
        let complete = ends.iter().filter(|end| **end == End::Complete).count();
        prop_assert_eq!((stats.tokens, stats.aborted), (complete as u64, 4 - complete as u64));
    }
}
