//! What a parallel region costs: this crate's pool beside rayon's, with as many threads.
//!
//! A token of a 28-layer model has about 140 regions, so a microsecond of hand-over in each is
//! half a per cent of a 30 ms token. The argument is the serial work between regions, in µs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use divan::Bencher;
use ls_cpu::Pool;
use rayon::prelude::*;

const THREADS: usize = 2;
const TASKS: usize = 16;

/// About a microsecond of work.
fn work(i: usize) {
    let mut x = i as u32;
    for _ in 0..400 {
        x = black_box(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    }
}

/// Serial work between regions, as norms and the like are.
fn pause(length: Duration) {
    let began = Instant::now();
    while began.elapsed() < length {
        std::hint::spin_loop();
    }
}

#[divan::bench(args = [2, 20, 500])]
fn own_pool(bencher: Bencher<'_, '_>, pause_us: u64) {
    let pool = Pool::new(THREADS).expect("threads");
    bencher.bench_local(|| {
        pause(Duration::from_micros(pause_us));
        pool.run(TASKS, &work);
    });
}

#[divan::bench(args = [2, 20, 500])]
fn rayon_pool(bencher: Bencher<'_, '_>, pause_us: u64) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().expect("threads");
    bencher.bench_local(|| {
        pause(Duration::from_micros(pause_us));
        pool.install(|| (0..TASKS).into_par_iter().with_max_len(1).for_each(work));
    });
}

#[divan::bench(args = [2, 20, 500])]
fn one_thread(bencher: Bencher<'_, '_>, pause_us: u64) {
    bencher.bench_local(|| {
        pause(Duration::from_micros(pause_us));
        (0..TASKS).for_each(work);
    });
}

fn main() {
    divan::main();
}
