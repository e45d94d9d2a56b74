//! What frames are kept for.

use std::fmt;

use crate::CacheError;

/// Frame sizes are multiples of this: what direct reads ask for at most, short of large pages.
pub(crate) const FRAME_MULTIPLE: usize = 4096;
/// Keys are numbered by 32 bits, of which the last number means "no frame".
const MAX_KEYS: u64 = u32::MAX as u64;

/// Names what a frame holds: position `index` of `group`, for instance a chunk of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Which group; groups are visited in a cycle.
    pub group: u32,
    /// Which of the group's keys.
    pub index: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} of group {}", self.index, self.group)
    }
}

/// Size of a frame, and which keys there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of each frame; a multiple of 4096.
    pub frame_bytes: usize,
    /// Keys of each group.
    pub groups: Vec<u32>,
}

/// Numbers all keys one after the other, group by group.
#[derive(Debug)]
pub(crate) struct Space {
    /// Number of each group's first key, and at the end the number of keys.
    starts: Box<[u32]>,
}

impl Space {
    pub fn new(layout: &Layout) -> Result<Self, CacheError> {
        let found = layout.groups.iter().map(|n| u64::from(*n)).sum();
        if !(1..=MAX_KEYS).contains(&found) {
            return Err(CacheError::Keys { found, limit: MAX_KEYS });
        }
        let mut starts = vec![0];
        let mut end = 0;
        for n in &layout.groups {
            end += n;
            starts.push(end);
        }
        Ok(Self { starts: starts.into() })
    }

    pub fn n_groups(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn n_keys(&self) -> u32 {
        self.starts[self.n_groups()]
    }

    /// Number of the group's first key and the number after its last.
    pub fn group(&self, group: u32) -> Option<(u32, u32)> {
        let group = group as usize;
        Some((*self.starts.get(group)?, *self.starts.get(group + 1)?))
    }

    /// The key's number.
    pub fn slot(&self, key: Key) -> Option<u32> {
        let (start, end) = self.group(key.group)?;
        (key.index < end - start).then(|| start + key.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_without_gaps() {
        let space = Space::new(&Layout { frame_bytes: 4096, groups: vec![2, 0, 3] }).unwrap();
        let slot = |group, index| space.slot(Key { group, index });
        assert_eq!([slot(0, 0), slot(0, 1), slot(2, 0), slot(2, 2)], [0, 1, 2, 4].map(Some));
        assert_eq!([slot(0, 2), slot(1, 0), slot(2, 3), slot(3, 0)], [None; 4]);
        assert_eq!((space.n_keys(), space.n_groups()), (5, 3));
    }

    #[test]
    fn too_many_or_no_keys_are_refused() {
        for groups in [vec![], vec![0, 0], vec![u32::MAX, 1]] {
            let layout = Layout { frame_bytes: 4096, groups };
            assert!(matches!(Space::new(&layout), Err(CacheError::Keys { .. })));
        }
    }
}
