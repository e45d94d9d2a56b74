//! Who has to go when a frame is needed.

mod buckets;
mod cycle;
mod plain;
mod rank;

use std::fmt;
use std::str::FromStr;

use crate::{CacheError, Key, Layout};
use cycle::Cycle;
use plain::PlainLru;
use rank::{Frequency, Hot, Recency};

/// Which keys of a group a visit used.
#[derive(Clone, Copy, Debug)]
pub enum Used<'a> {
    /// All of them.
    All,
    /// Key `i` if bit `i % 64` of word `i / 64` is set; missing words count as zero.
    Mask(&'a [u64]),
}

/// Why a frame becomes a candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Its last holder let go.
    Released,
    /// It was filled ahead of a visit and no one has held it yet.
    Ahead,
}

/// Chooses victims.
///
/// A policy knows nothing of pins. The cache offers it each resident frame that may be idle, and
/// [`Policy::victim`] takes one of these out again. If that one turns out to be pinned, the cache
/// asks for the next and offers the pinned one again when it is released: so each pin costs at
/// most one vain look, however many frames are pinned. All calls come from inside of the cache's
/// lock; none may call the cache.
///
/// A policy that errs makes the cache slow, never wrong: what it names is checked.
pub trait Policy: fmt::Debug + Send {
    /// Whether a frame stays when its last holder lets go. If not, it is free again at once.
    fn retains(&self) -> bool {
        true
    }

    /// From now on at most `frames` frames should be kept over a whole cycle.
    fn resize(&mut self, frames: u64);

    /// `key` has a frame, which is being filled. It is not a candidate yet.
    fn admit(&mut self, key: Key);

    /// `key` is a candidate from now on. It may be one already.
    fn offer(&mut self, key: Key, offer: Offer);

    /// Takes out the candidate that should go first.
    fn victim(&mut self) -> Option<Key>;

    /// `key` has no frame any more. It need not have been a candidate.
    fn forget(&mut self, key: Key);

    /// Computing enters `group`.
    fn visit(&mut self, group: u32);

    /// The visit of `group` has used these keys.
    fn used(&mut self, group: u32, used: Used<'_>);

    /// A new sequence begins.
    fn new_context(&mut self) {}

    /// The group's keys from hottest to coldest; those not named come after, as they lie. Each is
    /// named at most once and there.
    fn set_hot(&mut self, group: u32, order: &[u32]) {
        let _ = (group, order);
    }
}

/// The policies that come with the crate.
///
/// All but `LruPlain` know that groups are visited in a cycle, and share the frames out over the
/// groups in proportion to their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Nothing is kept: a frame is free again when its last holder lets go.
    None,
    /// Least recently used of all keys. In a cycle longer than the cache it never hits: it is here
    /// to be measured against.
    LruPlain,
    /// Within a group, first the keys that were not used for the most visits.
    Lru,
    /// Within a group, first the keys that were used the least often since the sequence began.
    Lfu,
    /// Within a group, first the coldest of a fixed order.
    Hot,
}

impl PolicyKind {
    /// All kinds, the simplest first.
    pub const ALL: [Self; 5] = [Self::None, Self::LruPlain, Self::Lru, Self::Lfu, Self::Hot];

    /// The name that [`FromStr`] knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::LruPlain => "lru-plain",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Hot => "hot",
        }
    }

    /// Makes the policy for the keys of `layout`.
    pub fn build(self, layout: &Layout) -> Box<dyn Policy> {
        let groups = &layout.groups;
        match self {
            Self::None => Box::new(Cycle::<Hot>::new(groups, false)),
            Self::LruPlain => Box::new(PlainLru::new(groups)),
            Self::Lru => Box::new(Cycle::<Recency>::new(groups, true)),
            Self::Lfu => Box::new(Cycle::<Frequency>::new(groups, true)),
            Self::Hot => Box::new(Cycle::<Hot>::new(groups, true)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = CacheError;

    fn from_str(name: &str) -> Result<Self, CacheError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| CacheError::Policy { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_kinds() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
        }
        let error = "mru".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains("mru") && error.contains("lru-plain"), "{error}");
    }
}
