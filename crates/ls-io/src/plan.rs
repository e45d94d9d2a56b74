//! Which pending requests become one read.

/// A stretch of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub offset: u64,
    pub len: u64,
}

impl Extent {
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// What bounds a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of the whole read, gaps included.
    pub max_bytes: u64,
    /// A gap of fewer bytes is read through.
    pub gap_bytes: u64,
    /// Stretches of memory that one read may scatter to.
    pub max_parts: usize,
}

/// Requests that overlap the read and are passed over before the search ends.
const MAX_PASSED: usize = 16;

/// Extends `best` with its neighbours and names those that join it in `taken`.
///
/// `after` are the extents that begin at or after `best`, in the order of the file; `before` those
/// that begin before it, in reverse. What follows is taken first: equals are read in the order of
/// the file, so it is what comes next anyway. No two extents of a read overlap.
pub(crate) fn extend<K>(
    best: Extent,
    after: impl Iterator<Item = (Extent, K)>,
    before: impl Iterator<Item = (Extent, K)>,
    limits: Limits,
    taken: &mut Vec<K>,
) -> Extent {
    let mut whole = best;
    let mut n_parts = 1;
    let mut passed = 0;
    for (next, key) in after {
        let Some(gap) = next.offset.checked_sub(whole.end()) else {
            passed += 1;
            if passed > MAX_PASSED {
                break;
            }
            continue;
        };
        let len = whole.len.saturating_add(gap).saturating_add(next.len);
        let parts = 1 + usize::from(gap > 0);
        if !fits(gap, len, n_parts + parts, limits) {
            break;
        }
        whole.len = len;
        n_parts += parts;
        taken.push(key);
    }
    passed = 0;
    for (last, key) in before {
        let Some(gap) = whole.offset.checked_sub(last.end()) else {
            passed += 1;
            if passed > MAX_PASSED {
                break;
            }
            continue;
        };
        let len = whole.len.saturating_add(gap).saturating_add(last.len);
        let parts = 1 + usize::from(gap > 0);
        if !fits(gap, len, n_parts + parts, limits) {
            break;
        }
        whole = Extent { offset: last.offset, len };
        n_parts += parts;
        taken.push(key);
    }
    whole
}

fn fits(gap: u64, len: u64, n_parts: usize, limits: Limits) -> bool {
    (gap == 0 || gap < limits.gap_bytes) && len <= limits.max_bytes && n_parts <= limits.max_parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn e(offset: u64, len: u64) -> Extent {
        Extent { offset, len }
    }

    fn limits(max_bytes: u64, gap_bytes: u64) -> Limits {
        Limits { max_bytes, gap_bytes, max_parts: 8 }
    }

    /// Plans around `all[best]`; the joined extents in the order of the file.
    fn run(all: &[Extent], best: usize, limits: Limits) -> (Extent, Vec<Extent>) {
        let mut sorted: Vec<_> = (0..all.len()).filter(|i| *i != best).collect();
        sorted.sort_by_key(|i| (all[*i].offset, *i));
        let split = sorted.partition_point(|i| all[*i].offset < all[best].offset);
        let item = |i: &usize| (all[*i], *i);
        let mut taken = Vec::new();
        let (before, after) = sorted.split_at(split);
        let (after, before) = (after.iter().map(item), before.iter().rev().map(item));
        let whole = extend(all[best], after, before, limits, &mut taken);
        taken.push(best);
        let mut joined: Vec<_> = taken.into_iter().map(|i| all[i]).collect();
        joined.sort_by_key(|e| e.offset);
        (whole, joined)
    }

    #[test]
    fn neighbours_join_up_to_the_limit() {
        let all: Vec<_> = (0..10).map(|i| e(i * 10, 10)).collect();
        let (whole, joined) = run(&all, 3, limits(40, 0));
        assert_eq!((whole, joined.len()), (e(30, 40), 4));
        let (whole, joined) = run(&all, 8, limits(40, 0));
        assert_eq!((whole, joined.len()), (e(60, 40), 4), "what lies before fills the rest");
    }

    #[test]
    fn a_gap_is_read_through_only_if_shorter() {
        let all = [e(0, 10), e(14, 10), e(30, 10)];
        assert_eq!(run(&all, 0, limits(100, 5)).0, e(0, 24));
        assert_eq!(run(&all, 0, limits(100, 4)).0, e(0, 10));
        assert_eq!(run(&all, 2, limits(100, 7)).0, e(0, 40));
        assert_eq!(run(&all, 2, limits(39, 7)).0, e(14, 26), "gaps count");
    }

    #[test]
    fn overlaps_are_passed_over() {
        let all = [e(0, 10), e(0, 10), e(5, 10), e(10, 10)];
        let (whole, joined) = run(&all, 0, limits(100, 0));
        assert_eq!((whole, joined), (e(0, 20), vec![e(0, 10), e(10, 10)]));
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        let all: Vec<_> = (0..20).map(|i| e(i * 2, 1)).collect();
        let (_, joined) = run(&all, 0, limits(100, 10));
        assert_eq!(joined.len(), 4, "four extents, three gaps");
    }

    #[test]
    fn a_long_request_stays_alone() {
        assert_eq!(run(&[e(0, 50), e(50, 1)], 0, limits(10, 0)).0, e(0, 50));
        assert_eq!(run(&[e(u64::MAX - 5, 50), e(0, 1)], 0, limits(10, 0)).1.len(), 1);
    }

    proptest! {
        #[test]
        fn a_read_is_bounded_disjoint_and_tight(
            all in prop::collection::vec((0u64..200, 1u64..30).prop_map(|(o, l)| e(o, l)), 1..30),
            best in any::<prop::sample::Index>(),
            max_bytes in 1u64..100,
            gap_bytes in 0u64..20,
        ) {
            let best = best.index(all.len());
            let limits = limits(max_bytes, gap_bytes);
            let (whole, joined) = run(&all, best, limits);
            prop_assert!(whole.len <= max_bytes.max(all[best].len));
            prop_assert!(joined.len() <= 8);
            prop_assert_eq!(whole.offset, joined[0].offset);
            prop_assert_eq!(whole.end(), joined[joined.len() - 1].end());
            for pair in joined.windows(2) {
                prop_assert!(pair[1].offset >= pair[0].end());
                let gap = pair[1].offset - pair[0].end();
                prop_assert!(gap == 0 || gap < gap_bytes);
            }
        }
    }
}
