//! Which frame holds which key: the part that needs no lock.
//!
//! A table leads from keys to frames, and each frame has a [`Word`]. The table is a hint; the word
//! decides. What is marked "under the lock" is called by the ledger's holder only.

use crate::ReserveError;
use crate::key::{Key, Space};
use crate::slab::Slab;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::word::{DOOMED, PARKED, Word};

/// In the table: the key has no frame.
const NONE: u32 = u32::MAX;

/// Frames, their states, and the table that leads to them.
#[derive(Debug)]
pub(crate) struct Frames {
    pub space: Space,
    pub slab: Slab,
    table: Box<[AtomicU32]>,
    words: Box<[AtomicU64]>,
    pub released: Released,
}

/// What came of asking for an idle frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    /// It is free now, its key without a frame.
    Done,
    /// Someone holds it. The last one to let go will report it.
    Parked,
    /// It holds nothing, or is being filled.
    Gone,
}

impl Frames {
    pub fn new(space: Space, slab: Slab, n_frames: u32) -> Self {
        Self {
            table: (0..space.n_keys()).map(|_| AtomicU32::new(NONE)).collect(),
            words: (0..n_frames).map(|_| AtomicU64::new(Word::FREE.0)).collect(),
            released: Released::new(n_frames as usize),
            space,
            slab,
        }
    }

    pub fn n_frames(&self) -> u64 {
        self.words.len() as u64
    }

    pub fn word(&self, frame: u32) -> Word {
        Word(self.words[frame as usize].load(Ordering::Acquire))
    }

    /// Pins the frame that holds `slot`.
    #[inline]
    pub fn pin(&self, slot: u32) -> Option<u32> {
        let mut frame = self.table[slot as usize].load(Ordering::Relaxed);
        while frame != NONE {
            let word = &self.words[frame as usize];
            let mut now = Word(word.load(Ordering::Relaxed));
            while now.holds(slot) {
                let pinned = now.pinned().0;
                // Acquires what the filler wrote before it published.
                match word.compare_exchange_weak(
                    now.0,
                    pinned,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(frame),
                    Err(found) => now = Word(found),
                }
            }
            // Evicted or not yet filled; unless the key has moved to another frame meanwhile.
            let again = self.table[slot as usize].load(Ordering::Relaxed);
            if again == frame {
                return None;
            }
            frame = again;
        }
        None
    }

    /// Gives one pin back. Returns whether the ledger has to be asked what becomes of the frame.
    ///
    /// The caller owns a pin of `frame` and gives it up.
    #[inline]
    #[must_use]
    pub fn unpin(&self, frame: u32) -> bool {
        // Releases the reads of this pin's holder to whoever evicts.
        let before = self.update(frame, Ordering::Release, Word::unpinned);
        if before.pins() > 1 {
            return false;
        }
        if before.has(PARKED) {
            self.released.mark(frame);
        }
        before.has(DOOMED)
    }

    /// Makes a filled frame resident; `to` says what comes of the word beyond that. The caller owns
    /// the filling of `frame` and gives it up. Returns the word before.
    pub fn publish(&self, frame: u32, to: impl Fn(Word) -> Word) -> Word {
        self.update(frame, Ordering::Release, |word| to(word.published()))
    }

    /// Whether `slot` may be given a frame. Under the lock.
    pub fn check_absent(&self, slot: u32, key: Key) -> Result<(), ReserveError> {
        match self.frame_of(slot) {
            None => Ok(()),
            Some(frame) if self.word(frame).is_filling() => Err(ReserveError::Filling { key }),
            Some(_) => Err(ReserveError::Present { key }),
        }
    }

    /// The frame that holds `slot` or is filled for it. Under the lock.
    pub fn frame_of(&self, slot: u32) -> Option<u32> {
        let frame = self.table[slot as usize].load(Ordering::Relaxed);
        (frame != NONE).then_some(frame)
    }

    /// Gives a free frame to `slot`, exclusively. Under the lock.
    pub fn claim(&self, frame: u32, slot: u32, notes: u64) {
        debug_assert!(self.word(frame) == Word::FREE, "a frame is claimed while it is free");
        // Nobody changes the word of a free frame but the lock's holder.
        self.words[frame as usize].store(Word::filling(slot, notes).0, Ordering::Relaxed);
        self.table[slot as usize].store(frame, Ordering::Relaxed);
    }

    /// Takes back a frame whose filling ends without being published. Under the lock, by the
    /// owner of the filling.
    pub fn abandon(&self, frame: u32) {
        let slot = self.word(frame).slot();
        self.words[frame as usize].store(Word::FREE.0, Ordering::Relaxed);
        self.table[slot as usize].store(NONE, Ordering::Relaxed);
    }

    /// Frees the frame if no one holds it; otherwise sees to it that the last unpin reports it.
    /// Under the lock.
    pub fn evict(&self, frame: u32) -> Evict {
        let mut now = self.word(frame);
        loop {
            let (next, outcome) = match now {
                word if !word.is_resident() => return Evict::Gone,
                word if word.is_idle() => (Word::FREE, Evict::Done),
                word => (word.with(PARKED), Evict::Parked),
            };
            // Acquires the reads of all who held it, so that the next filler writes after them.
            match self.exchange(frame, now, next, Ordering::Acquire) {
                Ok(()) => {
                    if outcome == Evict::Done {
                        self.table[now.slot() as usize].store(NONE, Ordering::Relaxed);
                    }
                    return outcome;
                }
                Err(found) => now = found,
            }
        }
    }

    /// Sees to it that the end of the frame's filling and its last unpin ask the ledger. Under the
    /// lock. Returns the word before.
    pub fn doom(&self, frame: u32) -> Word {
        self.update(frame, Ordering::Relaxed, |word| {
            if word == Word::FREE { word } else { word.with(DOOMED) }
        })
    }

    /// Undoes [`Frames::doom`]. Under the lock.
    pub fn spare(&self, frame: u32) {
        self.update(frame, Ordering::Relaxed, |word| word.without(DOOMED));
    }

    fn update(&self, frame: u32, order: Ordering, to: impl Fn(Word) -> Word) -> Word {
        let mut now = Word(self.words[frame as usize].load(Ordering::Relaxed));
        loop {
            match self.exchange(frame, now, to(now), order) {
                Ok(()) => return now,
                Err(found) => now = found,
            }
        }
    }

    fn exchange(&self, frame: u32, from: Word, to: Word, order: Ordering) -> Result<(), Word> {
        let word = &self.words[frame as usize];
        let result = word.compare_exchange_weak(from.0, to.0, order, Ordering::Relaxed);
        result.map(|_| ()).map_err(Word)
    }
}

/// Frames that were let go since the ledger last looked: a bit for each, and a bit for each word
/// in which there may be one. Marking is lock-free, and marking twice is as good as once.
#[derive(Debug)]
pub(crate) struct Released {
    words: Box<[AtomicU64]>,
    tops: Box<[AtomicU64]>,
}

impl Released {
    fn new(n_frames: usize) -> Self {
        let zeros = |n| (0..n).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let words = n_frames.div_ceil(64);
        Self { words: zeros(words), tops: zeros(words.div_ceil(64)) }
    }

    /// Reports `frame`.
    pub fn mark(&self, frame: u32) {
        let word = frame / 64;
        self.words[word as usize].fetch_or(1 << (frame % 64), Ordering::Release);
        // After the word: whoever sees this bit finds that one.
        self.tops[word as usize / 64].fetch_or(1 << (word % 64), Ordering::Release);
    }

    /// Calls `each` for every reported frame and forgets it. Under the lock.
    pub fn drain(&self, mut each: impl FnMut(u32)) {
        for (t, top) in self.tops.iter().enumerate() {
            if top.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = top.swap(0, Ordering::Acquire);
            while words != 0 {
                let w = t * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.words[w].swap(0, Ordering::Acquire);
                while bits != 0 {
                    each((w * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Layout;

    fn frames() -> Frames {
        let layout = Layout { frame_bytes: 4096, groups: vec![3] };
        Frames::new(Space::new(&layout).unwrap(), Slab::new(2 * 4096, 4096).unwrap(), 2)
    }

    #[test]
    fn a_frame_is_seen_from_publishing_to_eviction() {
        let frames = frames();
        frames.claim(1, 2, PARKED);
        assert_eq!((frames.pin(2), frames.frame_of(2)), (None, Some(1)));
        assert_eq!(frames.evict(1), Evict::Gone);
        frames.publish(1, |word| word);
        assert_eq!((frames.pin(2), frames.pin(0)), (Some(1), None));
        assert_eq!(frames.evict(1), Evict::Parked);
        assert!(!frames.unpin(1));
        assert_eq!((frames.evict(1), frames.evict(1)), (Evict::Done, Evict::Gone));
        assert_eq!((frames.pin(2), frames.frame_of(2)), (None, None));
    }

    #[test]
    fn the_last_unpin_reports_what_was_parked_or_doomed() {
        let frames = frames();
        let drained = || {
            let mut all = Vec::new();
            frames.released.drain(|frame| all.push(frame));
            all
        };
        frames.claim(0, 0, PARKED);
        frames.publish(0, Word::pinned);
        assert_eq!(frames.pin(0), Some(0));
        frames.doom(0);
        assert!(!frames.unpin(0));
        assert_eq!(drained(), []);
        assert!(frames.unpin(0));
        assert_eq!((drained(), drained()), (vec![0], vec![]));
        frames.spare(0);
        assert_eq!(frames.pin(0), Some(0));
        assert!(!frames.unpin(0));
        assert_eq!(drained(), []);
    }

    #[test]
    fn reports_of_many_frames_are_all_found() {
        let released = Released::new(10_000);
        let marked = [0, 1, 63, 64, 4095, 4096, 9_999];
        marked.iter().chain(&marked).for_each(|frame| released.mark(*frame));
        let mut found = Vec::new();
        released.drain(|frame| found.push(frame));
        assert_eq!(found, marked);
    }
}
