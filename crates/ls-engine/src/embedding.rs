//! The token embedding: a resident matrix, or rows that are read from the pack when needed.

use ls_cpu::dequantize_row;
use ls_io::AlignedBuf;
use ls_model::pack::{self, RowLayout};
use parking_lot::Mutex;

use crate::EngineError;
use crate::bytes::Bytes;
use crate::reader::Reader;
use crate::weights::{Weight, format};

/// Records that are read at once.
const AT_ONCE: usize = 32;

/// Where token embeddings come from, `[vocab_size, d_model]`.
#[derive(Debug)]
pub(crate) enum Embedding {
    /// From memory.
    Matrix(Weight),
    /// From the records of a pack that are in memory.
    Records(RowLayout, Bytes),
    /// From the pack, row by row: it is as large as many layers, and a token needs one row.
    Flash(Box<FlashRows>),
}

impl Embedding {
    /// Rows of `tokens`, `[tokens, d_model]`.
    pub fn lookup(&self, tokens: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Self::Matrix(matrix) => {
                let matrix = matrix.view();
                for (token, out) in tokens.iter().zip(out.chunks_exact_mut(matrix.cols())) {
                    matrix.dequantize_row(*token as usize, out);
                }
                Ok(())
            }
            Self::Records(layout, records) => {
                let outs = out.chunks_exact_mut(layout.d_model);
                for (token, out) in tokens.iter().zip(outs) {
                    let record = layout.record_of(*token as usize);
                    let at = record as usize * layout.record_bytes;
                    let bytes = &records[at..at + layout.record_bytes];
                    pack::verify_rows(bytes, record)?;
                    read_row(layout, bytes, *token, out);
                }
                Ok(())
            }
            Self::Flash(rows) => rows.lookup(tokens, out),
        }
    }
}

/// Rows of a matrix in a pack.
#[derive(Debug)]
pub(crate) struct FlashRows {
    reader: Reader,
    layout: RowLayout,
    scratch: Mutex<Scratch>,
    read_before: u64,
}

#[derive(Debug, Default)]
struct Scratch {
    buffers: Vec<AlignedBuf>,
    /// Record and place in the batch of each token.
    wanted: Vec<(u64, usize)>,
}

impl FlashRows {
    pub fn new(reader: Reader, layout: RowLayout) -> Result<Self, EngineError> {
        let buffers =
            (0..AT_ONCE).map(|_| new_buffer(layout.record_bytes)).collect::<Result<_, _>>()?;
        let scratch = Mutex::new(Scratch { buffers, wanted: Vec::new() });
        let read_before = reader.stream().stats().read_bytes;
        Ok(Self { reader, layout, scratch, read_before })
    }

    /// Bytes of the buffers.
    pub fn buffer_bytes(layout: &RowLayout) -> u64 {
        (AT_ONCE * layout.record_bytes) as u64
    }

    /// Bytes read, those that read resident tensors before not counted.
    pub fn bytes_read(&self) -> u64 {
        self.reader.stream().stats().read_bytes - self.read_before
    }

    fn lookup(&self, tokens: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        let mut scratch = self.scratch.lock();
        let Scratch { buffers, wanted } = &mut *scratch;
        wanted.clear();
        let record = |token: &u32| self.layout.record_of(*token as usize);
        wanted.extend(tokens.iter().enumerate().map(|(t, token)| (record(token), t)));
        wanted.sort_unstable();
        // Tokens that share a record are neighbours now.
        let mut groups = wanted.chunk_by(|a, b| a.0 == b.0);
        loop {
            let batch: Vec<_> = groups.by_ref().take(AT_ONCE).collect();
            if batch.is_empty() {
                return Ok(());
            }
            while buffers.len() < batch.len() {
                // An error of an earlier batch took them.
                buffers.push(new_buffer(self.layout.record_bytes)?);
            }
            let reads = batch.iter().zip(buffers.drain(..batch.len()).collect::<Vec<_>>());
            let reads = reads.map(|(group, buf)| (self.layout.record_offset(group[0].0), buf));
            self.reader.read(reads, &mut |i, buf| {
                let record = batch[i][0].0;
                pack::verify_rows(&buf, record)?;
                for (_, t) in batch[i] {
                    let out = &mut out[t * self.layout.d_model..][..self.layout.d_model];
                    read_row(&self.layout, &buf, tokens[*t], out);
                }
                buffers.push(buf);
                Ok(())
            })?;
        }
    }
}

fn read_row(layout: &RowLayout, record: &[u8], token: u32, out: &mut [f32]) {
    let row = &record[layout.row_in_record(token as usize)];
    dequantize_row(format(layout.dtype), row, out);
}

fn new_buffer(len: usize) -> Result<AlignedBuf, EngineError> {
    AlignedBuf::new(len).map_err(|source| EngineError::Allocate { bytes: len as u64, source })
}
