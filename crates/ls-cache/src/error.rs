//! What a cache refuses.

use std::io;

use crate::Key;

/// Errors of making or setting up a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A frame size that pages cannot be cut into.
    #[error("frames of {frame_bytes} bytes; expected a multiple of {multiple} above zero")]
    FrameBytes {
        /// The size that was asked for.
        frame_bytes: usize,
        /// What it has to be a multiple of.
        multiple: usize,
    },
    /// No keys, or more than can be numbered.
    #[error("{found} keys in all; expected 1 to {limit}")]
    Keys {
        /// Keys of all groups.
        found: u64,
        /// Most that one cache can have.
        limit: u64,
    },
    /// The budget has no room for a single frame.
    #[error("a budget of {budget_bytes} bytes is below one frame of {frame_bytes} bytes")]
    Budget {
        /// The budget that was asked for.
        budget_bytes: u64,
        /// Size of a frame.
        frame_bytes: usize,
    },
    /// The system refused the address space.
    #[error("cannot reserve {bytes} bytes of address space for the cache: {source}")]
    Reserve {
        /// Size of the slab.
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// A group that the layout does not have.
    #[error("group {group} is not one of the cache's {n_groups} groups")]
    Group {
        /// The group.
        group: u32,
        /// How many there are.
        n_groups: usize,
    },
    /// A hot order that names an index twice, or one that the group does not have.
    #[error("hot order of group {group}: index {index} is there twice or not below {n_keys}")]
    HotOrder {
        /// The group.
        group: u32,
        /// The index.
        index: u32,
        /// Keys of the group.
        n_keys: u32,
    },
    /// The policy's name is not known.
    #[error("unknown cache policy {found:?}; expected one of none, lru-plain, lru, lfu, hot")]
    Policy {
        /// The name.
        found: String,
    },
}

/// Why a key got no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Every frame of the budget is pinned or being filled.
    #[error("every frame is pinned or being filled")]
    NoFrame,
    /// The key is resident already.
    #[error("{key} is resident already")]
    Present {
        /// The key.
        key: Key,
    },
    /// Someone else is filling a frame for the key.
    #[error("{key} is being filled already")]
    Filling {
        /// The key.
        key: Key,
    },
    /// The layout has no such key.
    #[error("{key} is not in the cache's layout")]
    Unknown {
        /// The key.
        key: Key,
    },
}
