//! A trace is what enters the MLPs, however often its recording was interrupted.

use std::ops::ControlFlow;
use std::path::Path;

use ls_engine::trace::{
    RecordOptions, RecordProgress, Recorded, Trace, TraceError, cut_into_windows, record,
};
use ls_engine::{Engine, EngineError, FaultPlan, Layerwise, Part, Position, StreamOptions};
use proptest::prelude::*;

use crate::streaming::{in_memory, streamed, tiny_pack};
use crate::{fixtures, load};

fn text(engine: &Engine, n: usize) -> Vec<Vec<u32>> {
    let tokens: Vec<u32> = (0..n).map(|i| (300 + i * 37 % 600) as u32).collect();
    cut_into_windows(&tokens, 48, engine.tokenizer().bos(), n)
}

fn go_on(_: &RecordProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Records until it is interrupted after `steps` steps.
fn some(
    engine: &Engine,
    windows: &[Vec<u32>],
    out: &Path,
    options: &RecordOptions,
    steps: usize,
) -> Recorded {
    let mut left = steps;
    let mut last = 0;
    record(engine, windows, out, options, &mut |progress| {
        assert!(progress.done >= last && progress.done <= progress.total);
        last = progress.done;
        left = left.saturating_sub(1);
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap()
}

#[test]
fn a_trace_has_what_enters_the_mlps_of_the_sampled_tokens() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let windows = text(&engine, 203);
    let out = dir.path().join("a.lstrace");
    let d = engine.config().d_model;
    // Room for about a third of the tokens.
    let limit = (70 * engine.config().n_layers * d * 2) as u64;
    let options = RecordOptions { limit, seed: 5, ..RecordOptions::default() };
    let recorded = record(&engine, &windows, &out, &options, &mut go_on).unwrap();
    assert_eq!((recorded.resumed, recorded.stopped), (None, None));
    assert_eq!(recorded.bytes, std::fs::metadata(&out).unwrap().len());
    assert!(recorded.bytes <= limit, "{recorded:?}");
    let mut trace = Trace::open(&out).unwrap();
    assert_eq!(trace.info(), &recorded.info);
    let info = trace.info().clone();
    assert_eq!(info.pack, engine.model().pack().unwrap().checksum());
    assert_eq!(info.n_tokens, 203);
    assert!((55..70).contains(&info.sampled.len()), "{}", info.sampled.len());
    let mut pass = Layerwise::new(&engine, &windows).unwrap();
    while let Some(layer) = pass.attend().unwrap() {
        let got = trace.layer(layer).unwrap();
        let mut row = vec![0.0; d];
        for (i, token) in info.sampled.iter().enumerate() {
            got.rows(i..i + 1, &mut row);
            let want = &pass.residual()[*token as usize * d..][..d];
            for (got, want) in row.iter().zip(want) {
                assert!((got - want).abs() <= want.abs() / 256.0, "{got} for {want}");
            }
        }
        pass.mlp().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn interruptions_change_no_byte(
        n in 20..400usize,
        steps in prop::collection::vec(1..12usize, 1..6),
        share in 0.0..1.0f64,
    ) {
        let (dir, path) = tiny_pack();
        let engine = in_memory(&path);
        let windows = text(&engine, n);
        let out = |name: &str| dir.path().join(name);
        let options = RecordOptions { limit: 40_000, ..RecordOptions::default() };
        record(&engine, &windows, &out("whole"), &options, &mut go_on).unwrap();
        let cache_limit = Some((200_000.0 * share) as u64);
        let stream = StreamOptions { cache_limit, ..StreamOptions::default() };
        let streamed = streamed(&path, 2, stream).unwrap();
        let resume = RecordOptions { resume: true, ..options };
        let mut at = None;
        let engines = [&engine, &streamed];
        for (i, steps) in steps.into_iter().enumerate() {
            let engine = engines[i % 2];
            let got = some(engine, &windows, &out("pieces"), &resume, steps + 1);
            prop_assert_eq!(got.resumed, at);
            at = got.stopped;
            prop_assert_eq!(at.is_some(), out("pieces.resume").exists());
            if at.is_none() {
                break;
            }
        }
        if at.is_some() {
            record(&engine, &windows, &out("pieces"), &resume, &mut go_on).unwrap();
        }
        prop_assert!(std::fs::read(out("pieces")).unwrap() == std::fs::read(out("whole")).unwrap());
        prop_assert!(!out("pieces.part").exists() && !out("pieces.resume").exists());
    }
}

#[test]
fn nothing_is_replaced_or_mixed_up() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let (windows, out) = (text(&engine, 100), dir.path().join("a.lstrace"));
    let options = RecordOptions { limit: 40_000, ..RecordOptions::default() };
    let resume = RecordOptions { resume: true, ..options.clone() };
    let attempt = |windows: &[Vec<u32>], options: &RecordOptions| {
        record(&engine, windows, &out, options, &mut go_on)
    };
    some(&engine, &windows, &out, &options, 5);
    let error = attempt(&windows, &options).unwrap_err();
    assert!(matches!(error, TraceError::Unfinished { .. }), "{error}");
    let error = attempt(&text(&engine, 110), &resume).unwrap_err();
    assert!(matches!(error, TraceError::Other { .. }), "{error}");
    let error = attempt(&windows, &RecordOptions { seed: 1, ..resume.clone() }).unwrap_err();
    assert!(matches!(error, TraceError::Other { .. }), "{error}");
    attempt(&windows, &resume).unwrap();
    let error = attempt(&windows, &resume).unwrap_err();
    assert!(matches!(error, TraceError::Exists { .. }), "{error}");
    let force = RecordOptions { force: true, ..options.clone() };
    assert_eq!(attempt(&windows, &force).unwrap().resumed, None);
    let error = attempt(&windows, &RecordOptions { limit: 99, ..force }).unwrap_err();
    assert!(matches!(error, TraceError::Limit { limit: 99, .. }), "{error}");
    let unpacked = load(&fixtures().join("tiny-book.gguf"), 1);
    let none = dir.path().join("b.lstrace");
    let error = record(&unpacked, &windows, &none, &options, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("is no pack"), "{error}");
}

#[test]
fn a_disk_that_fails_costs_no_progress() {
    let (dir, path) = tiny_pack();
    let whole = in_memory(&path);
    let (windows, out) = (text(&whole, 150), dir.path().join("a.lstrace"));
    let options = RecordOptions { limit: 40_000, resume: true, ..RecordOptions::default() };
    let layer = whole.config().n_layers - 2;
    let bad = whole.model().pack().unwrap().layers()[layer];
    let fault = FaultPlan {
        bad: Some(bad.offset..bad.offset + bad.stored_bytes()),
        ..FaultPlan::default()
    };
    let stream =
        StreamOptions { cache_limit: Some(0), fault: Some(fault), ..StreamOptions::default() };
    let engine = streamed(&path, 2, stream).unwrap();
    for _ in 0..2 {
        let error = record(&engine, &windows, &out, &options, &mut go_on).unwrap_err();
        assert!(matches!(error, TraceError::Engine(EngineError::ChunkRead { .. })), "{error}");
    }
    let recorded = record(&whole, &windows, &out, &options, &mut go_on).unwrap();
    assert_eq!(recorded.resumed, Some(Position { layer, part: Part::Mlp, done: 0 }));
    let other = dir.path().join("b.lstrace");
    record(&whole, &windows, &other, &options, &mut go_on).unwrap();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&other).unwrap());
}

#[test]
fn windows_cover_the_text_but_for_a_short_end() {
    let tokens: Vec<u32> = (10..40).collect();
    let lengths = |n_ctx, max| -> Vec<usize> {
        cut_into_windows(&tokens, n_ctx, None, max).iter().map(Vec::len).collect()
    };
    assert_eq!(lengths(10, 100), [10, 10, 10]);
    assert_eq!(lengths(12, 100), [12, 12]);
    assert_eq!(lengths(11, 100), [11, 11, 8]);
    assert_eq!(lengths(10, 15), [10]);
    assert_eq!(lengths(100, 100), [30]);
    assert_eq!(lengths(10, 0), [0; 0]);
    let with_bos = cut_into_windows(&tokens, 10, Some(1), 20);
    assert_eq!(with_bos[1], [1, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
}
