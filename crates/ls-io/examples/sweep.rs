//! Bandwidth and processor time of direct reads at random places: backends × depths × sizes.
//!
//! `sweep FILE [MILLISECONDS FOR EACH ROW]`; processor time is shown on Linux. Mappings are shown
//! as they are, page cache included.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ls_io::{AlignedBuf, BackendKind, IoError, Priority, Request, Stream, StreamOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = Path::new(args.first().ok_or("which file?")?);
    let time = Duration::from_millis(args.get(1).map_or(Ok(300), |text| text.parse())?);
    println!("backend  depth  size KiB    MB/s  µs/read  CPU µs/read  CPU ms/GB");
    for backend in [BackendKind::Uring, BackendKind::Pread, BackendKind::Mmap] {
        for depth in [1, 4, 16] {
            for kib in [4, 16, 64, 256, 512, 1024] {
                row(path, backend, depth, kib << 10, time)?;
            }
        }
    }
    Ok(())
}

fn row(
    path: &Path,
    backend: BackendKind,
    depth: usize,
    size: usize,
    time: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let options = StreamOptions { backend, depth, max_read_bytes: size, ..Default::default() };
    let (sender, done) = channel();
    let opened = Stream::open(path, &options, move |c| drop(sender.send(c)));
    if let Err(IoError::BackendUnavailable { backend, source }) = &opened {
        println!("{backend} does not work here: {source}");
        return Ok(());
    }
    let stream = opened?;
    let places = stream.len_bytes() / 4096 - size as u64 / 4096;
    let mut n = 0u64;
    // A sequence that visits all places before it repeats one (nearly).
    let mut request = |buf| {
        n += 1;
        let place = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
        Request { tag: n, offset: place * 4096, priority: Priority(n), buf }
    };
    // A batch is as much as is in flight, so that its cost is the same at each depth.
    for _ in 0..4 * depth {
        stream.submit([request(AlignedBuf::new(size)?)]);
    }
    let (began, cpu) = (Instant::now(), cpu_time());
    let (mut reads, mut batch) = (0, Vec::new());
    while began.elapsed() < time {
        let first = done.recv()?;
        for completion in std::iter::once(first).chain(done.try_iter()) {
            completion.result?;
            batch.push(request(completion.buf));
        }
        reads += batch.len();
        stream.submit(batch.drain(..));
    }
    let us = began.elapsed().as_secs_f64() * 1e6;
    let bytes = (reads * size) as f64;
    let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6;
    println!(
        "{:8} {depth:5} {:9} {:7.0} {:8.1} {:12.1} {:10.1}",
        stream.backend(),
        size >> 10,
        bytes / us,
        us / reads as f64,
        cpu_us / reads as f64,
        cpu_us / 1e3 / (bytes / 1e9)
    );
    Ok(())
}

/// Processor time of this program's threads so far.
fn cpu_time() -> Duration {
    let nanoseconds = |entry: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    Duration::from_nanos(tasks.filter_map(nanoseconds).sum())
}
