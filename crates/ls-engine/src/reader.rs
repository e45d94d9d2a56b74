//! Reads that are waited for: resident tensors when loading, embedding rows for each batch.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ls_io::{AlignedBuf, Completion, Priority, Request, Stream, StreamOptions};
use parking_lot::Mutex;

use crate::EngineError;

/// How long to wait for the next of several reads.
const DEADLINE: Duration = Duration::from_secs(60);

/// Reads extents of a pack and waits for them.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Stream<AlignedBuf>,
    channel: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    completions: Receiver<Completion<AlignedBuf>>,
    /// Each read has a tag of its own.
    next_tag: u64,
}

impl Reader {
    pub fn open(path: &Path, options: &StreamOptions) -> Result<Self, EngineError> {
        let (sender, completions) = channel();
        // Whoever reads may have given up: then nobody wants it.
        let stream = Stream::open(path, options, move |completion| drop(sender.send(completion)))?;
        Ok(Self { stream, channel: Mutex::new(Channel { completions, next_tag: 0 }) })
    }

    /// The stream itself.
    pub fn stream(&self) -> &Stream<AlignedBuf> {
        &self.stream
    }

    /// Reads one extent.
    pub fn read_one(&self, offset: u64, len: u64) -> Result<AlignedBuf, EngineError> {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let buffer =
            AlignedBuf::new(size).map_err(|source| EngineError::Allocate { bytes: len, source })?;
        let mut read = None;
        self.read([(offset, buffer)], &mut |_, buffer| {
            read = Some(buffer);
            Ok(())
        })?;
        Ok(read.expect("what was submitted came back"))
    }

    /// Fills each buffer from its offset on, and calls `each` with its number as it arrives.
    ///
    /// # Errors
    ///
    /// If a read fails, takes too long, or `each` fails; the buffers are gone then.
    pub fn read(
        &self,
        buffers: impl IntoIterator<Item = (u64, AlignedBuf)>,
        each: &mut dyn FnMut(usize, AlignedBuf) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut channel = self.channel.lock();
        let first = channel.next_tag;
        let mut waiting = 0;
        self.stream.submit(buffers.into_iter().map(|(offset, buf)| {
            let tag = first + waiting;
            waiting += 1;
            Request { tag, offset, priority: Priority(tag), buf }
        }));
        channel.next_tag += waiting;
        let mut result = Ok(());
        while waiting > 0 {
            let Some(Completion { tag, buf, result: read }) = self.next(&channel.completions)
            else {
                self.stream.cancel_all();
                let (path, seconds) = (self.stream.path().to_owned(), DEADLINE.as_secs());
                return result.and(Err(EngineError::SlowDisk { path, seconds }));
            };
            // What an earlier call gave up waiting for comes late and means nothing.
            let Some(i) = tag.checked_sub(first) else { continue };
            waiting -= 1;
            let done = read.map_err(EngineError::Read).and_then(|()| match &result {
                Ok(()) => each(i as usize, buf),
                Err(_) => Ok(()),
            });
            if done.is_err() && result.is_ok() {
                // The rest is taken back, or waited for.
                let taken_back = self.stream.cancel_all().len() as u64;
                waiting = waiting.saturating_sub(taken_back);
                result = done;
            }
        }
        result
    }

    /// The next completion; `None` when nothing was read for too long. One read may take as long as
    /// it needs while bytes come in.
    fn next(
        &self,
        completions: &Receiver<Completion<AlignedBuf>>,
    ) -> Option<Completion<AlignedBuf>> {
        let mut seen = self.stream.stats().read_bytes;
        loop {
            if let Ok(completion) = completions.recv_timeout(DEADLINE) {
                return Some(completion);
            }
            let now = self.stream.stats().read_bytes;
            if now == seen {
                return None;
            }
            seen = now;
        }
    }
}
