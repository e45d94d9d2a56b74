//! What goes where under a budget, computed before anything large is allocated.
//!
//! In this order: what the process holds already, the resident weights, keys and values, buffers,
//! what reading needs, and the cache gets the rest. The token embedding, unless it is the output
//! head too, stays on flash if the rest does not hold it beside all chunks.

use std::fmt;

use serde::Serialize;

use crate::EngineError;

/// Bytes that reads of the MLP's chunks may hold at once: enough that the disk always has several
/// long reads to do while others wait for their turn to be computed.
const TRANSIT_BYTES: u64 = 16 << 20;

/// What the cache's books take for each frame and each key, in bytes.
const FRAME_BOOKS: u64 = 48;
const KEY_BOOKS: u64 = 16;

/// What a model needs, in bytes unless it says otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Held by the process before weights are loaded.
    pub process: u64,
    /// Weights that are always in memory.
    pub resident: u64,
    /// Keys and values for the whole context.
    pub kv: u64,
    /// All other memory of a sequence.
    pub buffers: u64,
    /// Buffers of the reads.
    pub io: u64,
    /// The token embedding, when it can stay on flash.
    pub embedding: Option<u64>,
    /// One frame of the cache.
    pub frame: u64,
    /// Chunks of all layers.
    pub n_chunks: u64,
    /// Frames without which nothing moves.
    pub min_frames: u64,
    /// Most bytes of frames.
    pub max_cache: u64,
}

/// Where the bytes of a budget go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The budget.
    pub budget_bytes: u64,
    /// What the process held before weights were loaded: tokenizer, threads, the program's own.
    pub process_bytes: u64,
    /// Weights that are always in memory: attention, norms, output head.
    pub resident_bytes: u64,
    /// Keys and values for the whole context.
    pub kv_bytes: u64,
    /// All other memory of a sequence.
    pub buffer_bytes: u64,
    /// Buffers of the reads, and the cache's books.
    pub io_bytes: u64,
    /// The token embedding; 0 when it stays on flash or is the output head.
    pub embedding_bytes: u64,
    /// Chunks that a GPU holds in the host's memory.
    pub gpu_bytes: u64,
    /// Frames of the cache.
    pub cache_bytes: u64,
    /// Bytes of all chunks but those in a GPU's own memory: with as large a cache nothing is read after the first pass.
    pub chunk_bytes: u64,
    /// Bytes of one frame of the cache.
    pub frame_bytes: u64,
    /// Frames of the cache that reads pass through; the others retain chunks.
    pub transit_frames: u64,
}

impl Plan {
    /// Divides `budget_bytes` among `needs`.
    ///
    /// # Errors
    ///
    /// If not even the smallest cache fits.
    pub(crate) fn new(budget_bytes: u64, needs: &Needs) -> Result<Self, EngineError> {
        let floor = Floor::new(needs);
        let Some(mut left) = budget_bytes.checked_sub(floor.bytes()) else {
            return Err(EngineError::Budget { budget_bytes, floor: Box::new(floor) });
        };
        let cost = needs.frame + FRAME_BOOKS;
        let least = needs.min_frames.min(needs.n_chunks);
        let most = needs.n_chunks.min(needs.max_cache / needs.frame).max(least);
        let more = (left / cost).min(most - least);
        let frames = least + more;
        left -= more * cost;
        let is_whole = frames >= needs.n_chunks;
        let embedding = needs.embedding.filter(|bytes| is_whole && *bytes <= left).unwrap_or(0);
        let transit_frames = match is_whole {
            true => 0,
            // A small cache is better used for overlap than for retaining little.
            false => (TRANSIT_BYTES / needs.frame).max(needs.min_frames).min(frames / 2 + 1),
        };
        Ok(Self {
            budget_bytes,
            process_bytes: needs.process,
            resident_bytes: needs.resident,
            kv_bytes: needs.kv,
            buffer_bytes: needs.buffers,
            io_bytes: needs.io.saturating_add(needs.books()).saturating_add(more * FRAME_BOOKS),
            embedding_bytes: embedding,
            gpu_bytes: 0,
            cache_bytes: frames * needs.frame,
            chunk_bytes: needs.n_chunks.saturating_mul(needs.frame),
            frame_bytes: needs.frame,
            transit_frames,
        })
    }

    /// Bytes that the plan uses, at most the budget.
    pub fn planned_bytes(&self) -> u64 {
        self.fixed_bytes() + self.gpu_bytes + self.cache_bytes
    }

    /// Gives a GPU that computes from the host's memory what the cache does not need to pass chunks
    /// through: what the GPU holds, the cache need not keep. The chunks that it then holds.
    pub(crate) fn give_to_gpu(&mut self, min_frames: u64) -> u64 {
        let frame = self.frame_bytes;
        let n_chunks = self.chunk_bytes / frame;
        let passing = self.transit_frames.max(min_frames).min(n_chunks);
        // Where the cache has less than all chunks, more would have been too much for it.
        let is_whole = self.cache_bytes >= self.chunk_bytes;
        let left = if is_whole { self.budget_bytes - self.planned_bytes() } else { 0 };
        let spare = left / frame;
        let held = (self.cache_bytes / frame + spare).saturating_sub(passing).min(n_chunks);
        self.gpu_bytes = held * frame;
        self.cache_bytes = passing * frame;
        self.transit_frames = passing;
        held
    }

    /// All but the cache and what a GPU holds.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let parts = [
            self.process_bytes,
            self.resident_bytes,
            self.kv_bytes,
            self.buffer_bytes,
            self.io_bytes,
            self.embedding_bytes,
        ];
        // The budget bounds their sum.
        parts.iter().sum()
    }

    /// Bytes of chunks that neither the cache nor a GPU retains: what exact mode reads for each token.
    pub fn streamed_bytes(&self) -> u64 {
        let retained = self.cache_bytes - self.transit_frames * self.frame_bytes + self.gpu_bytes;
        self.chunk_bytes - retained.min(self.chunk_bytes)
    }
}

/// The parts of the smallest budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Floor {
    /// What the process holds before weights are loaded.
    pub process_bytes: u64,
    /// Weights that are always in memory.
    pub resident_bytes: u64,
    /// Keys and values for the whole context.
    pub kv_bytes: u64,
    /// All other memory of a sequence.
    pub buffer_bytes: u64,
    /// Buffers of the reads, the cache's books and the frames without which nothing moves.
    pub streaming_bytes: u64,
}

impl Floor {
    pub(crate) fn new(needs: &Needs) -> Self {
        Self {
            process_bytes: needs.process,
            resident_bytes: needs.resident,
            kv_bytes: needs.kv,
            buffer_bytes: needs.buffers,
            streaming_bytes: needs
                .io
                .saturating_add(needs.books())
                .saturating_add(needs.min_frames.min(needs.n_chunks).saturating_mul(needs.frame)),
        }
    }

    /// The smallest budget.
    pub fn bytes(&self) -> u64 {
        let parts = [
            self.process_bytes,
            self.resident_bytes,
            self.kv_bytes,
            self.buffer_bytes,
            self.streaming_bytes,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "at least {} MiB are needed: {} for weights that stay in memory, {} for keys and \
             values, {} for buffers, {} for streaming and {} for the program",
            mb(self.bytes()),
            mb(self.resident_bytes),
            mb(self.kv_bytes),
            mb(self.buffer_bytes),
            mb(self.streaming_bytes),
            mb(self.process_bytes),
        )
    }
}

impl Needs {
    /// The cache's books but for frames beyond the first few.
    fn books(&self) -> u64 {
        let frames = self.min_frames.min(self.n_chunks);
        self.n_chunks.saturating_mul(KEY_BOOKS).saturating_add(frames.saturating_mul(FRAME_BOOKS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn needs() -> impl Strategy<Value = Needs> {
        let mb = 0u64..500 << 20;
        (mb.clone(), mb.clone(), 1u64..40, 1u64..80_000, 1u64..300, prop::option::of(mb)).prop_map(
            |(resident, kv, pages, n_chunks, min_frames, embedding)| Needs {
                process: 20 << 20,
                resident,
                kv,
                buffers: 9 << 20,
                io: 2 << 20,
                embedding,
                frame: pages * 4096,
                n_chunks,
                min_frames,
                max_cache: u64::MAX,
            },
        )
    }

    proptest! {
        #[test]
        fn a_plan_keeps_to_its_budget(needs in needs(), budget in 0u64..4 << 30) {
            match Plan::new(budget, &needs) {
                Ok(plan) => {
                    prop_assert!(plan.planned_bytes() <= budget);
                    let frames = plan.cache_bytes / plan.frame_bytes;
                    prop_assert!(frames >= needs.min_frames.min(needs.n_chunks));
                    prop_assert!(frames <= needs.n_chunks);
                    prop_assert!(plan.transit_frames <= frames);
                    // What is left would not have made the cache larger.
                    let spare = budget - plan.planned_bytes();
                    let is_whole = frames == needs.n_chunks;
                    prop_assert!(is_whole || spare < needs.frame + FRAME_BOOKS);
                    prop_assert_eq!(is_whole, plan.streamed_bytes() == 0);
                    prop_assert!(plan.streamed_bytes() <= plan.chunk_bytes);
                }
                Err(EngineError::Budget { floor, .. }) => {
                    prop_assert!(floor.bytes() > budget);
                    prop_assert!(Plan::new(floor.bytes(), &needs).is_ok());
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn a_gpu_and_the_cache_keep_to_the_budget_together(
            needs in needs(),
            budget in 0u64..4 << 30,
        ) {
            let Ok(cpu) = Plan::new(budget, &needs) else { return Ok(()) };
            let mut plan = cpu;
            let held = plan.give_to_gpu(needs.min_frames);
            prop_assert!(plan.planned_bytes() <= budget);
            prop_assert!(held <= needs.n_chunks);
            prop_assert_eq!(plan.gpu_bytes, held * needs.frame);
            let least = needs.min_frames.min(needs.n_chunks);
            prop_assert!(plan.cache_bytes >= least * needs.frame);
            prop_assert_eq!(plan.streamed_bytes(), (needs.n_chunks - held) * needs.frame);
            // What the cache would have retained is held, but for what chunks still pass through.
            let passing = plan.transit_frames * needs.frame;
            prop_assert!(plan.streamed_bytes() <= cpu.streamed_bytes() + passing);
        }

        #[test]
        fn a_larger_budget_never_streams_more(needs in needs(), budget in 0u64..4 << 30) {
            let plan = |budget| Plan::new(budget, &needs).map(|plan| plan.streamed_bytes());
            if let (Ok(less), Ok(more)) = (plan(budget), plan(budget + (8 << 20))) {
                prop_assert!(more <= less + (2 * TRANSIT_BYTES).max(2 * needs.min_frames * needs.frame));
            }
        }
    }

    #[test]
    fn a_budget_below_the_floor_is_refused_with_its_parts() {
        let needs = Needs {
            process: 10 << 20,
            resident: 100 << 20,
            kv: 30 << 20,
            buffers: 5 << 20,
            io: 1 << 20,
            embedding: None,
            frame: 4096,
            n_chunks: 1024,
            min_frames: 256,
            max_cache: u64::MAX,
        };
        let error = Plan::new(100 << 20, &needs).unwrap_err().to_string();
        assert_eq!(
            error,
            "a budget of 104857600 bytes is too small: at least 148 MiB are needed: 100 for \
             weights that stay in memory, 30 for keys and values, 5 for buffers, 3 for streaming \
             and 10 for the program"
        );
    }
}
