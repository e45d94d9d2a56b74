//! Each kind of fault alone: the right bytes, or an error that says what is wrong.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use ls_io::{BackendKind, Curve, Direct, FaultPlan, IoError, Notice, ReadCause, StreamOptions};

use crate::rig::{LIMIT, Rig, backends, content, file};

const FILE: u64 = 64 * 4096;

fn options(backend: BackendKind, fault: FaultPlan) -> StreamOptions {
    StreamOptions {
        backend,
        depth: 4,
        max_read_bytes: 5 * 4096,
        fault: Some(fault),
        ..Default::default()
    }
}

#[test]
fn what_passes_is_repeated() {
    let file = file(FILE as usize);
    let max_delay = Duration::from_millis(1);
    let plans = [
        FaultPlan { short: 0.8, ..Default::default() },
        FaultPlan { empty: 0.5, ..Default::default() },
        FaultPlan { eintr: 0.5, ..Default::default() },
        FaultPlan { eagain: 0.5, ..Default::default() },
        FaultPlan { delay: 0.7, max_delay, ..Default::default() },
        FaultPlan {
            short: 0.3,
            empty: 0.2,
            eintr: 0.2,
            eagain: 0.2,
            delay: 0.3,
            max_delay,
            ..Default::default()
        },
    ];
    for backend in backends() {
        for plan in &plans {
            for direct in [Direct::Try, Direct::Never] {
                let rig = Rig::new(
                    file.path(),
                    &StreamOptions { direct, ..options(backend, plan.clone()) },
                );
                let was_direct = rig.stream.is_direct();
                rig.read_all(FILE, 4096);
                assert_eq!(rig.stream.is_direct(), was_direct, "continued where it is aligned");
                let stats = rig.stream.stats();
                assert_eq!((stats.failed, stats.useful_bytes), (0, FILE));
                assert!(stats.retries > 0 || plan.delay == 0.7, "{plan:?}");
            }
        }
    }
}

#[test]
fn what_does_not_pass_is_an_error() {
    let file = file(FILE as usize);
    let all = |plan: FaultPlan, backend| {
        let rig = Rig::new(file.path(), &options(backend, plan));
        rig.stream.submit((0..6).map(|i| rig.request(i * 4096, 4096, i)));
        let errors: Vec<_> = (0..6).map(|_| rig.next().result.unwrap_err()).collect();
        assert!(rig.stream.wait_idle(LIMIT));
        assert_eq!((rig.live.count(), rig.stream.stats().failed), (0, 6));
        errors
    };
    for backend in backends() {
        for e in all(FaultPlan { empty: 1.0, ..Default::default() }, backend) {
            assert!(matches!(e.cause, ReadCause::NoProgress { got: 0 }), "{e}");
        }
        let plans = [
            (FaultPlan { eio: 1.0, ..Default::default() }, None),
            (FaultPlan { eintr: 1.0, ..Default::default() }, Some(ErrorKind::Interrupted)),
            (FaultPlan { eagain: 1.0, ..Default::default() }, Some(ErrorKind::WouldBlock)),
        ];
        for (plan, kind) in plans {
            for e in all(plan, backend) {
                let ReadCause::Os(os) = &e.cause else { panic!("{e}") };
                assert!(kind.map_or(os.raw_os_error() == Some(5), |kind| os.kind() == kind), "{e}");
                assert!(e.source().is_some());
            }
        }
    }
}

#[test]
fn an_error_names_file_and_extent() {
    let file = file(FILE as usize);
    let plan = FaultPlan { eio: 1.0, ..Default::default() };
    let rig = Rig::new(file.path(), &options(BackendKind::Auto, plan));
    rig.stream.submit([rig.request(8192, 4096, 0)]);
    let text = rig.next().result.unwrap_err().to_string();
    let expected = format!("cannot read 4096 bytes at 8192 of {}: ", file.path().display());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn a_bad_block_fails_only_whom_it_belongs_to() {
    let file = file(FILE as usize);
    // Inside the tenth request; the gap behind the twentieth is bad too, which concerns no one.
    let bads = [9 * 8192 + 100..9 * 8192 + 101, 19 * 8192 + 4096..20 * 8192];
    for backend in backends() {
        for (bad, failed) in bads.iter().zip([vec![9 * 8192], vec![]]) {
            let plan = FaultPlan { bad: Some(bad.clone()), ..Default::default() };
            let curve = Some(Curve { fixed_us: 8.0, us_per_kib: 1.0 });
            let rig = Rig::new(file.path(), &StreamOptions { curve, ..options(backend, plan) });
            rig.stream.submit((0..32).map(|i| rig.request(i * 8192, 4096, 0)));
            let mut errors = Vec::new();
            for _ in 0..32 {
                let c = rig.next();
                match c.result {
                    Ok(()) => assert!(c.buf[..] == content(c.tag, 4096)),
                    Err(_) => errors.push(c.tag),
                }
            }
            assert_eq!(errors, failed);
        }
    }
}

#[test]
fn without_direct_reads_the_bytes_are_the_same() {
    let file = file(FILE as usize);
    for backend in backends() {
        let at_open = FaultPlan { refuse_direct_open: true, ..Default::default() };
        let at_read = FaultPlan { refuse_direct_read: true, ..Default::default() };
        for plan in [at_open, at_read] {
            let rig = Rig::new(file.path(), &options(backend, plan.clone()));
            rig.read_all(FILE, 4096);
            rig.read_all(FILE, 8192);
            assert!(!rig.stream.is_direct());
            let notices = rig.stream.notices();
            if backend == BackendKind::Mmap {
                assert_eq!(notices, [], "it never reads directly");
                continue;
            }
            let said = |notice: &Notice| match notice {
                Notice::DirectRefusedAtOpen { .. } => true,
                Notice::DirectRefusedAtRead { .. } => plan.refuse_direct_read,
                _ => false,
            };
            assert!(notices.len() == 1 && notices.iter().all(said), "{notices:?}");
            assert_eq!(rig.stream.stats().fallbacks, 1);
            assert!(notices[0].to_string().contains("page cache"));
        }
    }
}

#[test]
fn without_io_uring_threads_read() {
    let file = file(FILE as usize);
    for kind in [ErrorKind::PermissionDenied, ErrorKind::Unsupported] {
        let plan = FaultPlan { refuse_uring: Some(kind), ..Default::default() };
        let rig = Rig::new(file.path(), &options(BackendKind::Auto, plan.clone()));
        rig.read_all(FILE, 4096);
        assert_eq!(rig.stream.backend(), "pread");
        if cfg!(target_os = "linux") {
            let notices = rig.stream.notices();
            let said = |n: &Notice| matches!(n, Notice::UringUnavailable { .. });
            assert_eq!(notices.iter().filter(|n| said(n)).count(), 1);
        }
        let asked_for = Rig::try_new(file.path(), &options(BackendKind::Uring, plan));
        assert!(matches!(asked_for.err(), Some(IoError::BackendUnavailable { .. })));
    }
}

#[test]
fn a_slow_device_gives_the_same_bytes() {
    let file = file(FILE as usize);
    for backend in backends() {
        let plan = FaultPlan::slow(20_000_000, Duration::from_micros(200));
        Rig::new(file.path(), &options(backend, plan)).read_all(FILE, 4096);
    }
}
