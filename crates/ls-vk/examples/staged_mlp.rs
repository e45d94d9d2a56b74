//! Measures the staged MLP: `cargo run --release -p ls-vk --example staged_mlp -- [NAME] [OPTION…]`.
//!
//! NAME picks the device by a part of its name (the best one otherwise). The layer is one of a model
//! 4096 wide with 14336 neurons, Q4_0 rows and Q4 columns, two neurons a frame of 16 KiB; several
//! copies of it are used in turn, so that none stays in the device's cache. `--small` takes a small
//! layer, `--quick` fewer repetitions, `--copied` puts the frames where the host does not see them,
//! `--rows TYPE` takes other rows, `--threads N` other workgroups, `--phases` shows the parts of a pass and nothing else, `--sweep` compares sizes of workgroups, `--soak N` runs
//! N stages and compares every output with what blocking submissions computed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ls_vk::control::{Mode, Runner, RunnerOptions, Work};
use ls_vk::format::{ColumnFormat, RowFormat};
use ls_vk::kernels::mlp::{Activation, MlpShape, Tuning, Variant};
use ls_vk::twin::{self, Random};
use ls_vk::{
    Choice, Device, Instance, MemoryKind, Result, SelfTest, Slab, SlabKind, Validation, measure,
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PER_FRAME: u32 = 2;

#[derive(Default)]
struct Args {
    name: Option<String>,
    small: bool,
    quick: bool,
    copied: bool,
    rows: Option<RowFormat>,
    tuning: Tuning,
    phases: bool,
    sweep: bool,
    soak: u64,
}

fn args() -> Args {
    let mut args = Args::default();
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--small" => args.small = true,
            "--quick" => args.quick = true,
            "--copied" => args.copied = true,
            "--rows" => {
                let name = given.next().unwrap_or_default();
                args.rows = RowFormat::ALL.into_iter().find(|f| f.to_string() == name);
                assert!(args.rows.is_some(), "--rows takes one of {:?}", RowFormat::ALL);
            }
            "--threads" => args.tuning.threads = given.next().and_then(|n| n.parse().ok()),
            "--phases" => args.phases = true,
            "--sweep" => args.sweep = true,
            "--soak" => args.soak = given.next().and_then(|n| n.parse().ok()).unwrap_or(10_000),
            _ => args.name = Some(arg),
        }
    }
    args
}

struct Bench {
    slab: Arc<Slab>,
    shape: MlpShape,
    n_frames: u32,
    n_layers: u32,
    processors: u32,
    tuning: Tuning,
    repetitions: usize,
}

fn main() -> Result<()> {
    let args = args();
    let instance = Instance::new(Validation::Off)?;
    let choice = args.name.clone().map_or(Choice::Best, Choice::Named);
    let device = Device::open(&instance, &choice)?;
    println!("{:?}\n{:?}", device.info(), device.limits());
    println!("{:#?}", SelfTest::run(&device)?);
    let rates = measure::copy_rates(&device, if args.small { 64 << 20 } else { 2 << 30 })?;
    println!("{rates:?}");
    let copy = rates.on_device;
    let mut bench = fill(&device, &args)?;
    check(&bench)?;
    if args.sweep {
        bench.tuning = sweep(&bench)?;
    }
    if args.phases {
        return phases(&bench);
    }
    round_trips(&bench)?;
    variants(&bench)?;
    phases(&bench)?;
    table(&bench, copy)?;
    if args.soak > 0 {
        soak(&bench, args.soak)?;
    }
    Ok(())
}

fn fill(device: &Arc<Device>, args: &Args) -> Result<Bench> {
    let (d, n_neurons, n_layers) = if args.small { (512, 1024, 2) } else { (4096, 14_336, 4) };
    let (row, down) = (args.rows.unwrap_or(RowFormat::Q4_0), ColumnFormat::Q4);
    let (gate, up) = (row, row);
    let row = gate.row_bytes(d).expect("whole blocks") as u32;
    let shape = MlpShape {
        d_model: d,
        gate,
        up,
        down,
        up_at: (PER_FRAME * row) as usize,
        down_at: (2 * PER_FRAME * row) as usize,
        activation: Activation::Silu,
    };
    let frame_bytes = (shape.bytes_for(PER_FRAME as usize) as u32 + 8).next_multiple_of(4096);
    let n_frames = n_neurons / PER_FRAME;
    let kind = args.copied.then_some(SlabKind::Copied);
    let slab = Slab::new(device, frame_bytes, n_frames * n_layers, kind)?;
    let mut random = Random::new(1);
    let made: Vec<Vec<u8>> = (0..n_frames.min(512))
        .map(|_| random.frame(&shape, PER_FRAME as usize, frame_bytes as usize))
        .collect();
    let began = Instant::now();
    for first in (0..n_frames * n_layers).step_by(256) {
        let writers = (first..(first + 256).min(n_frames * n_layers)).map(|frame| {
            let mut writer = slab.write(frame)?;
            writer.copy_from_slice(&made[frame as usize % made.len()]);
            Ok(writer)
        });
        slab.finish(writers.collect::<Result<Vec<_>>>()?)?;
    }
    let bytes = f64::from(n_frames * n_layers) * f64::from(frame_bytes);
    let rate = bytes / began.elapsed().as_secs_f64() / 1e9;
    println!("slab: {:?}, {:.0} MB, filled at {rate:.1} GB/s", slab.kind(), bytes / 1e6);
    let repetitions = if args.quick { 50 } else { 400 };
    let processors = device.limits().processors.unwrap_or(16);
    Ok(Bench { slab, shape, n_frames, n_layers, processors, tuning: args.tuning, repetitions })
}

impl Bench {
    fn options(&self, mode: Mode) -> RunnerOptions {
        RunnerOptions {
            mode: Some(mode),
            tuning: self.tuning,
            max_entries: Some(self.n_frames),
            ..Default::default()
        }
    }

    fn runner(&self, options: &RunnerOptions) -> Result<Runner> {
        Runner::new(&self.slab, self.shape, options)
    }

    /// The stages of a pass over `layer`, of frames chosen at random.
    fn stages(&self, layer: u32, kept: f64, n_stages: usize, random: &mut Random) -> Vec<Work> {
        let mut frames: Vec<u32> = (0..self.n_frames).map(|f| layer * self.n_frames + f).collect();
        let n = (f64::from(self.n_frames) * kept).round() as usize;
        for i in 0..n {
            let j = i + random.bits() as usize % (frames.len() - i);
            frames.swap(i, j);
        }
        frames.truncate(n);
        let each = n.div_ceil(n_stages).max(1);
        frames
            .chunks(each)
            .map(|frames| Work::Frames {
                per_frame: PER_FRAME,
                frames: frames.iter().map(|f| (*f, PER_FRAME)).collect(),
            })
            .collect()
    }

    fn neuron_bytes(&self) -> usize {
        self.shape.neuron_bytes().iter().sum()
    }
}

/// A few neurons against the twin, in each variant.
fn check(bench: &Bench) -> Result<()> {
    let d = bench.shape.d_model;
    let mut random = Random::new(2);
    let x = random.floats(d);
    let frame_bytes = bench.slab.frame_bytes() as usize;
    let mut again = Random::new(1);
    let frames: Vec<Vec<u8>> =
        (0..16).map(|_| again.frame(&bench.shape, PER_FRAME as usize, frame_bytes)).collect();
    let neurons = frames.iter().flat_map(|f| (0..PER_FRAME as usize).map(move |j| (&f[..], j)));
    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let answer = twin::mlp(&bench.shape, neurons, &exact);
    let frames = (0..16).map(|f| (f, PER_FRAME)).collect();
    let work = Work::Frames { per_frame: PER_FRAME, frames };
    for variant in Variant::ALL {
        let options = RunnerOptions { variant: Some(variant), ..bench.options(Mode::Blocking) };
        let Ok(mut runner) = bench.runner(&options) else {
            println!("{variant:?}: not here");
            continue;
        };
        let mut out = vec![f32::NAN; d];
        runner.begin(&x, TIMEOUT)?;
        let ticket = runner.queue(&work, true, vec![])?;
        runner.output(ticket, &mut out, TIMEOUT)?;
        let errors = out.iter().zip(&answer.out).zip(&answer.magnitude);
        let error = errors.map(|((o, w), m)| (f64::from(*o) - w).abs() / m).fold(0.0, f64::max);
        println!("{variant:?}: error {error:.1e} of the sum's magnitude; {:?}", runner.plan());
    }
    Ok(())
}

fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort();
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
}

/// One pass, the host looking after each stage; its time.
fn pass(runner: &mut Runner, x: &[f32], stages: &[Work], out: &mut [f32]) -> Result<Duration> {
    let began = Instant::now();
    runner.begin(x, TIMEOUT)?;
    for (i, stage) in stages.iter().enumerate() {
        let last = i + 1 == stages.len();
        let ticket = runner.queue(stage, last, vec![])?;
        if last {
            runner.output(ticket, out, TIMEOUT)?;
        } else {
            runner.wait(ticket, TIMEOUT)?;
        }
    }
    Ok(began.elapsed())
}

/// All stages queued at once; mean time of a pass.
fn throughput(
    runner: &mut Runner,
    x: &[f32],
    passes: &[Vec<Work>],
    out: &mut [f32],
) -> Result<f64> {
    let began = Instant::now();
    let mut waiting = std::collections::VecDeque::new();
    for stages in passes {
        runner.begin(x, TIMEOUT)?;
        let mut last = None;
        for (i, stage) in stages.iter().enumerate() {
            last = Some(runner.queue(stage, i + 1 == stages.len(), vec![])?);
        }
        runner.pump()?;
        waiting.extend(last);
        if waiting.len() > 3 {
            runner.output(waiting.pop_front().expect("some"), out, TIMEOUT)?;
        }
    }
    for ticket in waiting {
        runner.output(ticket, out, TIMEOUT)?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / passes.len() as f64)
}

fn round_trips(bench: &Bench) -> Result<()> {
    println!("\nround trip of an empty stage, µs: median, p99");
    let x = vec![0.5; bench.shape.d_model];
    let nothing = Work::Frames { per_frame: PER_FRAME, frames: vec![] };
    let mut cases = vec![];
    for completion in [MemoryKind::Readback, MemoryKind::Mapped] {
        for workgroups in [Some(1), Some(32), bench.tuning.workgroups] {
            cases.push((Mode::Persistent, completion, workgroups));
        }
    }
    cases.push((Mode::Staged, MemoryKind::Readback, bench.tuning.workgroups));
    cases.push((Mode::Blocking, MemoryKind::Readback, bench.tuning.workgroups));
    for (mode, completion, workgroups) in cases {
        let options = RunnerOptions {
            completion: Some(completion),
            tuning: Tuning { workgroups, ..bench.tuning },
            ..bench.options(mode)
        };
        let result = (|| -> Result<(f64, f64, u64, u32)> {
            let mut runner = bench.runner(&options)?;
            runner.begin(&x, TIMEOUT)?;
            let mut times = vec![];
            for _ in 0..bench.repetitions * 25 {
                let began = Instant::now();
                let ticket = runner.queue(&nothing, false, vec![])?;
                runner.wait(ticket, Duration::from_secs(3))?;
                times.push(began.elapsed());
            }
            let (median, p99) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
            Ok((median, p99, runner.launches(), runner.plan().workgroups))
        })();
        match result {
            Ok((median, p99, launches, n)) => println!(
                "{mode:<10} {completion:?} {n:>4} workgroups: {median:8.2} {p99:8.2}  ({launches} launches)"
            ),
            Err(error) => println!("{mode:<10} {completion:?} {workgroups:?}: {error}"),
        }
    }
    Ok(())
}

/// A persistent dispatch with each variant of the kernel.
fn variants(bench: &Bench) -> Result<()> {
    println!("\nµs of all neurons in one stage, queued ahead, and of a fifth");
    let mut random = Random::new(7);
    let (x, mut out) = (random.floats(bench.shape.d_model), vec![0.0; bench.shape.d_model]);
    let mut passes = |kept| -> Vec<Vec<Work>> {
        (0..100).map(|i| bench.stages(i % bench.n_layers, kept, 1, &mut random)).collect()
    };
    let (all, fifth) = (passes(1.0), passes(0.2));
    for variant in Variant::ALL {
        let options = RunnerOptions { variant: Some(variant), ..bench.options(Mode::Persistent) };
        let measured = bench.runner(&options).and_then(|mut runner| {
            throughput(&mut runner, &x, &fifth, &mut out)?;
            let all = throughput(&mut runner, &x, &all, &mut out)?;
            Ok((all, throughput(&mut runner, &x, &fifth, &mut out)?))
        });
        match measured {
            Ok((all, fifth)) => println!("{variant:?}: {all:.1} {fifth:.1}"),
            Err(error) => println!("{variant:?}: {error}"),
        }
    }
    Ok(())
}

/// Where the time of a pass goes in a persistent dispatch: median µs of each part.
fn phases(bench: &Bench) -> Result<()> {
    println!(
        "\na pass in parts, µs: the input, queueing, waiting for all stages but the last, the last"
    );
    let mut random = Random::new(6);
    for (kept, n_stages) in [(1.0, 1), (0.2, 1), (0.2, 8), (0.0, 8)] {
        let mut runner = bench.runner(&bench.options(Mode::Persistent))?;
        let d = bench.shape.d_model;
        let (x, mut out) = (random.floats(d), vec![0.0; d]);
        let mut parts = [const { Vec::new() }; 4];
        for i in 0..bench.repetitions {
            let stages = match kept {
                0.0 => vec![Work::Frames { per_frame: PER_FRAME, frames: vec![] }; n_stages],
                kept => bench.stages(i as u32 % bench.n_layers, kept, n_stages, &mut random),
            };
            let mut times = [Duration::ZERO; 4];
            let mut began = Instant::now();
            let mut lap = |part: usize| {
                let now = Instant::now();
                times[part] += now - began;
                began = now;
            };
            runner.begin(&x, TIMEOUT)?;
            lap(0);
            for (i, stage) in stages.iter().enumerate() {
                let last = i + 1 == stages.len();
                let ticket = runner.queue(stage, last, vec![])?;
                lap(1);
                if last {
                    runner.output(ticket, &mut out, TIMEOUT)?;
                    lap(3);
                } else {
                    runner.wait(ticket, TIMEOUT)?;
                    lap(2);
                }
            }
            parts.iter_mut().zip(times).for_each(|(part, time)| part.push(time));
        }
        let [x, queue, wait, last] = parts.each_mut().map(|part| percentile(part, 0.5));
        println!("kept {kept} in {n_stages}: {x:.1} {queue:.1} {wait:.1} {last:.1}");
    }
    Ok(())
}

fn table(bench: &Bench, copy: f64) -> Result<()> {
    println!(
        "\n| mode | kept | stages | µs, a look after each | p99 | µs, queued ahead | GB/s | of what a copy reads |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let d = bench.shape.d_model;
    let mut random = Random::new(3);
    for mode in [Mode::Persistent, Mode::Staged, Mode::Blocking] {
        for (kept, n_stages) in [(1.0, 1), (1.0, 8), (0.5, 8), (0.2, 1), (0.2, 4), (0.2, 8)] {
            let result = (|| -> Result<(f64, f64, f64)> {
                let mut runner = bench.runner(&bench.options(mode))?;
                let (x, mut out) = (random.floats(d), vec![0.0; d]);
                let passes: Vec<Vec<Work>> = (0..bench.repetitions)
                    .map(|i| bench.stages(i as u32 % bench.n_layers, kept, n_stages, &mut random))
                    .collect();
                let mut times = vec![];
                for stages in &passes {
                    times.push(pass(&mut runner, &x, stages, &mut out)?);
                }
                let ahead = throughput(&mut runner, &x, &passes, &mut out)?;
                Ok((percentile(&mut times, 0.5), percentile(&mut times, 0.99), ahead))
            })();
            match result {
                Ok((median, p99, ahead)) => {
                    let neurons = (f64::from(bench.n_frames) * kept).round() * f64::from(PER_FRAME);
                    let rate = neurons * bench.neuron_bytes() as f64 / median / 1e3;
                    println!(
                        "| {mode} | {kept} | {n_stages} | {median:.1} | {p99:.1} | {ahead:.1} | {rate:.0} | {:.0} % |",
                        rate / copy * 100.0
                    );
                }
                Err(error) => println!("| {mode} | {kept} | {n_stages} | {error} |"),
            }
        }
    }
    Ok(())
}

/// Compares layouts of the kernel in a persistent dispatch; the best, by all neurons in one stage
/// queued ahead and a fifth of them in eight stages looked after, both against their aims.
fn sweep(bench: &Bench) -> Result<Tuning> {
    println!("\nµs: all in one stage, queued ahead; a fifth in eight stages, a look after each");
    let d = bench.shape.d_model;
    let mut random = Random::new(4);
    let (x, mut out) = (random.floats(d), vec![0.0; d]);
    let mut passes = |n, kept, stages| -> Vec<Vec<Work>> {
        (0..n).map(|i| bench.stages(i % bench.n_layers, kept, stages, &mut random)).collect()
    };
    let (all, fifth) = (passes(60, 1.0, 1), passes(40, 0.2, 8));
    let layouts: Vec<Tuning> = [(512, 2), (1024, 1), (256, 4), (256, 2)]
        .into_iter()
        .flat_map(|(threads, share)| {
            [(1, 4), (1, 8), (2, 2), (2, 4), (2, 8)].map(|(rows, in_flight)| Tuning {
                workgroups: Some(bench.processors * share),
                threads: Some(threads),
                rows_at_once: Some(rows),
                in_flight: Some(in_flight),
            })
        })
        .collect();
    // Twice, and the better of each: others may use the device meanwhile.
    let mut times = vec![(f64::INFINITY, f64::INFINITY); layouts.len()];
    for round in 0..2 {
        for (tuning, times) in layouts.iter().zip(&mut times) {
            let options = RunnerOptions { tuning: *tuning, ..bench.options(Mode::Persistent) };
            let mut measure = || -> Result<(f64, f64)> {
                let mut runner = bench.runner(&options)?;
                throughput(&mut runner, &x, &all[..10], &mut out)?;
                let one = throughput(&mut runner, &x, &all, &mut out)?;
                let mut passes = vec![];
                for stages in &fifth {
                    passes.push(pass(&mut runner, &x, stages, &mut out)?);
                }
                Ok((one, percentile(&mut passes, 0.5)))
            };
            match measure() {
                Ok((one, eight)) => *times = (times.0.min(one), times.1.min(eight)),
                Err(error) if round == 0 => println!("{tuning:?}: {error}"),
                Err(_) => {}
            }
        }
    }
    let score = |times: &(f64, f64)| times.0 / 40.0 + times.1 / 100.0;
    for (tuning, times) in layouts.iter().zip(&times).filter(|(_, times)| times.0.is_finite()) {
        println!("{:6.1} {:6.1}  {tuning:?}", times.0, times.1);
    }
    let better =
        |a: &(&Tuning, &(f64, f64)), b: &(&Tuning, &(f64, f64))| score(a.1).total_cmp(&score(b.1));
    let best = layouts.iter().zip(&times).min_by(better).map_or(Tuning::default(), |(t, _)| *t);
    println!("best: {best:?}");
    Ok(best)
}

/// Many stages; every output is compared with what blocking submissions computed.
fn soak(bench: &Bench, n_stages: u64) -> Result<()> {
    const STAGES: usize = 8;
    let d = bench.shape.d_model;
    let mut random = Random::new(5);
    let cases: Vec<(Vec<f32>, Vec<Work>)> = (0..16)
        .map(|i| {
            let kept = if i % 4 == 0 { 0.05 } else { 0.004 };
            (random.floats(d), bench.stages(i % bench.n_layers, kept, STAGES, &mut random))
        })
        .collect();
    let mut out = vec![f32::NAN; d];
    let mut blocking = bench.runner(&bench.options(Mode::Blocking))?;
    let mut want = vec![];
    for (x, stages) in &cases {
        pass(&mut blocking, x, stages, &mut out)?;
        want.push(out.clone());
    }
    drop(blocking);
    for mode in [Mode::Persistent, Mode::Staged] {
        let mut runner = bench.runner(&bench.options(mode))?;
        let n = if mode == Mode::Staged { n_stages / 20 } else { n_stages };
        let (began, mut wrong, mut worst) = (Instant::now(), 0, Duration::ZERO);
        for i in 0..n as usize / STAGES {
            let (x, stages) = &cases[i % cases.len()];
            worst = worst.max(pass(&mut runner, x, stages, &mut out)?);
            wrong += usize::from(out != want[i % cases.len()]);
        }
        println!(
            "soak, {mode}: {n} stages in {:.1} s, {wrong} wrong outputs, {} launches, slowest pass {:.2} ms",
            began.elapsed().as_secs_f64(),
            runner.launches(),
            worst.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
