//! Machines and models, as far as their speed is concerned.

use crate::{Config, Curve, Layout, Policy, Profile};

/// Who decides and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Whoever computes: meanwhile nothing is seen of what comes, and each ranking delays what is computed by all of
    /// its time.
    Computes,
    /// Another: computing goes on while something is ranked or comes.
    Apart,
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Board {
    /// What it is called.
    pub name: &'static str,
    /// What reads cost its disk, when it is kept busy.
    pub curve: Curve,
    /// Reads that the device works on at a time. These cannot be taken back.
    pub queue_depth: u32,
    /// Nanoseconds that any read takes at least.
    pub latency_ns: f64,
    /// By how much a read's time varies, relative to it.
    pub jitter: f64,
    /// Bytes of weights that are computed in a nanosecond.
    pub compute_rate: f64,
    /// Nanoseconds that a stage takes beyond its bytes.
    pub stage_ns: f64,
    /// Who decides and ranks.
    pub host: Host,
    /// Nanoseconds of a ranking, for the one who waits for it.
    pub rank_ns: f64,
    /// Nanoseconds of choosing by it, if the host computes.
    pub choose_ns: f64,
    /// Nanoseconds by which it delays computing, if the [host](Host) is apart.
    pub rank_stall_ns: f64,
    /// Nanoseconds of asking for a chunk and taking it in, if the host computes.
    pub chunk_ns: f64,
    /// Nanoseconds of what is computed between two MLPs, beyond its bytes.
    pub between_ns: f64,
    /// Nanoseconds of what is computed once for a token, beyond its bytes.
    pub token_ns: f64,
}

impl Board {
    /// Jetson AGX Orin with an NVMe disk; computing on its GPU.
    pub const ORIN: Self = Self {
        name: "orin",
        curve: Curve::line(11_000.0, 140.0),
        queue_depth: 16,
        latency_ns: 80_000.0,
        jitter: 0.2,
        compute_rate: 120.0,
        stage_ns: 10_000.0,
        host: Host::Apart,
        rank_ns: 92_000.0,
        rank_stall_ns: 8_000.0,
        choose_ns: 0.0,
        chunk_ns: 0.0,
        between_ns: 20_000.0,
        token_ns: 0.0,
    };

    /// A phone with UFS 4.0: reads below 24 KiB cost as much as those.
    pub const PHONE: Self = Self {
        name: "phone",
        curve: Curve { knee_bytes: 24 << 10, ..Curve::line(0.0, 290.0) },
        queue_depth: 32,
        latency_ns: 120_000.0,
        jitter: 0.3,
        compute_rate: 35.0,
        stage_ns: 10_000.0,
        host: Host::Apart,
        rank_ns: 150_000.0,
        rank_stall_ns: 40_000.0,
        choose_ns: 0.0,
        chunk_ns: 0.0,
        between_ns: 20_000.0,
        token_ns: 0.0,
    };

    /// Two cores of a server and a networked disk.
    pub const TWO_CORES: Self = Self {
        name: "two-cores",
        curve: Curve::line(17_000.0, 320.0),
        queue_depth: 16,
        latency_ns: 61_000.0,
        jitter: 0.3,
        compute_rate: 25.0,
        stage_ns: 5_000.0,
        host: Host::Apart,
        rank_ns: 200_000.0,
        rank_stall_ns: 100_000.0,
        choose_ns: 0.0,
        chunk_ns: 0.0,
        between_ns: 20_000.0,
        token_ns: 0.0,
    };

    /// All of them.
    pub const ALL: [Self; 3] = [Self::ORIN, Self::PHONE, Self::TWO_CORES];

    /// What a table is to be solved for, where `missing` of eight chunks that are computed are not in
    /// memory at first.
    #[must_use]
    pub fn profile(&self, shape: &Shape, config: &Config, keep: f64, missing: f64) -> Profile {
        let stages = f64::from(config.stages);
        let unit = f64::from(shape.n_chunks) * keep / stages;
        let bytes = unit * f64::from(shape.chunk_bytes);
        // Reads of some chunks each, as a plan makes them.
        let read = self.curve.read_ns(4 * u64::from(shape.chunk_bytes)) / 4.0;
        Profile {
            stage_ns: (bytes / self.compute_rate + self.stage_ns) as f32,
            rank_ns: self.rank_ns as f32,
            rank_stall_ns: self.rank_stall_ns as f32,
            read_ns: (unit * read) as f32,
            read_spread: (self.jitter / 4.0) as f32,
            missing: (stages * missing) as f32,
            between_ns: shape.between_ns(self) as f32,
            ..Profile::new(config.stages, shape.n_layers)
        }
    }

    /// Settings that suit the machine.
    #[must_use]
    pub fn config(&self, policy: Policy, budget_bytes: u64) -> Config {
        let config = Config::new(crate::Mode::Sparse, policy, budget_bytes, self.curve);
        Config { max_reads: self.queue_depth * 2, ..config }
    }
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub n_layers: u32,
    /// Chunks of each.
    pub n_chunks: u32,
    /// Neurons of a chunk that are ranked and computed one by one; 1: chunks are.
    pub neurons_per_chunk: u32,
    /// Bytes of each.
    pub chunk_bytes: u32,
    /// Bytes of a layer that always stay in memory: attention.
    pub layer_bytes: u64,
    /// Bytes that a token needs beside its layers, which stay in memory: the output head.
    pub token_bytes: u64,
}

impl Shape {
    /// Mistral-7B in Q4_0, two neurons in a chunk.
    pub const MISTRAL_7B: Self = Self {
        n_layers: 32,
        n_chunks: 7168,
        neurons_per_chunk: 2,
        chunk_bytes: 16 << 10,
        layer_bytes: 23_592_960,
        token_bytes: 107_520_000,
    };

    /// Bytes of all that always stays in memory.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.layer_bytes * u64::from(self.n_layers) + self.token_bytes
    }

    /// The chunks, `keep` of which a token computes.
    #[must_use]
    pub fn layout(&self, keep: f64) -> Layout {
        Layout::even(self.n_layers, self.n_chunks, self.chunk_bytes, keep)
    }

    pub(crate) fn between_ns(&self, board: &Board) -> f64 {
        self.layer_bytes as f64 / board.compute_rate + board.between_ns
    }
}
