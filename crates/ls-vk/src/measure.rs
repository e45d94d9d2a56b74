//! What a device can do, measured: copies and round trips.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::{Mode, Runner, RunnerOptions, Work};
use crate::error::Result;
use crate::format::{ColumnFormat, RowFormat};
use crate::kernels::copy::Copy;
use crate::kernels::mlp::{Activation, MlpShape};
use crate::recorder::{For, Recorder};
use crate::{Buffer, Device, MemoryKind, SelfTest, Slab};

/// How long one measurement may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Rates of copies, in 10⁹ bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRates {
    /// By a kernel from the device's memory to the device's memory: bytes read, and as many written.
    pub on_device: f64,
    /// Bytes that the host writes to mapped device memory, one thread; none where there is no such
    /// memory.
    pub to_mapped: Option<f64>,
    /// By the transfer queue, from the host's memory to the device's.
    pub upload: f64,
}

/// Measures copies of `bytes` bytes: take several times what the device's caches hold.
pub fn copy_rates(device: &Arc<Device>, bytes: u64) -> Result<CopyRates> {
    let bytes = bytes.min(device.limits().max_storage_range) & !0xffff;
    let buffer = |kind, bytes| Buffer::new(device, kind, bytes, "copy rates").map(Arc::new);
    let (from, to) = (buffer(MemoryKind::Device, bytes)?, buffer(MemoryKind::Device, bytes)?);
    let copy = Copy::new(device)?;
    let copies = |recorder: &mut Recorder| copy.record(recorder, (bytes / 16) as u32, &from, &to);
    wake(device, &copies)?;
    let on_device = rate(device, For::Compute, bytes, copies)?;
    let part = bytes.min(64 << 20);
    let host = buffer(MemoryKind::Upload, part)?;
    host.fill(0x5a)?;
    let upload = rate(device, For::Transfer, part, |recorder| {
        recorder.copy(&host, &to, &[(0, 0, part)]).map(drop)
    })?;
    let to_mapped = match buffer(MemoryKind::Mapped, part) {
        Ok(mapped) => {
            let source = vec![0x5a; part as usize];
            mapped.write(0, &source)?;
            let began = Instant::now();
            mapped.write(0, &source)?;
            Some(part as f64 / began.elapsed().as_secs_f64() / 1e9)
        }
        Err(_) => None,
    };
    Ok(CopyRates { on_device, to_mapped, upload })
}

/// Keeps the device busy for a while: one that was idle runs at a fraction of its clock.
fn wake(device: &Arc<Device>, record: &impl Fn(&mut Recorder) -> Result<()>) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let mut recorder = Recorder::new(device, For::Compute, "wake")?;
        record(&mut recorder)?;
        recorder.finish()?.run(TIMEOUT)?;
    }
    Ok(())
}

fn rate(
    device: &Arc<Device>,
    queue: For,
    bytes: u64,
    record: impl Fn(&mut Recorder) -> Result<()>,
) -> Result<f64> {
    const TIMES: u32 = 8;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let mut recorder = Recorder::new(device, queue, "copy rates")?;
        for _ in 0..TIMES {
            record(&mut recorder)?;
            recorder.barrier();
        }
        let commands = recorder.finish()?;
        let began = Instant::now();
        commands.run(TIMEOUT)?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 * f64::from(TIMES) / best / 1e9)
}

/// Median and 99th percentile of `n` round trips: a stage without work, from its queueing to the
/// host's knowing that it is done.
pub fn round_trip(runner: &mut Runner, n: usize) -> Result<(Duration, Duration)> {
    let x = vec![0.0; runner.plan().shape().d_model];
    runner.begin(&x, TIMEOUT)?;
    let nothing = Work::Neurons(vec![]);
    let mut times = Vec::with_capacity(n.max(1));
    for _ in 0..n.max(1) {
        let began = Instant::now();
        let ticket = runner.queue(&nothing, false, vec![])?;
        runner.wait(ticket, TIMEOUT)?;
        times.push(began.elapsed());
    }
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok((at(0.5), at(0.99)))
}

/// The time of a stage without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// The way of control.
    pub mode: Mode,
    /// Half of them were faster.
    pub median: Duration,
    /// One in a hundred was slower.
    pub p99: Duration,
}

/// Measures `n` round trips in each way of control that passed the self-test.
///
/// # Errors
///
/// If the device fails, or no kernel passed.
pub fn round_trips(device: &Arc<Device>, tested: &SelfTest, n: usize) -> Result<Vec<RoundTrip>> {
    let (row, down) = (RowFormat::Q8_0, ColumnFormat::Q8);
    let (d_model, activation) = (256, Activation::Silu);
    let bytes = row.row_bytes(d_model).expect("whole blocks");
    let (up_at, down_at) = (bytes, 2 * bytes);
    let shape = MlpShape { d_model, gate: row, up: row, down, up_at, down_at, activation };
    let slab = Slab::new(device, shape.bytes_for(1).next_multiple_of(4) as u32, 1, None)?;
    let variant = Some(tested.best(device, &shape)?);
    let measure = |mode: Mode| {
        let options = RunnerOptions { mode: Some(mode), variant, ..Default::default() };
        let mut runner = Runner::new(&slab, shape, &options)?;
        let (median, p99) = round_trip(&mut runner, n)?;
        Ok(RoundTrip { mode, median, p99 })
    };
    tested.modes_for(device.info().kind).into_iter().map(measure).collect()
}
