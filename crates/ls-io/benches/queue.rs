//! What a request costs the processor, the device aside: the file lies in the page cache.

use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ls_io::{
    AlignedBuf, BackendKind, Completion, Direct, FaultPlan, Priority, Request, Stream,
    StreamOptions,
};

fn main() {
    divan::main();
}

const REQUEST: usize = 16 << 10;
const N: usize = 3000;

struct Setup {
    stream: Stream<AlignedBuf>,
    done: Receiver<Completion<AlignedBuf>>,
    _folder: tempfile::TempDir,
}

fn setup(backend: BackendKind, max_read_bytes: usize) -> Setup {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, vec![1; N * REQUEST]).expect("a file");
    let options =
        StreamOptions { backend, max_read_bytes, direct: Direct::Never, ..Default::default() };
    let (sender, done) = channel();
    let stream = Stream::open(&path, &options, move |c| drop(sender.send(c))).expect("a stream");
    Setup { stream, done, _folder: folder }
}

/// Accepting, moving and taking back requests that wait: the queue alone. A slow disk keeps them
/// waiting.
#[divan::bench]
fn submit_and_take_back(bencher: divan::Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, vec![1; N * REQUEST]).expect("a file");
    let fault = Some(FaultPlan::slow(1 << 40, Duration::from_millis(1)));
    let options = StreamOptions { depth: 1, direct: Direct::Never, fault, ..Default::default() };
    let stream = Stream::open(&path, &options, |_| ()).expect("a stream");
    let mut bufs = AlignedBuf::many(N, REQUEST).expect("memory");
    bencher.counter(divan::counter::ItemsCount::new(N)).bench_local(|| {
        let requests = bufs.drain(..).enumerate().map(|(i, buf)| request(i, buf));
        stream.submit(requests.collect::<Vec<_>>());
        bufs.extend(stream.cancel_all().into_iter().map(|(_, buf)| buf));
        stream.wait_idle(Duration::from_secs(10));
        while bufs.len() < N {
            bufs.push(AlignedBuf::new(REQUEST).expect("memory"));
        }
    });
}

/// A batch of neighbours, from submission to the last completion.
#[divan::bench(args = [16 << 10, 128 << 10, 512 << 10])]
fn batch_uring(bencher: divan::Bencher<'_, '_>, max_read_bytes: usize) {
    batch(bencher, BackendKind::Auto, max_read_bytes);
}

#[divan::bench(args = [16 << 10, 128 << 10, 512 << 10])]
fn batch_pread(bencher: divan::Bencher<'_, '_>, max_read_bytes: usize) {
    batch(bencher, BackendKind::Pread, max_read_bytes);
}

fn batch(bencher: divan::Bencher<'_, '_>, backend: BackendKind, max_read_bytes: usize) {
    let setup = setup(backend, max_read_bytes);
    let mut bufs = AlignedBuf::many(N, REQUEST).expect("memory");
    bencher.counter(divan::counter::ItemsCount::new(N)).bench_local(|| {
        let requests = bufs.drain(..).enumerate().map(|(i, buf)| request(i, buf));
        setup.stream.submit(requests.collect::<Vec<_>>());
        bufs.extend((0..N).map(|_| setup.done.recv().expect("a completion").buf));
    });
}

fn request(i: usize, buf: AlignedBuf) -> Request<AlignedBuf> {
    Request { tag: i as u64, offset: (i * REQUEST) as u64, priority: Priority(0), buf }
}
