//! Byte-pair merging: neighbours join, best first, until no pair may join.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No token, and no neighbour.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of the text that is one piece so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Its token, or [`NONE`].
    pub(super) id: u32,
    /// Byte offset in the text.
    pub(super) start: u32,
    /// Bytes; 0 once it has been merged into its left neighbour.
    pub(super) len: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end()
    }

    pub(super) fn end(&self) -> usize {
        self.start as usize + self.len as usize
    }
}

/// What two neighbours become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// Lower merges earlier; equal ones from left to right.
    pub(super) priority: u32,
    /// The token of both together.
    pub(super) id: u32,
}

/// Decides which neighbours may join.
pub(super) trait Rule {
    /// The merge of two neighbours in `text`, if there is one.
    fn merge(&self, text: &str, left: &Symbol, right: &Symbol) -> Option<Merge>;
}

/// A merge that waits for its turn. Field order is the order of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Bytes of both. Symbols only grow, so another sum means that one of them has changed.
    len: u32,
    id: u32,
}

/// The symbols of one word. Reused from word to word, so that steady work does not allocate.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the last word.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends the next `len` bytes of the word as a symbol.
    pub(super) fn push(&mut self, id: u32, len: u32) {
        let idx = self.symbols.len() as u32;
        let (start, prev) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = idx;
                (last.start + last.len, idx - 1)
            }
            None => (0, NONE),
        };
        self.symbols.push(Symbol { id, start, len, prev, next: NONE });
    }

    /// Merges until nothing may join: O(n log n) in the number of symbols.
    pub(super) fn run(&mut self, text: &str, rule: &impl Rule) {
        for left in 1..self.symbols.len() as u32 {
            self.consider(text, rule, left - 1);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            if let Some(right) = self.still_valid(candidate) {
                self.join(candidate, right);
                let left = self.symbols[candidate.left as usize];
                if left.prev != NONE {
                    self.consider(text, rule, left.prev);
                }
                self.consider(text, rule, candidate.left);
            }
        }
    }

    /// What is left, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    /// Queues the merge of `left` with its right neighbour.
    fn consider(&mut self, text: &str, rule: &impl Rule, left: u32) {
        let symbol = self.symbols[left as usize];
        if symbol.next == NONE {
            return;
        }
        let next = self.symbols[symbol.next as usize];
        if let Some(Merge { priority, id }) = rule.merge(text, &symbol, &next) {
            let len = symbol.len + next.len;
            self.queue.push(Reverse(Candidate { priority, left, len, id }));
        }
    }

    /// The right side of a candidate, unless either side has changed since it was queued.
    fn still_valid(&self, candidate: Candidate) -> Option<u32> {
        let left = self.symbols[candidate.left as usize];
        if left.len == 0 || left.next == NONE {
            return None;
        }
        let right = self.symbols[left.next as usize];
        (left.len + right.len == candidate.len).then_some(left.next)
    }

    fn join(&mut self, candidate: Candidate, right: u32) {
        let after = self.symbols[right as usize].next;
        self.symbols[right as usize].len = 0;
        let left = &mut self.symbols[candidate.left as usize];
        left.id = candidate.id;
        left.len = candidate.len;
        left.next = after;
        if after != NONE {
            self.symbols[after as usize].prev = candidate.left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins equal neighbours, longer results first.
    struct Doubling;

    impl Rule for Doubling {
        fn merge(&self, text: &str, left: &Symbol, right: &Symbol) -> Option<Merge> {
            let equal = text[left.range()] == text[right.range()];
            equal.then_some(Merge { priority: 100 - left.len, id: 2 * left.len })
        }
    }

    fn lengths(text: &str) -> Vec<u32> {
        let mut merger = Merger::default();
        for _ in text.bytes() {
            merger.push(1, 1);
        }
        merger.run(text, &Doubling);
        merger.symbols().map(|symbol| symbol.len).collect()
    }

    #[test]
    fn better_merges_go_first_and_equal_ones_from_the_left() {
        assert_eq!(lengths("aaaaaaa"), [4, 2, 1]);
        assert_eq!(lengths("abaab"), [1, 1, 2, 1]);
        assert_eq!(lengths("a"), [1]);
        assert_eq!(lengths(""), [] as [u32; 0]);
    }
}
