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
    println!("backend  depth  size KiB  requests    MB/s  µs/read  CPU µs/read  CPU ms/GB");
    for backend in [BackendKind::Uring, BackendKind::Pread, BackendKind::Mmap] {
        for depth in [1, 4, 16] {
            for kib in [4, 16, 64, 256, 512, 1024] {
                row(path, Row { backend, depth, size: kib << 10, parts: 1 }, time)?;
            }
        }
        // What joining costs.
        for parts in [8, 32, 128] {
            row(path, Row { backend, depth: 16, size: 512 << 10, parts }, time)?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Row {
    backend: BackendKind,
    depth: usize,
    /// Bytes of a read.
    size: usize,
    /// Requests that are joined to a read.
    parts: usize,
}

fn row(path: &Path, row: Row, time: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let Row { backend, depth, size, parts } = row;
    let options = StreamOptions { backend, depth, max_read_bytes: size, ..Default::default() };
    let (sender, done) = channel();
    let opened = Stream::open(path, &options, move |c| drop(sender.send(c)));
    if let Err(IoError::BackendUnavailable { backend, source }) = &opened {
        println!("{backend} does not work here: {source}");
        return Ok(());
    }
    let stream = opened?;
    let places = stream.len_bytes() / size as u64;
    let mut n = 0u64;
    // Jumps over the file; the requests of a read are neighbours.
    let mut request = |buf| {
        let (read, part) = (n / parts as u64, n % parts as u64);
        n += 1;
        let place = read.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
        let offset = place * size as u64 + part * (size / parts) as u64;
        Request { tag: n, offset, priority: Priority(read), buf }
    };
    let bufs = AlignedBuf::many(4 * depth * parts, size / parts)?;
    stream.submit(bufs.into_iter().map(&mut request));
    let (began, cpu, before) = (Instant::now(), cpu_time(), stream.stats());
    let mut bufs = Vec::new();
    while began.elapsed() < time {
        // Whole reads only, or they would not be joined.
        while bufs.len() < parts {
            let completion = done.recv()?;
            completion.result?;
            bufs.push(completion.buf);
        }
        stream.submit(bufs.drain(..parts).map(&mut request));
    }
    let us = began.elapsed().as_secs_f64() * 1e6;
    let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6;
    let after = stream.stats();
    let (reads, bytes) = (after.reads - before.reads, after.read_bytes - before.read_bytes);
    println!(
        "{:8} {depth:5} {:9} {parts:9} {:7.0} {:8.1} {:12.1} {:10.1}",
        stream.backend(),
        (bytes / reads.max(1)) >> 10,
        bytes as f64 / us,
        us / reads as f64,
        cpu_us / reads as f64,
        cpu_us / 1e3 / (bytes as f64 / 1e9)
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
