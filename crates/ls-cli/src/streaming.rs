//! What a result says about streaming.

use ls_engine::refine::{Count, Stats as RefineStats, Times};
use ls_engine::{Engine, Refiner, StreamStats};
use serde::Serialize;

/// The budget, and what was read within it. Empty when weights stay in the mapped file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamReport {
    /// The budget in bytes.
    pub budget_bytes: Option<u64>,
    /// What the plan uses of it.
    pub planned_bytes: Option<u64>,
    /// Bytes that were read from the disk.
    pub bytes_read: Option<u64>,
    /// The same for each token.
    pub bytes_per_token: Option<f64>,
    /// Of the bytes that compute wanted, the share that was not in memory at that moment.
    pub stall_miss_ratio: Option<f64>,
    /// The share that was not in memory when it was first scheduled, before any read.
    pub demand_miss_ratio: Option<f64>,
    /// Of the bytes that were read, the share that no one had asked for.
    pub wasted_ratio: Option<f64>,
    /// Rankings of a token that changed a choice; if sparse tokens are streamed.
    pub refinements_per_token: Option<f64>,
    /// Of the predicted importance of what was chosen, the share that was left out because it came too
    /// late or could not be read; likewise.
    pub dropped_share: Option<f64>,
    /// How long each token waited for reads, in milliseconds.
    pub stall_ms_per_token: Option<f64>,
    /// Speed of the disk while it read, in 10⁶ bytes per second.
    pub disk_mb_per_s: Option<f64>,
    /// Mean size of a read in KiB.
    pub read_kib: Option<f64>,
    /// Mean number of reads in flight while there were any.
    pub io_depth: Option<f64>,
    /// How the disk was read.
    pub io: Option<&'static str>,
    /// What parts of tokens took.
    #[serde(flatten)]
    pub costs: CostReport,
}

/// What the parts of sparse tokens that are streamed took the thread that decodes, and what decisions went by: a
/// machine for the simulator of `ls-sched`. Empty unless there were such tokens.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CostReport {
    /// Bytes of the frames for chunks, of one, and chunks of the longest layer.
    pub cache_bytes: Option<u64>,
    pub chunk_bytes: Option<u32>,
    pub layer_chunks: Option<u32>,
    /// Whether chunks are chosen by worth, at what price and for how many tokens, and whether on the true input too.
    pub by_worth: Option<bool>,
    pub price: Option<f32>,
    pub horizon: Option<f32>,
    pub corrects: Option<bool>,
    /// What a read was taken to cost: microseconds, and those of each KiB.
    pub read_us: Option<f64>,
    pub read_us_per_kib: Option<f64>,
    /// Rankings of a token, microseconds of one, and of choosing by it.
    pub ranks_per_token: Option<f64>,
    pub rank_us: Option<f64>,
    pub choose_us: Option<f64>,
    /// Stages of a token, microseconds of one beyond its neurons, and 10⁹ bytes of chosen neurons in a second.
    pub stages_per_token: Option<f64>,
    pub stage_us: Option<f64>,
    pub stage_gb_per_s: Option<f64>,
    /// Chunks that are read for a token, and microseconds of asking for one, taking it in and evicting another.
    pub chunks_per_token: Option<f64>,
    pub chunk_us: Option<f64>,
    /// Microseconds between two MLPs: attention.
    pub between_us: Option<f64>,
    /// Milliseconds of a token up to its last MLP.
    pub pass_ms: Option<f64>,
    /// Milliseconds of it in which reads were waited for.
    pub wait_ms: Option<f64>,
}

impl CostReport {
    fn new(refiner: &Refiner, times: &Times) -> Self {
        let (config, layout) = (refiner.config(), refiner.layout());
        let (stage_ns, byte_ns) = times.stage_line();
        let tokens = times.pass.n.max(1) as f64;
        Self {
            cache_bytes: Some(config.budget_bytes),
            chunk_bytes: Some(layout.frame_bytes),
            layer_chunks: layout.layers.iter().map(|layer| layer.n_chunks).max(),
            by_worth: Some(config.count == Count::ByWorth),
            price: Some(config.price),
            horizon: Some(config.horizon),
            corrects: Some(config.correct),
            read_us: Some(config.curve.fixed_ns / 1e3),
            read_us_per_kib: Some(config.curve.ns_per_kib / 1e3),
            ranks_per_token: Some(times.rank.n as f64 / tokens),
            rank_us: Some(times.rank.mean_ns() / 1e3),
            choose_us: Some(times.choose.mean_ns() / 1e3),
            stages_per_token: Some(times.n_stages() as f64 / tokens),
            stage_us: Some(stage_ns / 1e3),
            stage_gb_per_s: Some(if byte_ns > 0.0 { 1.0 / byte_ns } else { 0.0 }),
            chunks_per_token: Some(times.landed as f64 / tokens),
            chunk_us: Some(times.chunk_ns() / 1e3),
            between_us: Some(times.between.mean_ns() / 1e3),
            pass_ms: Some(times.pass.mean_ns() / 1e6),
            wait_ms: Some(times.wait.ns as f64 / tokens / 1e6),
        }
    }
}

/// A point in time to measure from.
#[derive(Clone, Debug)]
pub struct Since<'a> {
    stream: Option<StreamStats>,
    refiner: Option<(&'a Refiner, RefineStats, Times)>,
}

impl<'a> Since<'a> {
    /// Now. With `refiner`, if one streams sparse tokens.
    pub fn now(engine: &Engine, refiner: Option<&'a Refiner>) -> Self {
        let refiner = refiner.map(|refiner| (refiner, refiner.stats(), refiner.times()));
        Self { stream: engine.stream_stats(), refiner }
    }

    /// What happened since, for `tokens` tokens.
    pub fn report(&self, engine: &Engine, tokens: usize) -> StreamReport {
        let plan = engine.plan();
        let (Some(before), Some(after), Some(plan)) = (&self.stream, engine.stream_stats(), plan)
        else {
            return StreamReport::default();
        };
        let (a, b) = (&before.counts, &after.counts);
        let wanted = (b.wanted_bytes - a.wanted_bytes) as f64;
        let read = after.bytes_read() - before.bytes_read();
        let io_read = after.io.read_bytes - before.io.read_bytes;
        let useful = after.io.useful_bytes - before.io.useful_bytes;
        let busy = (after.io.busy - before.io.busy).as_secs_f64();
        let reads = after.io.reads - before.io.reads;
        let tokens = tokens.max(1) as f64;
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let gaps = io_read.saturating_sub(useful);
        let refined = self.refiner.as_ref().map(|(refiner, before, _)| (refiner.stats(), before));
        let costs = self
            .refiner
            .as_ref()
            .map(|(refiner, _, before)| CostReport::new(refiner, &refiner.times().since(before)));
        // Of what was read for a layer, some was not computed in the end.
        let unused = refined.as_ref().map_or(0, |(now, then)| now.unused_bytes - then.unused_bytes);
        let layers = refined.as_ref().map(|(now, then)| (now.layers - then.layers) as f64);
        StreamReport {
            budget_bytes: Some(plan.budget_bytes),
            planned_bytes: Some(plan.planned_bytes()),
            bytes_read: Some(read),
            bytes_per_token: Some(read as f64 / tokens),
            stall_miss_ratio: Some(ratio((b.stall_miss_bytes - a.stall_miss_bytes) as f64, wanted)),
            // What is scheduled for the next token already is not wanted yet.
            demand_miss_ratio: Some(
                ratio((b.demand_miss_bytes - a.demand_miss_bytes) as f64, wanted).min(1.0),
            ),
            wasted_ratio: Some(ratio((gaps + unused) as f64, io_read as f64)),
            refinements_per_token: refined
                .as_ref()
                .map(|(now, then)| (now.refinements - then.refinements) as f64 / tokens),
            dropped_share: refined.as_ref().zip(layers).map(|((now, then), layers)| {
                let share = |stats: &RefineStats| stats.late_share + stats.lost_share;
                ratio(share(now) - share(then), layers)
            }),
            stall_ms_per_token: Some((b.stall_ns - a.stall_ns) as f64 / 1e6 / tokens),
            disk_mb_per_s: Some(ratio(io_read as f64 / 1e6, busy)),
            read_kib: Some(ratio(io_read as f64 / 1024.0, reads as f64)),
            io_depth: Some(ratio(after.io.depth_seconds - before.io.depth_seconds, busy)),
            io: Some(after.backend),
            costs: costs.unwrap_or_default(),
        }
    }
}
