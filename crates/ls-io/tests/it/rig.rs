//! A file of known content and a stream over it.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ls_io::{BackendKind, Completion, IoError, Priority, Request, Stream, StreamOptions};

use crate::buf::{Counted, Live};

/// Longer than any test takes that does not hang.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The byte that lies at `offset`.
pub fn byte_at(offset: u64) -> u8 {
    let word = (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (word.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (offset % 8 * 8)) as u8
}

pub fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(byte_at).collect()
}

pub fn file(len: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&content(0, len)).expect("room for it");
    file
}

/// Backends that work here; that one does not is said.
pub fn backends() -> Vec<BackendKind> {
    let probe = file(4096);
    let mut backends = vec![BackendKind::Pread, BackendKind::Mmap];
    let options = StreamOptions { backend: BackendKind::Uring, ..Default::default() };
    match Stream::<Counted>::open(probe.path(), &options, |_| ()) {
        Ok(_) => backends.push(BackendKind::Uring),
        // Past the capture of output, which hides what tests that pass print.
        Err(e) => drop(writeln!(std::io::stderr(), "SKIPPED for one backend: {e}")),
    }
    backends
}

/// A stream, what it hands back, and a count of its buffers.
pub struct Rig {
    pub stream: Stream<Counted>,
    pub done: Receiver<Completion<Counted>>,
    pub live: Live,
}

impl Rig {
    pub fn new(path: &Path, options: &StreamOptions) -> Self {
        Self::try_new(path, options).expect("a stream")
    }

    pub fn try_new(path: &Path, options: &StreamOptions) -> Result<Self, IoError> {
        let (sender, done) = channel();
        let stream = Stream::open(path, options, move |c| drop(sender.send(c)))?;
        Ok(Self { stream, done, live: Live::default() })
    }

    /// A request for `len` bytes; its tag is its offset.
    pub fn request(&self, offset: u64, len: usize, priority: u64) -> Request<Counted> {
        let buf = self.live.buf(len, 0);
        Request { tag: offset, offset, priority: Priority(priority), buf }
    }

    /// The next request handed back.
    pub fn next(&self) -> Completion<Counted> {
        self.done.recv_timeout(LIMIT).expect("no hang")
    }

    /// Reads neighbours of `len` bytes each, up to `end`, and checks every byte.
    pub fn read_all(&self, end: u64, len: usize) {
        let offsets: Vec<_> = (0..end).step_by(len).collect();
        self.stream.submit(offsets.iter().map(|offset| self.request(*offset, len, 0)));
        for _ in &offsets {
            let c = self.next();
            c.result.expect("what was asked for");
            assert!(c.buf[..] == content(c.tag, len), "bytes at {}", c.tag);
        }
        assert!(self.stream.wait_idle(LIMIT));
        assert_eq!(self.live.count(), 0);
    }
}
