//! Random requests, changes of mind and faults against a model.

use std::collections::BTreeMap;
use std::time::Duration;

use ls_io::{Curve, Direct, FaultPlan, Priority, ReadCause, Request, StreamOptions};
use proptest::prelude::*;

use crate::buf::Counted;
use crate::rig::{LIMIT, Rig, backends, byte_at, file};

/// Ends in the middle of a block.
const FILE: usize = 40 * 4096 + 1000;

#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<Wanted>),
    /// Numbers of requests, counted from the first one ever.
    Reprioritise(usize, u64),
    Cancel(usize),
    CancelAll,
    Wait,
}

#[derive(Clone, Debug)]
struct Wanted {
    offset: u64,
    len: usize,
    shift: usize,
    priority: u64,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let aligned = (0u64..44, 0usize..5, 0u64..4).prop_map(|(block, blocks, priority)| Wanted {
        offset: block * 4096,
        len: blocks * 4096,
        shift: 0,
        priority,
    });
    let any = (0u64..45 * 4096, 0usize..9000, 0usize..3, 0u64..4)
        .prop_map(|(offset, len, shift, priority)| Wanted { offset, len, shift, priority });
    prop_oneof![9 => aligned, 1 => any]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(wanted(), 0..20).prop_map(Step::Submit),
        2 => (0usize..100, 0u64..4).prop_map(|(i, priority)| Step::Reprioritise(i, priority)),
        2 => (0usize..100).prop_map(Step::Cancel),
        1 => Just(Step::CancelAll),
        1 => Just(Step::Wait),
    ]
}

fn plan() -> impl Strategy<Value = Option<FaultPlan>> {
    let rate = || prop_oneof![Just(0.0), 0.0..0.4];
    let rates = (rate(), rate(), rate(), rate(), rate(), rate());
    let plan = (any::<u64>(), rates, any::<(bool, bool)>()).prop_map(|(seed, rates, refuse)| {
        let (short, empty, eio, eintr, eagain, delay) = rates;
        FaultPlan {
            seed,
            short,
            empty,
            eio,
            eintr,
            eagain,
            delay,
            max_delay: Duration::from_micros(300),
            refuse_direct_open: refuse.0,
            refuse_direct_read: refuse.1,
            ..FaultPlan::default()
        }
    });
    prop_oneof![Just(None), plan.prop_map(Some)]
}

fn options() -> impl Strategy<Value = StreamOptions> {
    (1usize..6, 1usize..12, any::<bool>(), any::<bool>(), plan()).prop_map(
        |(depth, blocks, direct, gaps, fault)| StreamOptions {
            depth,
            max_read_bytes: blocks * 4096,
            direct: if direct { Direct::Try } else { Direct::Never },
            curve: gaps.then_some(Curve { fixed_us: 9.0, us_per_kib: 1.0 }),
            fault,
            ..StreamOptions::default()
        },
    )
}

/// Bytes of the request that the file has.
fn available(wanted: &Wanted) -> usize {
    (FILE as u64).saturating_sub(wanted.offset).min(wanted.len as u64) as usize
}

fn check(wanted: &Wanted, buf: &Counted, result: Result<(), ls_io::ReadError>, eio: bool) {
    match result {
        Ok(()) => {
            assert_eq!(available(wanted), wanted.len, "{wanted:?} is not all there");
            let right = buf.iter().zip(wanted.offset..).all(|(b, at)| *b == byte_at(at));
            assert!(right, "{wanted:?}");
        }
        Err(e) => {
            assert_eq!((e.offset, e.len), (wanted.offset, wanted.len));
            match e.cause {
                ReadCause::EndOfFile { got } => {
                    assert_eq!(got, available(wanted), "{wanted:?}");
                    assert!(got < wanted.len);
                }
                ReadCause::Os(_) => assert!(eio, "{e}"),
                _ => panic!("{e}"),
            }
        }
    }
}

fn run(path: &std::path::Path, options: &StreamOptions, steps: &[Step]) {
    let rig = Rig::new(path, options);
    let eio = options.fault.as_ref().is_some_and(|fault| fault.eio > 0.0);
    let mut all: Vec<Wanted> = Vec::new();
    // How many times each request ended.
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    let mut end = |tag: u64| *ended.entry(tag).or_default() += 1;
    for step in steps {
        match step {
            Step::Submit(batch) => {
                let first = all.len();
                all.extend_from_slice(batch);
                rig.stream.submit(batch.iter().enumerate().map(|(i, w)| Request {
                    tag: (first + i) as u64,
                    offset: w.offset,
                    priority: Priority(w.priority),
                    buf: rig.live.buf(w.len, w.shift),
                }));
            }
            Step::Reprioritise(i, priority) => {
                let pending = rig.stream.reprioritise(*i as u64, Priority(*priority));
                assert!(*i < all.len() || !pending);
            }
            Step::Cancel(i) => {
                if let Some(buf) = rig.stream.cancel(*i as u64) {
                    assert_eq!(buf.len(), all[*i].len);
                    end(*i as u64);
                }
            }
            Step::CancelAll => {
                rig.stream.cancel_all().iter().for_each(|(tag, _)| end(*tag));
            }
            Step::Wait => assert!(rig.stream.wait_idle(LIMIT)),
        }
    }
    assert!(rig.stream.wait_idle(LIMIT));
    while let Ok(c) = rig.done.try_recv() {
        check(&all[c.tag as usize], &c.buf, c.result, eio);
        end(c.tag);
    }
    assert!(ended.len() == all.len() && ended.values().all(|n| *n == 1), "{ended:?}");
    assert_eq!(rig.live.count(), 0);
    let stats = rig.stream.stats();
    assert_eq!((stats.requests, stats.pending), (all.len() as u64, 0));
}

#[test]
fn every_request_ends_once_with_the_right_bytes() {
    let file = file(FILE);
    let backends = backends();
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    let steps = prop::collection::vec(step(), 1..12);
    proptest!(config, |(options in options(), steps in steps)| {
        for backend in &backends {
            run(file.path(), &StreamOptions { backend: *backend, ..options.clone() }, &steps);
        }
    });
}

#[test]
fn a_stream_that_is_dropped_at_any_time_loses_no_buffer() {
    let file = file(FILE);
    let backends = backends();
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() };
    let batch = prop::collection::vec(wanted(), 0..40);
    proptest!(config, |(options in options(), batch in batch, wait in 0u64..400)| {
        for backend in &backends {
            let options = StreamOptions { backend: *backend, ..options.clone() };
            let rig = Rig::new(file.path(), &options);
            rig.stream.submit(batch.iter().enumerate().map(|(i, w)| Request {
                tag: i as u64,
                offset: w.offset,
                priority: Priority(w.priority),
                buf: rig.live.buf(w.len, w.shift),
            }));
            std::thread::sleep(Duration::from_micros(wait));
            let Rig { stream, done, live } = rig;
            drop(stream);
            let handed_back: Vec<_> = done.iter().collect();
            prop_assert_eq!(live.count(), handed_back.len());
            let eio = options.fault.as_ref().is_some_and(|fault| fault.eio > 0.0);
            for c in handed_back {
                check(&batch[c.tag as usize], &c.buf, c.result, eio);
            }
        }
    });
}

#[test]
fn threads_share_a_stream() {
    let file = file(FILE);
    for backend in backends() {
        let options = StreamOptions { backend, depth: 4, ..Default::default() };
        let rig = Rig::new(file.path(), &options);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (stream, live) = (&rig.stream, &rig.live);
                scope.spawn(move || {
                    for i in 0..200u64 {
                        let tag = thread * 1000 + i;
                        let (offset, priority) = (i % 40 * 4096, Priority(i % 7));
                        stream.submit([Request { tag, offset, priority, buf: live.buf(4096, 0) }]);
                        stream.reprioritise(tag, Priority(0));
                        if i % 5 == 0
                            && let Some(buf) = stream.cancel(tag)
                        {
                            stream.submit([Request { tag, offset, priority, buf }]);
                        }
                    }
                });
            }
        });
        assert!(rig.stream.wait_idle(LIMIT));
        let mut tags: Vec<_> = rig
            .done
            .try_iter()
            .map(|c| {
                assert!(
                    c.buf.iter().zip(c.tag % 1000 % 40 * 4096..).all(|(b, at)| *b == byte_at(at))
                );
                c.tag
            })
            .collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 600);
        assert_eq!(rig.live.count(), 0);
    }
}
