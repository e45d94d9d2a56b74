//! Ends of files, far offsets, odd requests, order and dropping.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use ls_io::{
    AlignedBuf, BackendKind, Curve, Direct, FaultPlan, IoError, Notice, Priority, ReadCause,
    Request, Stream, StreamOptions,
};

use crate::rig::{LIMIT, Rig, backends, content, file};

fn options(backend: BackendKind) -> StreamOptions {
    StreamOptions { backend, ..Default::default() }
}

#[test]
fn offsets_beyond_4_gib() {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let far = (5 << 30) + 3 * 4096;
    file.seek(SeekFrom::Start(far)).unwrap();
    file.write_all(&content(far, 8192)).unwrap();
    for backend in backends() {
        let rig = Rig::new(file.path(), &options(backend));
        rig.stream.submit([far - 4096, far, far + 4096].map(|at| rig.request(at, 4096, 0)));
        for _ in 0..3 {
            let c = rig.next();
            c.result.unwrap();
            let expected = if c.tag < far { vec![0; 4096] } else { content(c.tag, 4096) };
            assert!(c.buf[..] == expected, "{backend:?} at {}", c.tag);
        }
        rig.stream.submit([rig.request(u64::MAX - 4095, 4096, 0), rig.request(1 << 63, 4096, 0)]);
        for _ in 0..2 {
            let cause = rig.next().result.unwrap_err().cause;
            assert!(matches!(cause, ReadCause::EndOfFile { got: 0 }), "{cause}");
        }
        assert_eq!(rig.stream.notices(), [], "a bad offset is no reason to leave direct reads");
    }
}

#[test]
fn a_file_that_is_cut_is_an_error() {
    for backend in backends() {
        let file = file(16 * 4096);
        let rig = Rig::new(file.path(), &options(backend));
        rig.read_all(16 * 4096, 4096);
        file.as_file().set_len(4 * 4096 + 10).unwrap();
        rig.stream.submit((0..16).map(|i| rig.request(i * 4096, 4096, 0)));
        for _ in 0..16 {
            let c = rig.next();
            match c.tag / 4096 {
                0..4 => assert!(c.result.is_ok() && c.buf[..] == content(c.tag, 4096)),
                i => {
                    let got = if i == 4 { 10 } else { 0 };
                    let cause = c.result.unwrap_err().cause;
                    let ReadCause::EndOfFile { got: found } = cause else { panic!("{cause}") };
                    assert_eq!(found, got, "{backend:?}, block {i}");
                }
            }
        }
        assert_eq!(rig.stream.len_bytes(), 16 * 4096);
    }
}

#[test]
fn misaligned_requests_are_read_and_said_once() {
    let file = file(16 * 4096 + 123);
    for backend in backends() {
        let rig = Rig::new(file.path(), &options(backend));
        let was_direct = rig.stream.is_direct();
        rig.stream.submit([rig.request(4095, 10, 0), rig.request(16 * 4096, 123, 0)]);
        rig.stream.submit([Request { buf: rig.live.buf(8192, 8), ..rig.request(8192, 0, 0) }]);
        for _ in 0..3 {
            let c = rig.next();
            c.result.unwrap();
            assert!(c.buf[..] == content(c.tag, c.buf.len()));
        }
        let notices = rig.stream.notices();
        let n = notices.iter().filter(|n| matches!(n, Notice::Misaligned { .. })).count();
        assert_eq!(n, usize::from(was_direct), "{notices:?}");
        assert_eq!(rig.stream.is_direct(), was_direct, "the others stay direct");
    }
}

#[test]
fn empty_requests_and_batches_end_too() {
    let file = file(4096);
    for backend in backends() {
        let rig = Rig::new(file.path(), &options(backend));
        rig.stream.submit([]);
        rig.stream.submit([rig.request(0, 0, 0), rig.request(1 << 40, 0, 0)]);
        assert!(rig.stream.wait_idle(LIMIT));
        assert_eq!(rig.done.try_iter().filter(|c| c.result.is_ok()).count(), 2);
        assert_eq!((rig.stream.stats().reads, rig.live.count()), (0, 0));
    }
}

#[test]
fn neighbours_and_short_gaps_become_one_read() {
    let file = file(64 * 4096);
    for backend in backends() {
        for (curve, reads) in [(None, 4), (Some(Curve { fixed_us: 5.0, us_per_kib: 1.0 }), 1)] {
            let options = StreamOptions { curve, ..options(backend) };
            let rig = Rig::new(file.path(), &options);
            // Four runs of four, a block apart: 5 KiB are worth reading through, 4 are there.
            let blocks = (0..20).filter(|i| i % 5 != 4);
            rig.stream.submit(blocks.map(|i| rig.request(i * 4096, 4096, i % 3)));
            for _ in 0..16 {
                let c = rig.next();
                c.result.unwrap();
                assert!(c.buf[..] == content(c.tag, 4096));
            }
            assert!(rig.stream.wait_idle(LIMIT));
            let stats = rig.stream.stats();
            assert_eq!((stats.reads, stats.useful_bytes), (reads, 16 * 4096));
            assert_eq!(stats.read_bytes, if reads == 1 { 19 } else { 16 } * 4096);
            assert_eq!((stats.read_sizes.count(), stats.latencies_us.count()), (reads, reads));
            assert!(stats.mean_depth() > 0.0);
        }
    }
}

#[test]
fn the_most_urgent_is_read_first() {
    let file = file(64 * 4096);
    for backend in backends() {
        // The first completion holds the i/o thread until the gate opens.
        let (gate, closed) = channel::<()>();
        let closed = Mutex::new(closed);
        let (sender, done) = channel();
        let options = StreamOptions { depth: 1, max_read_bytes: 4096, ..options(backend) };
        let stream = Stream::open(file.path(), &options, move |c| {
            if c.tag == 0 {
                closed.lock().unwrap().recv().unwrap();
            }
            sender.send(c.tag).unwrap();
        })
        .unwrap();
        let request = |tag: u64, priority| Request {
            tag,
            offset: tag * 4096,
            priority: Priority(priority),
            buf: AlignedBuf::new(4096).unwrap(),
        };
        stream.submit([request(0, 0)]);
        while stream.stats().pending > 0 {
            std::thread::yield_now();
        }
        stream.submit([request(1, 50), request(2, 40), request(3, 30), request(4, 20)]);
        assert!(stream.reprioritise(1, Priority(10)));
        assert!(stream.reprioritise(4, Priority(60)));
        assert!(stream.cancel(3).is_some());
        assert!(stream.cancel(3).is_none() && !stream.reprioritise(3, Priority(0)));
        assert!(stream.cancel(0).is_none(), "already with the system");
        assert!(!stream.wait_idle(Duration::ZERO));
        gate.send(()).unwrap();
        let order: Vec<_> = (0..4).map(|_| done.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(order, [0, 1, 2, 4]);
    }
}

#[test]
fn dropping_waits_for_reads_in_flight() {
    let file = file(64 * 4096);
    for backend in backends() {
        let fault = Some(FaultPlan::slow(u64::MAX, Duration::from_millis(30)));
        let options = StreamOptions { depth: 3, max_read_bytes: 4096, fault, ..options(backend) };
        let rig = Rig::new(file.path(), &options);
        rig.stream.submit((0..64).map(|i| rig.request(i * 4096, 4096, 0)));
        while rig.stream.stats().pending == 64 {
            std::thread::yield_now();
        }
        let Rig { stream, done, live } = rig;
        drop(stream);
        let handed_back: Vec<_> = done.iter().collect();
        assert!(!handed_back.is_empty() && handed_back.iter().all(|c| c.result.is_ok()));
        assert_eq!(live.count(), handed_back.len());
    }
}

#[test]
fn a_completion_may_submit_and_may_drop_the_stream() {
    let file = file(64 * 4096);
    for backend in backends() {
        let handle: Arc<OnceLock<Weak<Stream<AlignedBuf>>>> = Arc::default();
        let (sender, done) = channel();
        let (in_completion, sent) = (handle.clone(), sender.clone());
        let stream = Stream::open(file.path(), &options(backend), move |c| {
            let stream = in_completion.get().and_then(Weak::upgrade);
            if let Some(stream) = stream.filter(|_| c.tag < 10) {
                let (tag, offset) = (c.tag + 1, (c.tag + 1) * 4096);
                stream.submit([Request { tag, offset, priority: Priority(0), buf: c.buf }]);
            }
            sent.send(c.tag).unwrap();
        })
        .unwrap();
        let stream = Arc::new(stream);
        handle.set(Arc::downgrade(&stream)).unwrap();
        let buf = AlignedBuf::new(4096).unwrap();
        stream.submit([Request { tag: 0, offset: 0, priority: Priority(0), buf }]);
        for tag in 0..5 {
            assert_eq!(done.recv_timeout(LIMIT).unwrap(), tag);
        }
        // The last handle may now be the one in the completion.
        drop(stream);
        drop(sender);
        while done.recv_timeout(LIMIT).is_ok() {}
    }
}

#[test]
fn a_completion_that_panics_holds_no_one_up() {
    let file = file(64 * 4096);
    for backend in backends() {
        let stream = Stream::open(file.path(), &options(backend), |c| {
            // Without a message from the hook among the tests' output.
            std::panic::resume_unwind(Box::new(c.tag));
        })
        .unwrap();
        for tag in 0..3 {
            let buf = AlignedBuf::new(4096).unwrap();
            stream.submit([Request { tag, offset: 0, priority: Priority(0), buf }]);
            assert!(stream.wait_idle(LIMIT));
        }
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Rig::try_new(&missing, &StreamOptions::default()).err().unwrap();
    assert!(error.to_string().starts_with(&format!("cannot open {}: ", missing.display())));
    let error = Rig::try_new(folder.path(), &StreamOptions::default()).err().unwrap();
    assert!(matches!(error, IoError::NotAFile { .. } | IoError::Io { .. }), "{error}");
}

#[test]
fn an_empty_file_has_nothing() {
    let file = file(0);
    for backend in backends() {
        for direct in [Direct::Try, Direct::Never] {
            let rig = Rig::new(file.path(), &StreamOptions { direct, ..options(backend) });
            rig.stream.submit([rig.request(0, 4096, 0)]);
            let cause = rig.next().result.unwrap_err().cause;
            assert!(matches!(cause, ReadCause::EndOfFile { got: 0 }), "{cause}");
        }
    }
}
