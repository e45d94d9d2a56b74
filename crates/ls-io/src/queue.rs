//! Requests that wait for their turn.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use hashbrown::HashMap;

use crate::plan::{Extent, Limits, extend};
use crate::{Priority, ReadBuf, Request};

/// A request and how it may be read.
#[derive(Debug)]
pub(crate) struct Pending<B> {
    pub request: Request<B>,
    /// May bypass the page cache.
    pub aligned: bool,
    /// Must be read alone: it was part of a read that failed, or would keep its neighbours from
    /// bypassing the page cache.
    alone: bool,
    /// Tells apart the requests that had one place in turn.
    seq: u64,
}

impl<B: ReadBuf> Pending<B> {
    /// A request of a stream that bypasses the page cache where it can, or does not.
    pub fn new(request: Request<B>, direct: bool) -> Self {
        let bytes: &[u8] = &request.buf;
        let aligned = crate::buf::is_aligned(request.offset, bytes.as_ptr(), bytes.len());
        Self { request, aligned, alone: direct && !aligned, seq: 0 }
    }

    /// The same, to be read alone.
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    pub fn extent(&self) -> Extent {
        Extent { offset: self.request.offset, len: self.request.buf.len() as u64 }
    }
}

/// One entry of the order in which requests are read: it is void if the request at `idx` has
/// another `seq` or priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: Priority,
    offset: u64,
    seq: u64,
    idx: u32,
}

/// Pending requests by priority, by offset and by tag.
#[derive(Debug)]
pub(crate) struct Queue<B> {
    slots: Vec<Option<Pending<B>>>,
    free: Vec<u32>,
    /// Void entries are skipped when they surface and swept out when they are the most.
    turns: BinaryHeap<Reverse<Turn>>,
    /// Requests that may be joined, as (offset, slot).
    by_offset: BTreeSet<(u64, u32)>,
    by_tag: HashMap<u64, u32>,
    next_seq: u64,
    n_pending: usize,
    taken: Vec<u32>,
}

impl<B: ReadBuf> Queue<B> {
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            turns: BinaryHeap::new(),
            by_offset: BTreeSet::new(),
            by_tag: HashMap::new(),
            next_seq: 0,
            n_pending: 0,
            taken: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.n_pending
    }

    pub fn insert(&mut self, mut pending: Pending<B>) {
        pending.seq = self.next_seq;
        self.next_seq += 1;
        let idx = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2³² requests fit in memory")
        });
        let Request { tag, offset, priority, .. } = pending.request;
        self.turns.push(Reverse(Turn { priority, offset, seq: pending.seq, idx }));
        if !pending.alone {
            self.by_offset.insert((offset, idx));
        }
        self.by_tag.insert(tag, idx);
        self.slots[idx as usize] = Some(pending);
        self.n_pending += 1;
        self.sweep();
    }

    /// Moves the request called `tag` to another place in the order.
    pub fn reprioritise(&mut self, tag: u64, priority: Priority) -> bool {
        let Some(idx) = self.by_tag.get(&tag).copied() else { return false };
        let Some(pending) = &mut self.slots[idx as usize] else { return false };
        if pending.request.priority != priority {
            pending.request.priority = priority;
            let turn = Turn { priority, offset: pending.request.offset, seq: pending.seq, idx };
            self.turns.push(Reverse(turn));
            self.sweep();
        }
        true
    }

    pub fn cancel(&mut self, tag: u64) -> Option<Request<B>> {
        let idx = self.by_tag.get(&tag).copied()?;
        let pending = self.remove(idx)?;
        self.sweep();
        Some(pending.request)
    }

    /// Takes all requests out.
    pub fn drain(&mut self) -> Vec<Request<B>> {
        let all = self.slots.drain(..).flatten().map(|pending| pending.request).collect();
        self.free.clear();
        self.turns.clear();
        self.by_offset.clear();
        self.by_tag.clear();
        self.n_pending = 0;
        all
    }

    /// Moves the requests of the next read to `members`, in the order of the file, and says what
    /// stretch it covers; `None` when no request is pending.
    pub fn take(&mut self, limits: Limits, members: &mut Vec<Pending<B>>) -> Option<Extent> {
        let best_idx = self.pop_best()?;
        let best = self.slots[best_idx as usize].as_ref()?;
        let (extent, alone) = (best.extent(), best.alone);
        let best = self.remove(best_idx)?;
        members.push(best);
        if alone {
            return Some(extent);
        }
        let mut taken = std::mem::take(&mut self.taken);
        let slots = &self.slots;
        let item = |(_, idx): &(u64, u32)| {
            slots[*idx as usize].as_ref().map(|pending| (pending.extent(), *idx))
        };
        let after = self.by_offset.range((extent.offset, 0)..).filter_map(item);
        let before = self.by_offset.range(..(extent.offset, 0)).rev().filter_map(item);
        let whole = extend(extent, after, before, limits, &mut taken);
        for idx in taken.drain(..) {
            members.extend(self.remove(idx));
        }
        self.taken = taken;
        members.sort_unstable_by_key(|pending| pending.request.offset);
        Some(whole)
    }

    /// The place of the request whose turn it is.
    fn pop_best(&mut self) -> Option<u32> {
        loop {
            let Reverse(turn) = self.turns.pop()?;
            if is_current(&self.slots, &turn) {
                return Some(turn.idx);
            }
        }
    }

    fn remove(&mut self, idx: u32) -> Option<Pending<B>> {
        let pending = self.slots[idx as usize].take()?;
        let Request { tag, offset, .. } = pending.request;
        if !pending.alone {
            self.by_offset.remove(&(offset, idx));
        }
        // A later request may have taken over the tag.
        if let hashbrown::hash_map::Entry::Occupied(entry) = self.by_tag.entry(tag)
            && *entry.get() == idx
        {
            entry.remove();
        }
        self.free.push(idx);
        self.n_pending -= 1;
        Some(pending)
    }

    /// Drops void turns when they are the most, so that they cannot pile up.
    fn sweep(&mut self) {
        if self.turns.len() > 64 + 4 * self.n_pending {
            let slots = &self.slots;
            self.turns.retain(|Reverse(turn)| is_current(slots, turn));
        }
    }
}

fn is_current<B>(slots: &[Option<Pending<B>>], turn: &Turn) -> bool {
    let pending = slots.get(turn.idx as usize).and_then(Option::as_ref);
    pending.is_some_and(|p| p.seq == turn.seq && p.request.priority == turn.priority)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { max_bytes: 16, gap_bytes: 0, max_parts: 8 };

    fn pending(tag: u64, offset: u64, len: usize, priority: u64) -> Pending<Box<[u8]>> {
        let buf = vec![0; len].into_boxed_slice();
        Pending::new(Request { tag, offset, priority: Priority(priority), buf }, false)
    }

    /// Tags of the reads that are left, in turn.
    fn rest(queue: &mut Queue<Box<[u8]>>) -> Vec<Vec<u64>> {
        let mut members = Vec::new();
        std::iter::from_fn(|| {
            queue.take(LIMITS, &mut members)?;
            Some(members.drain(..).map(|member| member.request.tag).collect())
        })
        .collect()
    }

    #[test]
    fn equals_are_read_in_the_order_of_the_file() {
        let mut queue = Queue::new();
        for (tag, offset) in [(0, 500), (1, 100), (2, 300)] {
            queue.insert(pending(tag, offset, 8, 5));
        }
        queue.insert(pending(3, 900, 8, 4));
        assert_eq!(rest(&mut queue), [[3], [1], [2], [0]]);
    }

    #[test]
    fn neighbours_come_along_whatever_their_priority() {
        let mut queue = Queue::new();
        for (tag, offset, priority) in [(0, 0, 9), (1, 4, 1), (2, 8, 3), (3, 12, 9), (4, 100, 2)] {
            queue.insert(pending(tag, offset, 4, priority));
        }
        assert_eq!(rest(&mut queue), [vec![0, 1, 2, 3], vec![4]]);
    }

    #[test]
    fn what_is_to_be_read_alone_is() {
        let mut queue = Queue::new();
        queue.insert(pending(0, 0, 4, 0));
        queue.insert(pending(1, 4, 4, 0).alone());
        queue.insert(pending(2, 8, 4, 0));
        assert_eq!(rest(&mut queue), [[0], [1], [2]]);
    }

    #[test]
    fn the_latest_answers_to_a_tag() {
        let mut queue = Queue::new();
        queue.insert(pending(7, 0, 4, 0));
        queue.insert(pending(7, 100, 4, 0));
        assert_eq!(queue.cancel(7).unwrap().offset, 100);
        assert!(queue.cancel(7).is_none());
        assert_eq!(rest(&mut queue), [[7]], "but none is lost");
    }

    #[test]
    fn moved_requests_leave_no_heap_of_turns() {
        let mut queue = Queue::new();
        queue.insert(pending(0, 0, 4, 0));
        for priority in 0..10_000 {
            assert!(queue.reprioritise(0, Priority(priority)));
        }
        assert!(queue.turns.len() <= 128, "{} turns", queue.turns.len());
        for i in 0..10_000 {
            queue.insert(pending(i, 4 * i, 4, i));
            queue.insert(pending(i, 4 * i + 4, 4, u64::MAX));
            queue.take(LIMITS, &mut Vec::new());
        }
        assert!(queue.turns.len() <= 256, "{} turns", queue.turns.len());
    }

    proptest! {
        #[test]
        fn the_best_is_always_in_the_next_read(
            steps in prop::collection::vec((0u8..8, 0u64..12, 0u64..40, 0u64..6), 1..80),
        ) {
            let mut queue = Queue::new();
            // Tag to (offset, priority).
            let mut model = std::collections::BTreeMap::new();
            for (what, tag, offset, priority) in steps {
                match what {
                    0..4 if !model.contains_key(&tag) => {
                        queue.insert(pending(tag, offset, 3, priority));
                        model.insert(tag, (offset, priority));
                    }
                    4 => {
                        let known = model.get_mut(&tag).map(|entry| entry.1 = priority).is_some();
                        prop_assert_eq!(queue.reprioritise(tag, Priority(priority)), known);
                    }
                    5 => {
                        let removed = model.remove(&tag).map(|(offset, _)| offset);
                        prop_assert_eq!(queue.cancel(tag).map(|request| request.offset), removed);
                    }
                    6 => {
                        let mut members = Vec::new();
                        let extent = queue.take(LIMITS, &mut members);
                        prop_assert_eq!(extent.is_some(), !model.is_empty());
                        let best = model.values().map(|(offset, prio)| (*prio, *offset)).min();
                        let mut taken = Vec::new();
                        for member in members {
                            let (offset, priority) = model.remove(&member.request.tag).unwrap();
                            prop_assert_eq!(member.request.offset, offset);
                            taken.push((priority, offset));
                        }
                        prop_assert_eq!(taken.iter().copied().min(), best);
                        prop_assert!(taken.is_sorted_by_key(|(_, offset)| *offset));
                    }
                    _ => {}
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let mut left: Vec<_> = rest(&mut queue).concat();
            left.sort_unstable();
            prop_assert_eq!(left, model.into_keys().collect::<Vec<_>>());
        }
    }
}
