//! Keeps chunks of a model in a slab of frames under a byte budget.
//!
//! Frames are of one size and are kept for [`Key`]s: position `index` of a `group`, for instance
//! a chunk of a layer. Whoever needs a key's bytes holds its frame by a [`Lease`] or a [`Pin`];
//! whoever has found one missing asks for a [`Fill`], writes the bytes and publishes them. When no
//! frame is free, a [`Policy`] chooses which key has to go.
//!
//! It is not a reader: it knows neither what the bytes mean nor where they come from.
//!
//! ```
//! use ls_cache::{Cache, Key, Layout, PolicyKind, Used};
//!
//! // Two layers of three chunks; memory for four of these six.
//! let layout = Layout { frame_bytes: 4096, groups: vec![3, 3] };
//! let cache = Cache::new(layout, 4 * 4096, PolicyKind::Lru)?;
//! cache.set_transit(1);
//! for _token in 0..2 {
//!     for group in 0..2 {
//!         cache.visit(group);
//!         for index in 0..3 {
//!             let key = Key { group, index };
//!             let lease = match cache.get(key) {
//!                 Some(lease) => lease,
//!                 None => {
//!                     let mut fill = cache.reserve(key)?;
//!                     fill.fill(group as u8 + 1); // as if read from a file
//!                     cache.lease(fill.publish())
//!                 }
//!             };
//!             assert!(lease.iter().all(|byte| *byte == group as u8 + 1));
//!         }
//!         cache.used(group, Used::All);
//!     }
//! }
//! // All frames but the one for passing through have hit in the second round.
//! assert_eq!(cache.stats().hits, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//! - A lease or pin shows the bytes of its key and no other's, for as long as it lives.
//! - A key has at most one frame, and a frame at most one key.
//! - A pinned frame is not evicted, a frame that is being filled is seen by no one else.
//! - No more frames are occupied than the budget has room for, and no more have ever been touched
//!   without being given back. After the budget was lowered, only what is still held may exceed
//!   it, and nothing is reserved until it does not.
//! - While a device has the memory on [`Loan`], no page of it is given back.
//! - Getting, pinning and unpinning take no lock; the exceptions stand with [`Cache::unpin`].
//! - The steady state does not allocate.

mod bits;
mod cache;
mod error;
mod fill;
mod frames;
mod key;
mod lease;
mod ledger;
mod loan;
mod policy;
mod slab;
mod stats;
mod sync;
mod word;

pub use cache::Cache;
pub use error::{CacheError, ReserveError};
pub use fill::Fill;
pub use key::{Key, Layout};
pub use lease::{Lease, Pin};
pub use loan::Loan;
pub use policy::{Offer, Policy, PolicyKind, Used};
pub use stats::Stats;
