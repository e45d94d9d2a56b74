//! What streaming did, from all of its parts.

use ls_io::Stats as IoStats;

use crate::embedding::Embedding;
use crate::stream::{StreamCounts, Streamer};

/// What streaming did since the model was loaded, resident weights not counted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamStats {
    /// What was wanted, missing and waited for.
    pub counts: StreamCounts,
    /// Reads of chunks.
    pub io: IoStats,
    /// Bytes that were read for rows of the token embedding.
    pub embedding_bytes_read: u64,
    /// The cache.
    pub cache: ls_cache::Stats,
    /// The system's way to read.
    pub backend: &'static str,
    /// Whether reads bypass the page cache.
    pub is_direct: bool,
    /// Ways that did not work, and what is done instead.
    pub notices: Vec<ls_io::Notice>,
}

impl StreamStats {
    pub(crate) fn of(streamer: &Streamer, embedding: &Embedding) -> Self {
        let (reads, cache) = (streamer.reads(), streamer.cache().stats());
        let embedding_bytes_read = match embedding {
            Embedding::Flash(rows) => rows.bytes_read(),
            _ => 0,
        };
        Self {
            counts: streamer.counts(),
            io: reads.stats(),
            embedding_bytes_read,
            cache,
            backend: reads.backend(),
            is_direct: reads.is_direct(),
            notices: reads.notices(),
        }
    }

    /// Bytes read from the disk.
    pub fn bytes_read(&self) -> u64 {
        self.io.read_bytes + self.embedding_bytes_read
    }
}
