//! Least recently used, without knowledge of the cycle.

use super::{Offer, Policy, Used};
use crate::Key;
use crate::bits::ones;

/// Not in the list.
const OUT: u32 = u32::MAX;

/// All candidates in a ring, the least recently used first.
#[derive(Debug)]
pub(crate) struct PlainLru {
    starts: Vec<u32>,
    keys: Vec<Key>,
    /// Who comes before and after each key; the last entry is the ring's head.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl PlainLru {
    pub fn new(groups: &[u32]) -> Self {
        let (mut starts, mut keys) = (Vec::new(), Vec::new());
        for (group, n) in groups.iter().enumerate() {
            starts.push(keys.len() as u32);
            keys.extend((0..*n).map(|index| Key { group: group as u32, index }));
        }
        let head = keys.len() as u32;
        let mut links = vec![Link { before: OUT, after: OUT }; keys.len()];
        links.push(Link { before: head, after: head });
        Self { starts, keys, links }
    }

    fn head(&self) -> u32 {
        self.keys.len() as u32
    }

    fn link(&mut self, i: u32) -> &mut Link {
        &mut self.links[i as usize]
    }

    fn slot(&self, key: Key) -> Option<u32> {
        let slot = self.starts.get(key.group as usize)?.checked_add(key.index)?;
        (self.keys.get(slot as usize) == Some(&key)).then_some(slot)
    }

    /// Whether it was in the list.
    fn take_out(&mut self, i: u32) -> bool {
        let Link { before, after } = *self.link(i);
        if after == OUT {
            return false;
        }
        self.link(before).after = after;
        self.link(after).before = before;
        *self.link(i) = Link { before: OUT, after: OUT };
        true
    }

    fn put_last(&mut self, i: u32) {
        let head = self.head();
        let before = self.link(head).before;
        *self.link(i) = Link { before, after: head };
        self.link(before).after = i;
        self.link(head).before = i;
    }
}

impl Policy for PlainLru {
    fn resize(&mut self, _frames: u64) {}

    fn admit(&mut self, _key: Key) {}

    fn offer(&mut self, key: Key, _offer: Offer) {
        if let Some(i) = self.slot(key) {
            self.take_out(i);
            self.put_last(i);
        }
    }

    fn victim(&mut self) -> Option<Key> {
        let head = self.head();
        let first = self.link(head).after;
        let key = *self.keys.get(first as usize)?;
        self.take_out(first);
        Some(key)
    }

    fn forget(&mut self, key: Key) {
        if let Some(i) = self.slot(key) {
            self.take_out(i);
        }
    }

    fn visit(&mut self, _group: u32) {}

    fn used(&mut self, group: u32, used: Used<'_>) {
        let Some(&start) = self.starts.get(group as usize) else { return };
        let n = self.starts.get(group as usize + 1).copied().unwrap_or(self.head()) - start;
        let mut renew = |i| {
            if self.take_out(i) {
                self.put_last(i);
            }
        };
        match used {
            Used::All => (start..start + n).for_each(&mut renew),
            Used::Mask(mask) => ones(mask, n).for_each(|i| renew(start + i)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = PlainLru::new(&[2, 3]);
        let key = |group, index| Key { group, index };
        let keys = [key(1, 2), key(0, 0), key(1, 0), key(0, 1)];
        keys.iter().for_each(|key| lru.offer(*key, Offer::Released));
        lru.offer(key(1, 0), Offer::Released);
        lru.used(1, Used::Mask(&[0b110]));
        lru.forget(key(0, 1));
        lru.offer(key(9, 9), Offer::Released);
        let order: Vec<Key> = std::iter::from_fn(|| lru.victim()).collect();
        assert_eq!(order, [key(0, 0), key(1, 0), key(1, 2)]);
    }
}
