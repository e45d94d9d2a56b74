//! What a chunk in memory is worth: how probably it will be used.

use crate::choose::sane;
use crate::{Chunk, Keep, Layout};

/// Steps of a level for each doubling of a score.
const STEPS: f32 = 24.0;
/// Level of a score that is just chosen.
const MIDDLE: f32 = 128.0;
/// The long history moves by one part in two to this power.
const LONG_SHIFT: u32 = 5;

/// What is known of the past and the near future of every chunk, and its value from 0 to 255.
///
/// Takes three bytes for each chunk.
///
/// For [`Keep::Priority`] scores are turned to levels, which are logarithmic and relative to the bound
/// between chosen and not chosen, so that a near miss counts as such. Two averages of them are
/// kept, one over some 2 visits and one over 32, since activity has a part that lasts for a few
/// tokens and one that stays. Until the visit that they predict is over, scores of a coming one
/// count as well.
#[derive(Debug)]
pub struct Retention {
    keep: Keep,
    starts: Vec<u32>,
    /// Long average of levels in 1/256; number of uses in 1/256; visit of the last use; place in a
    /// fixed order.
    long: Vec<u16>,
    /// Short average of levels.
    short: Vec<u8>,
    /// Visits of each layer.
    visits: Vec<u16>,
    /// Of the last visit's levels.
    recent_weight: u16,
    /// Which layer's coming visit is predicted, with levels.
    coming: Vec<Coming>,
    /// The score that a level stands for, relative to the bound.
    scores: Box<[f32; 256]>,
}

#[derive(Debug, Default)]
struct Coming {
    layer: Option<u32>,
    levels: Vec<u8>,
}

/// Layers whose coming visits can be predicted at a time.
const N_COMING: usize = 4;

impl Retention {
    /// Nothing is known of any chunk.
    #[must_use]
    pub fn new(keep: Keep, layout: &Layout) -> Self {
        let mut starts = vec![0];
        for layer in &layout.layers {
            starts.push(starts[starts.len() - 1] + layer.n_chunks);
        }
        let n = starts[starts.len() - 1] as usize;
        let longest = layout.layers.iter().map(|layer| layer.n_chunks as usize).max().unwrap_or(0);
        let coming = || Coming { layer: None, levels: Vec::with_capacity(longest) };
        let n_coming = if keep == Keep::Priority { N_COMING } else { 0 };
        let mut retention = Self {
            keep,
            starts,
            long: vec![0; n],
            short: vec![0; if keep == Keep::Priority { n } else { 0 }],
            visits: vec![0; layout.layers.len()],
            recent_weight: 144,
            coming: (0..n_coming).map(|_| coming()).collect(),
            scores: Box::new(std::array::from_fn(|level| {
                if level == 0 { 0.0 } else { libm::exp2f((level as f32 - MIDDLE) / STEPS) }
            })),
        };
        if keep == Keep::Hot {
            for layer in 0..layout.layers.len() as u32 {
                retention.set_hot(layer, &[]);
            }
        }
        retention
    }

    /// How much the short average counts, of 256.
    pub fn set_recent_weight(&mut self, weight: u8) {
        self.recent_weight = weight.into();
    }

    fn slot(&self, chunk: Chunk) -> usize {
        (self.starts[chunk.layer as usize] + chunk.index) as usize
    }

    fn range(&self, layer: u32) -> std::ops::Range<usize> {
        self.starts[layer as usize] as usize..self.starts[layer as usize + 1] as usize
    }

    /// The order of a layer for [`Keep::Hot`], the hottest first. Those that are not named come
    /// after, as they lie; names that do not exist, or come again, are ignored.
    pub fn set_hot(&mut self, layer: u32, order: &[u16]) {
        if self.keep != Keep::Hot {
            return;
        }
        let range = self.range(layer);
        let n = range.len() as u32;
        let places = &mut self.long[range];
        places.fill(u16::MAX);
        let mut place = 0;
        // Less is colder, so that it goes first.
        let rank = |place: u32| (n - 1 - place) as u16;
        let mut named = vec![false; n as usize];
        for i in order.iter().map(|i| usize::from(*i)).filter(|i| *i < n as usize) {
            if !std::mem::replace(&mut named[i], true) {
                places[i] = rank(place);
                place += 1;
            }
        }
        for (to, _) in places.iter_mut().zip(&named).filter(|(_, named)| !**named) {
            *to = rank(place);
            place += 1;
        }
    }

    /// A coming visit of the layer is predicted to need chunks by these scores, of which those
    /// above `bound` will be used.
    pub fn scored(&mut self, layer: u32, scores: impl Iterator<Item = f32>, bound: f32) {
        let n = self.coming.len();
        let same = |coming: &Coming| coming.layer == Some(layer);
        let free = |coming: &Coming| coming.layer.is_none();
        let found = self.coming.iter().position(same);
        let found = found.or_else(|| self.coming.iter().position(free));
        // With more layers ahead than that, another one's prediction is forgotten.
        let Some(coming) = self.coming.get_mut(found.unwrap_or(layer as usize % n.max(1))) else {
            return;
        };
        coming.layer = Some(layer);
        coming.levels.clear();
        coming.levels.extend(scores.map(|score| level(score, bound)));
    }

    /// A visit of the layer is over. `used` says which chunks it used; `scores` and `bound`, if
    /// there were any, how they ranked.
    pub fn used(
        &mut self,
        layer: u32,
        used: impl Fn(usize) -> bool,
        scores: Option<(&[f32], f32)>,
    ) {
        let range = self.range(layer);
        let visit = self.visits[layer as usize].wrapping_add(1);
        self.visits[layer as usize] = visit;
        for coming in self.coming.iter_mut().filter(|coming| coming.layer == Some(layer)) {
            coming.layer = None;
        }
        let shift = self.shift(visit);
        let long = self.long[range.clone()].iter_mut().enumerate();
        match self.keep {
            Keep::Hot => {}
            Keep::Lru => long.for_each(|(i, last)| {
                // Ages beyond 2^15 visits are not told apart, and never wrap.
                if used(i) || visit.wrapping_sub(*last) > 1 << 15 {
                    *last = if used(i) { visit } else { visit.wrapping_sub(1 << 15) };
                }
            }),
            Keep::Lfu => long.for_each(|(i, count)| {
                *count -= *count >> 8;
                *count = count.saturating_add(256 * u16::from(used(i)));
            }),
            Keep::Priority => {
                let of = |i: usize| match scores {
                    Some((scores, bound)) => level(sane(scores[i]), bound),
                    None => 255 * u8::from(used(i)),
                };
                for ((i, long), short) in long.zip(&mut self.short[range]) {
                    let level = of(i);
                    (*long, *short) = (renewed(*long, level, shift), mean(*short, level));
                }
            }
        }
    }

    /// By how much each chunk's score exceeds, on a long average, that of the last one that `room` frames of the
    /// layer would hold if they held the best; in units of the bound, to `gains`. Nothing for the others, and
    /// nothing unless scores are kept ([`Keep::Priority`]).
    pub fn lasting(&self, layer: u32, room: usize, gains: &mut Vec<f32>) {
        let range = self.range(layer);
        gains.clear();
        if self.keep != Keep::Priority || self.visits[layer as usize] == 0 {
            gains.resize(range.len(), 0.0);
            return;
        }
        let levels = self.long[range].iter().map(|long| usize::from(*long >> 8));
        let mut counts = [0usize; 256];
        levels.clone().for_each(|level| counts[level] += 1);
        let (mut least, mut n) = (256, 0);
        while least > 0 && n + counts[least - 1] <= room {
            least -= 1;
            n += counts[least];
        }
        let least = if least == 0 { 0.0 } else { self.scores[least - 1] };
        gains.extend(levels.map(|level| (self.scores[level] - least).max(0.0)));
    }

    /// What it is worth to keep a chunk; the least goes first.
    #[must_use]
    pub fn value(&self, chunk: Chunk) -> u8 {
        self.value_of(self.slot(chunk), chunk, self.coming(chunk.layer))
    }

    /// Levels of a coming visit of the layer.
    fn coming(&self, layer: u32) -> Option<&[u8]> {
        let found = self.coming.iter().find(|coming| coming.layer == Some(layer));
        found.map(|coming| &coming.levels[..])
    }

    fn value_of(&self, slot: usize, chunk: Chunk, coming: Option<&[u8]>) -> u8 {
        let mut long = self.long[slot];
        let visit = self.visits[chunk.layer as usize];
        match self.keep {
            Keep::Hot => {
                let n = self.range(chunk.layer).len().max(1) as u32;
                (u32::from(long) * 256 / n) as u8
            }
            Keep::Lru => 255 - visit.wrapping_sub(long).min(255) as u8,
            Keep::Lfu => (long >> 8) as u8,
            Keep::Priority => {
                let mut short = self.short[slot];
                // What will be computed is held; for the rest it is as if the visit were over.
                if let Some(level) = coming.and_then(|levels| levels.get(chunk.index as usize)) {
                    let shift = self.shift(visit.wrapping_add(1));
                    (long, short) = (renewed(long, *level, shift), mean(short, *level));
                }
                let weight = self.recent_weight;
                (((long >> 8) * (256 - weight) + u16::from(short) * weight) >> 8) as u8
            }
        }
    }

    /// By which power of two the long average moves: at first it is one of all visits.
    fn shift(&self, visit: u16) -> u32 {
        u32::from(visit).max(1).ilog2().min(LONG_SHIFT)
    }

    /// Writes the chunks of a layer that `are` candidates to `order`, what goes first at the end.
    pub(crate) fn sort(
        &self,
        layer: u32,
        are: impl Fn(usize) -> bool,
        keys: &mut Vec<u16>,
        order: &mut Vec<u16>,
    ) {
        const NONE: u16 = u16::MAX;
        let n = self.range(layer).len();
        let mut ends = [0u32; 256];
        let (start, coming) = (self.range(layer).start, self.coming(layer));
        let value = |i: usize| {
            let chunk = Chunk { layer, index: i as u32 };
            usize::from(self.value_of(start + i, chunk, coming))
        };
        keys.clear();
        keys.extend((0..n).map(|i| if are(i) { 255 - value(i) as u16 } else { NONE }));
        let listed = keys.iter().filter(|key| **key != NONE);
        listed.for_each(|key| ends[usize::from(*key)] += 1);
        let mut end = 0;
        for count in &mut ends {
            end += *count;
            *count = end;
        }
        order.clear();
        order.resize(end as usize, 0);
        // Of equals the last in the file goes first, so that what is not kept lies together.
        for (i, key) in keys.iter().enumerate().rev().filter(|(_, key)| **key != NONE) {
            let end = &mut ends[usize::from(*key)];
            *end -= 1;
            order[*end as usize] = i as u16;
        }
    }
}

/// A long average after another level; exact to 1/256, so that small steps are not lost.
fn renewed(long: u16, level: u8, shift: u32) -> u16 {
    let step = (i32::from(level) * 256 - i32::from(long)) >> shift;
    (i32::from(long) + step).clamp(0, 65535) as u16
}

fn mean(a: u8, b: u8) -> u8 {
    ((u16::from(a) + u16::from(b)) / 2) as u8
}

/// The logarithm of a score, relative to the bound.
fn level(score: f32, bound: f32) -> u8 {
    if bound <= 0.0 {
        return if score > 0.0 { 255 } else { 0 };
    }
    let ratio = score / bound;
    // A float that fits no integer is cut to the nearest one; the logarithm of zero is one such.
    (MIDDLE + STEPS * log2(ratio)) as u8
}

/// The binary logarithm, to some 0.01: exact enough for levels, and cheap.
fn log2(x: f32) -> f32 {
    let bits = x.to_bits();
    if x < f32::MIN_POSITIVE {
        return f32::NEG_INFINITY;
    }
    let exponent = (bits >> 23) as f32 - 127.0;
    let m = f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000) - 1.0;
    exponent + m * (1.344 - 0.344 * m)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retention(keep: Keep, n: u32) -> Retention {
        Retention::new(keep, &Layout::even(2, n, 4096, 0.5))
    }

    /// The chunks of layer 1 in the order in which they go.
    fn order(retention: &Retention) -> Vec<u16> {
        let mut order = Vec::new();
        retention.sort(1, |_| true, &mut vec![], &mut order);
        order.reverse();
        order
    }

    #[test]
    fn logarithms_are_near_enough() {
        for x in [1e-30f32, 0.1, 0.5, 1.0, 1.3, 1.5, 1.9, 2.0, 77.0, 1e30] {
            assert!((log2(x) - x.log2()).abs() < 0.02, "{x}");
        }
        assert_eq!([level(0.0, 1.0), level(1.0, 1.0), level(1e9, 1.0)], [0, 128, 255]);
        assert_eq!([level(0.0, 0.0), level(1.0, 0.0)], [0, 255]);
    }

    #[test]
    fn the_least_recently_used_goes_first_however_long_ago() {
        let mut lru = retention(Keep::Lru, 4);
        lru.used(1, |i| i < 3, None);
        lru.used(1, |i| i < 2, None);
        lru.used(1, |i| i == 0, None);
        assert_eq!(order(&lru), [3, 2, 1, 0]);
        (0..70_000).for_each(|_| lru.used(1, |i| i == 1, None));
        assert_eq!(order(&lru)[3], 1);
        assert_eq!(lru.value(Chunk { layer: 1, index: 0 }), 0);
    }

    #[test]
    fn the_least_often_used_goes_first_and_old_uses_fade() {
        let mut lfu = retention(Keep::Lfu, 3);
        (0..5).for_each(|_| lfu.used(1, |i| i == 0, None));
        (0..3).for_each(|_| lfu.used(1, |i| i == 1, None));
        assert_eq!(order(&lfu), [2, 1, 0]);
        (0..900).for_each(|_| lfu.used(1, |i| i == 2, None));
        assert_eq!(order(&lfu)[2], 2);
    }

    #[test]
    fn a_fixed_order_is_kept_and_completed() {
        let mut hot = retention(Keep::Hot, 5);
        assert_eq!(order(&hot), [4, 3, 2, 1, 0]);
        hot.set_hot(1, &[3, 1, 3, 99]);
        assert_eq!(order(&hot), [4, 2, 0, 1, 3]);
        hot.used(1, |i| i == 4, None);
        assert_eq!(order(&hot), [4, 2, 0, 1, 3]);
    }

    #[test]
    fn priority_knows_near_misses_the_past_and_what_comes() {
        let mut priority = retention(Keep::Priority, 4);
        // None of the last three was used; chunk 2 nearly was, each time.
        for _ in 0..4 {
            priority.used(1, |i| i == 0, Some((&[4.0, 0.05, 0.9, 0.1], 1.0)));
        }
        assert_eq!(order(&priority), [1, 3, 2, 0]);
        // Chunk 0 is out of use now; its long past still counts for more than no past.
        priority.used(1, |i| i == 2, Some((&[0.1, 0.05, 3.0, 0.1], 1.0)));
        assert_eq!(order(&priority), [1, 3, 0, 2]);
        // A visit that is predicted counts before it is over, and once.
        let coming = [0.0, 9.0, 0.0, 0.0];
        priority.scored(1, coming.into_iter(), 1.0);
        let value =
            |p: &Retention| (0..4).map(|index| p.value(Chunk { layer: 1, index })).collect();
        let before: Vec<u8> = value(&priority);
        assert!(before[1] > before[3]);
        priority.used(1, |i| i == 1, Some((&coming, 1.0)));
        assert_eq!(before, value(&priority));
    }

    #[test]
    fn what_lasts_is_worth_what_it_exceeds_the_last_that_has_room_by() {
        let mut priority = retention(Keep::Priority, 4);
        let mut gains = vec![];
        priority.lasting(1, 2, &mut gains);
        assert_eq!(gains, [0.0; 4], "nothing is known yet");
        (0..40).for_each(|_| priority.used(1, |_| true, Some((&[4.0, 0.0, 1.0, 2.0], 1.0))));
        priority.lasting(1, 2, &mut gains);
        // The third best is at the bound, and two are above it.
        let near = |a: f32, b: f32| (a - b).abs() < 0.1 * (1.0 + b);
        assert!(near(gains[0], 3.0) && near(gains[3], 1.0), "{gains:?}");
        assert_eq!((gains[1], gains[2]), (0.0, 0.0));
        priority.lasting(1, 4, &mut gains);
        assert!(near(gains[0], 4.0) && gains[1] == 0.0, "{gains:?}");
        priority.lasting(1, 0, &mut gains);
        assert_eq!(gains, [0.0; 4]);
        let lru = retention(Keep::Lru, 4);
        lru.lasting(1, 4, &mut gains);
        assert_eq!(gains, [0.0; 4]);
    }

    #[test]
    fn small_steps_of_the_long_average_add_up() {
        let mut priority = retention(Keep::Priority, 1);
        for _ in 0..1000 {
            priority.used(1, |_| true, Some((&[1.0], 1.0)));
        }
        let value = priority.value(Chunk { layer: 1, index: 0 });
        assert!((126..=128).contains(&value), "{value}");
    }
}
