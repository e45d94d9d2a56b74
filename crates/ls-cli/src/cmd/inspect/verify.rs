//! Reads all of a pack's weights and checks their checksums.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ls_model::ModelFile;
use ls_model::pack::{Pack, verify_chunk, verify_rows};
use serde::Serialize;

use crate::interrupt::{self, Interrupted};
use crate::output;

/// Bytes of records that are read at once, about.
const PIECE: usize = 4 << 20;
/// Damages that are listed; more are counted.
const MAX_LISTED: usize = 20;

/// What a check found.
#[derive(Debug, Default, Serialize)]
pub struct Verified {
    /// Bytes that were read.
    pub bytes: u64,
    /// Tensors, records and chunks that are not what was written.
    pub n_damaged: u64,
    /// The first of them, in words.
    pub damaged: Vec<String>,
}

impl Verified {
    /// As a line of a table.
    pub fn line(&self) -> String {
        match self.n_damaged {
            0 => format!("{} read, every checksum is right", output::bytes(self.bytes)),
            n => format!("{} read, {n} checksums are wrong", output::bytes(self.bytes)),
        }
    }
}

/// Reads every tensor, embedding row and chunk.
pub fn verify(model: &ModelFile, pack: &Pack) -> anyhow::Result<Verified> {
    interrupt::install()?;
    let name = pack.path().display();
    let file = File::open(pack.path()).with_context(|| format!("cannot read {name}"))?;
    let mut check = Check { pack, file, bar: bar(model, pack), found: Verified::default() };
    let result = check.all(model);
    check.bar.finish_and_clear();
    result?;
    Ok(check.found)
}

fn bar(model: &ModelFile, pack: &Pack) -> ProgressBar {
    let tensors = model.tensors().iter().map(|info| info.n_bytes as u64);
    let layers = pack.layers().iter().map(|layer| layer.stored_bytes());
    let rows = pack.rows().map(|rows| rows.stored_bytes());
    let bar = output::progress("verify", tensors.chain(layers).chain(rows).sum());
    let style = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

struct Check<'a> {
    pack: &'a Pack,
    file: File,
    bar: ProgressBar,
    found: Verified,
}

impl Check<'_> {
    fn all(&mut self, model: &ModelFile) -> anyhow::Result<()> {
        let pack = self.pack;
        for info in model.tensors() {
            let bytes = self.read(info.offset(), info.n_bytes)?;
            self.note(pack.verify_tensor(&info.name, &bytes).err());
        }
        if let Some(rows) = pack.rows() {
            self.records(rows.offset, rows.record_bytes, rows.n_records(), |bytes, record| {
                verify_rows(bytes, record).err()
            })?;
        }
        for (number, layer) in (0..).zip(pack.layers()) {
            let n = u64::from(layer.n_chunks);
            self.records(layer.offset, layer.record_bytes, n, |bytes, chunk| {
                verify_chunk(bytes, number, chunk as u32).err()
            })?;
        }
        Ok(())
    }

    /// Checks `n` records of `len` bytes from `offset` on.
    fn records<E: ToString>(
        &mut self,
        offset: u64,
        len: usize,
        n: u64,
        check: impl Fn(&[u8], u64) -> Option<E>,
    ) -> anyhow::Result<()> {
        let at_once = (PIECE / len.max(1)).max(1) as u64;
        let mut first = 0;
        while first < n {
            let count = at_once.min(n - first);
            let bytes = self.read(offset + first * len as u64, count as usize * len)?;
            for (number, record) in (first..).zip(bytes.chunks_exact(len)) {
                self.note(check(record, number));
            }
            first += count;
        }
        Ok(())
    }

    fn note(&mut self, damage: Option<impl ToString>) {
        let Some(damage) = damage else { return };
        self.found.n_damaged += 1;
        if self.found.damaged.len() < MAX_LISTED {
            self.found.damaged.push(damage.to_string());
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        if interrupt::take() {
            return Err(Interrupted("the check was interrupted".into()).into());
        }
        let mut bytes = vec![0; len];
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .with_context(|| {
                format!("cannot read {len} bytes at {offset} of {}", self.pack.path().display())
            })?;
        self.found.bytes += len as u64;
        self.bar.inc(len as u64);
        Ok(bytes)
    }
}
