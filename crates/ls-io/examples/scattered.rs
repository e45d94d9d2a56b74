//! Reads scattered extents of a file, the urgent ones first, and says how it went.
//!
//! `scattered FILE [EXTENTS] [EXTENT KIB] [auto|uring|pread|mmap] [DEPTH] [MB/S CAP]`

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ls_io::{
    AlignedBuf, BackendKind, FaultPlan, Priority, ProbeOptions, Request, Stream, StreamOptions,
    probe,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, otherwise: u64| match args.get(i) {
        Some(text) => text.parse(),
        None => Ok(otherwise),
    };
    let path = PathBuf::from(args.first().ok_or("which file?")?);
    let (n, len) = (number(1, 4000)?, (number(2, 16)? as usize) << 10);
    let backend = match args.get(3).map_or("auto", String::as_str) {
        "uring" => BackendKind::Uring,
        "pread" => BackendKind::Pread,
        "mmap" => BackendKind::Mmap,
        _ => BackendKind::Auto,
    };
    let depth = number(4, 16)? as usize;
    let fault = args.get(5).map(|cap| cap.parse::<u64>()).transpose()?;
    let fault = fault.map(|mb| FaultPlan::slow(mb * 1_000_000, Duration::ZERO));

    let options = ProbeOptions { backend, depth, fault: fault.clone(), ..ProbeOptions::default() };
    let curve = probe(&path, &options)?.curve;
    println!(
        "a read costs {:.1} µs and {:.3} µs for each KiB: gaps under {} bytes are read through",
        curve.fixed_us,
        curve.us_per_kib,
        curve.gap_bytes()
    );
    let curve = Some(curve);
    let options = StreamOptions { backend, depth, curve, fault, ..StreamOptions::default() };
    let (sender, done) = channel();
    let stream = Stream::open(&path, &options, move |c| drop(sender.send(c)))?;

    // Every other extent or so of a stretch, in a shuffled order; every fourth is urgent.
    let slots = (stream.len_bytes() / len as u64).max(1);
    let bufs = AlignedBuf::many(n as usize, len)?;
    let requests = (0..n).zip(bufs).map(|(i, buf)| {
        let slot = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (2 * n).min(slots);
        let (offset, priority) = (slot * len as u64, Priority(u64::from(i % 4 != 0)));
        Request { tag: priority.0, offset, priority, buf }
    });
    let began = Instant::now();
    stream.submit(requests);
    let (mut urgent_done, mut failed) = (Duration::ZERO, 0);
    for completion in done.iter().take(n as usize) {
        if completion.tag == 0 {
            urgent_done = began.elapsed();
        }
        if let Err(e) = completion.result {
            println!("{e}");
            failed += 1;
        }
    }
    let elapsed = began.elapsed();
    stream.wait_idle(Duration::from_secs(1));
    let stats = stream.stats();
    println!(
        "{} (direct: {}), {n} requests, {failed} failed",
        stream.backend(),
        stream.is_direct()
    );
    println!("all after {elapsed:.1?}, the urgent quarter after {urgent_done:.1?}");
    println!(
        "{} reads, {:.1} MB read of which {:.1} MB were asked for, {:.0} MB/s, mean depth {:.1}",
        stats.reads,
        stats.read_bytes as f64 / 1e6,
        stats.useful_bytes as f64 / 1e6,
        stats.busy_mb_per_s(),
        stats.mean_depth()
    );
    println!(
        "half of all reads took under {} µs, 99 % under {} µs; half are of up to {} bytes",
        stats.latencies_us.quantile(0.5),
        stats.latencies_us.quantile(0.99),
        stats.read_sizes.quantile(0.5)
    );
    stream.notices().iter().for_each(|notice| println!("{notice}"));
    Ok(())
}
