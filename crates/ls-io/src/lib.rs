//! A stream of prioritised reads of one file.
//!
//! Extents of a file are read into buffers of the caller, the most urgent first, several at once.
//! Requests that wait can be taken back or moved in the order; neighbours in the file become one
//! read. It knows nothing of what the bytes mean, and keeps none: it is no cache.
//!
//! ```
//! use std::sync::mpsc::channel;
//! use ls_io::{AlignedBuf, Priority, Request, Stream, StreamOptions};
//!
//! # let mut file = tempfile::NamedTempFile::new()?;
//! # std::io::Write::write_all(&mut file, &[7; 3 * 4096])?;
//! # let path = file.path();
//! let (sender, completions) = channel();
//! let stream = Stream::open(path, &StreamOptions::default(), move |completion| {
//!     sender.send(completion).ok();
//! })?;
//! let buf = AlignedBuf::new(8192)?;
//! stream.submit([Request { tag: 1, offset: 4096, priority: Priority(0), buf }]);
//!
//! let completion = completions.recv()?;
//! completion.result?;
//! assert_eq!(completion.buf[..], [7; 8192]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//! - A request that was accepted ends in exactly one way: handed to `on_complete`, taken back by
//!   [`Stream::cancel`] or [`Stream::cancel_all`], or dropped with the stream before its turn.
//! - A read in flight owns its buffers. They come back when the system has let go of them, also
//!   after an error.
//! - Interrupted reads are repeated and short ones continued; an error means that it was tried. A
//!   request fails for its own bytes only, never for those of a neighbour that it was joined with.
//! - Where O_DIRECT or io_uring do not work, something else does, with the same bytes, and a
//!   [`Notice`] says so once.
//! - In the steady state a batch takes one lock and at most one wake-up of the i/o thread.
//! - The file is asked not to change while it is read. If it is cut, requests behind its end fail;
//!   with [`BackendKind::Mmap`] that is not certain.

mod backend;
mod buf;
mod curve;
mod error;
mod files;
mod flight;
mod options;
mod plan;
mod probe;
mod queue;
mod request;
mod rng;
mod shared;
mod stats;
mod stream;
mod worker;

pub use backend::FaultPlan;
pub use buf::{ALIGN, AlignedBuf, ReadBuf};
pub use curve::Curve;
pub use error::{IoError, Notice, ReadCause, ReadError};
pub use options::{BackendKind, Direct, StreamOptions};
pub use probe::{Probe, ProbeOptions, ProbeRow, probe, probe_anew, probe_cached, probe_known};
pub use request::{Completion, Priority, Request};
pub use stable_deref_trait::StableDeref;
pub use stats::{Histogram, Stats};
pub use stream::Stream;
