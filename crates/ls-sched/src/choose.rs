//! Which chunks of a layer are worth computing, if reading them has a price.

use crate::Curve;

/// Where a chunk is, for choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To be read.
    Absent,
    /// In memory, or on its way there.
    Present,
    /// Computed already, or given up: not to be chosen.
    Taken,
}

/// What reading costs, in units of the score that the last chosen chunk would have if reading cost
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Of beginning a read.
    pub open: f32,
    /// Of each chunk of it, wanted or read through.
    pub chunk: f32,
}

impl Price {
    /// Reading costs nothing: the best scores are chosen.
    pub const NOTHING: Self = Self { open: 0.0, chunk: 0.0 };

    /// `price` for a chunk of `chunk_bytes` that has to be read alone, divided as `curve` says.
    #[must_use]
    pub fn new(price: f32, curve: &Curve, chunk_bytes: u32) -> Self {
        let alone = curve.read_ns(chunk_bytes.into());
        let bytes = curve.ns_per_kib * f64::from(chunk_bytes) / 1024.0;
        let chunk = (f64::from(price) * (bytes / alone).clamp(0.0, 1.0)) as f32;
        Self { open: (price - chunk).max(0.0), chunk }
    }

    /// `price` for reading a layer of `n_chunks` in one piece, divided as `curve` says; in units of the sum of all its
    /// scores, for [`Chooser::choose_worth`].
    #[must_use]
    pub fn of_layer(price: f32, curve: &Curve, chunk_bytes: u32, n_chunks: u32) -> Self {
        let chunk = curve.ns_per_kib * f64::from(chunk_bytes) / 1024.0;
        let all = chunk * f64::from(n_chunks);
        let share = |ns: f64| (f64::from(price) * ns / all.max(f64::MIN_POSITIVE)) as f32;
        Self { open: share(curve.fixed_ns), chunk: share(chunk) }
    }

    fn is_nothing(self) -> bool {
        self.open <= 0.0 && self.chunk <= 0.0
    }
}

/// Rounds of the search for the bound; each halves the interval.
const ROUNDS: usize = 14;

/// Chooses chunks; keeps its memory for the next time.
#[derive(Debug, Default)]
pub struct Chooser {
    scores: Vec<f32>,
    /// Score of each chunk, and whether it is to be read.
    items: Vec<(f32, bool)>,
    /// For each chunk, whether the best way to it, outside of a read (bit 0) and in one (bit 1),
    /// comes out of a read.
    ways: Vec<u8>,
    keys: Vec<u64>,
}

/// Best value of reading minus that of not reading, and how many chunks either way has chosen.
#[derive(Clone, Copy)]
struct Front {
    lead: f32,
    n_out: u32,
    n_in: u32,
}

impl Chooser {
    /// Room for layers of up to `n_chunks`, so that choosing does not allocate.
    #[must_use]
    pub fn new(n_chunks: usize) -> Self {
        let mut chooser = Self::default();
        chooser.scores.reserve(n_chunks);
        chooser.items.reserve(n_chunks);
        chooser.ways.reserve(n_chunks + 1);
        chooser.keys.reserve(n_chunks);
        chooser
    }

    /// Writes `n` chunks that are not taken to `chosen`, the best score first; fewer if there are
    /// not as many. Returns the score that a chunk in memory had to exceed.
    ///
    /// It maximises the sum of scores less the price of the reads that cover the absent ones among
    /// them, where a read is any stretch of chunks: so it knows that a neighbour of what is read
    /// anyway is cheap, that a lone chunk is dear, and one in memory free. With a multiplier for
    /// the number of chunks that is a path through two states, in a read and not; the multiplier
    /// is found by bisection.
    pub fn choose(
        &mut self,
        scores: &[f32],
        places: impl Fn(usize) -> Place,
        n: usize,
        price: Price,
        chosen: &mut Vec<u16>,
    ) -> f32 {
        chosen.clear();
        self.keys.clear();
        let plain = self.plain_bound(scores, &places, n);
        if price.is_nothing() || n == 0 {
            self.keep(scores, &places, |_| true, n, chosen);
            return plain;
        }
        let price = Price { open: price.open * plain, chunk: price.chunk * plain };
        self.list(scores, &places);
        // Prices only ever lower the bound. At the low end at least `n` are chosen, if there are.
        let (mut low, mut high) = (0.0, plain);
        let few = n + n / 128;
        for _ in 0..ROUNDS {
            let bound = 0.5 * (low + high);
            let found = self.forward(bound, price, |_| ());
            if found < n {
                high = bound;
                continue;
            }
            low = bound;
            if found <= few {
                break;
            }
        }
        self.mark(low, price);
        let ways = std::mem::take(&mut self.ways);
        self.keep(scores, &places, |i| ways[i] == CHOSEN, n, chosen);
        if chosen.len() < n {
            // Too dear, or of no score; the number is asked for all the same.
            let rest = n - chosen.len();
            self.keep(scores, &places, |i| ways[i] != CHOSEN, rest, chosen);
        }
        self.ways = ways;
        low
    }

    /// Writes the chunks that are not taken, are of any use, and are in memory or worth their reads to `chosen`, the
    /// best score first. Returns the mean score.
    ///
    /// It maximises the sum of scores less the price of the reads, as [`Self::choose`] does, but however many
    /// chunks that are: a read brings all chunks that it covers. Prices are shares of the sum of all scores
    /// ([`Price::of_layer`]). What a chunk is worth once it was read, in units of the mean score, is in `lasting`; it may be empty.
    pub fn choose_worth(
        &mut self,
        scores: &[f32],
        lasting: &[f32],
        places: impl Fn(usize) -> Place,
        price: Price,
        chosen: &mut Vec<u16>,
    ) -> f32 {
        chosen.clear();
        self.list(scores, &places);
        let total: f32 = scores.iter().map(|score| sane(*score)).sum();
        let mean = total / scores.len().max(1) as f32;
        for ((score, is_absent), lasting) in self.items.iter_mut().zip(lasting) {
            *score += if *is_absent { sane(mean * lasting) } else { 0.0 };
        }
        self.mark(0.0, Price { open: price.open * total, chunk: price.chunk * total });
        let ways = std::mem::take(&mut self.ways);
        self.keep(scores, &places, |i| ways[i] == CHOSEN, usize::MAX, chosen);
        self.ways = ways;
        mean
    }

    /// The `n`-th best score of those not taken.
    fn plain_bound(&mut self, scores: &[f32], places: impl Fn(usize) -> Place, n: usize) -> f32 {
        self.scores.clear();
        let open = scores.iter().enumerate().filter(|(i, _)| places(*i) != Place::Taken);
        self.scores.extend(open.map(|(_, score)| sane(*score)));
        if n == 0 || n > self.scores.len() {
            return 0.0;
        }
        let (_, bound, _) = self.scores.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
        *bound
    }

    /// Lists scores and places, so that going through them again and again is quick.
    fn list(&mut self, scores: &[f32], places: impl Fn(usize) -> Place) {
        self.items.clear();
        self.items.extend(scores.iter().enumerate().map(|(i, score)| match places(i) {
            // No bound is below it.
            Place::Taken => (-1.0, false),
            Place::Present => (sane(*score), false),
            Place::Absent => (sane(*score), true),
        }));
    }

    /// Finds the best path, and says how many chunks it chooses; `ways` is told the steps.
    fn forward(&self, bound: f32, price: Price, mut ways: impl FnMut(u8)) -> usize {
        let mut front = Front { lead: -price.open, n_out: 0, n_in: 0 };
        for (score, is_absent) in &self.items {
            let gain = score - bound;
            let is_gain = u32::from(gain > 0.0);
            let leave = front.lead > 0.0;
            let stay = front.lead > -price.open;
            ways(u8::from(leave) | u8::from(stay) << 1);
            let gain = if *is_absent { gain.max(0.0) } else { 0.0 };
            front = Front {
                lead: front.lead.max(-price.open) - front.lead.max(0.0) - price.chunk + gain,
                n_out: (is_gain & u32::from(!is_absent))
                    + if leave { front.n_in } else { front.n_out },
                n_in: is_gain + if stay { front.n_in } else { front.n_out },
            };
        }
        ways(u8::from(front.lead > 0.0));
        if front.lead > 0.0 { front.n_in as usize } else { front.n_out as usize }
    }

    /// Follows the best path back, and marks what it chooses.
    fn mark(&mut self, bound: f32, price: Price) {
        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        self.forward(bound, price, |way| ways.push(way));
        let mut is_in = ways.pop() == Some(1);
        for (way, (score, is_absent)) in ways.iter_mut().zip(&self.items).rev() {
            let came_from_in = *way >> u8::from(is_in) & 1 == 1;
            let is_chosen = *score > bound && (is_in || !is_absent);
            *way = if is_chosen { CHOSEN } else { 0 };
            is_in = came_from_in;
        }
        self.ways = ways;
    }

    /// Appends the best `n` of those that `may` be chosen, the best first.
    fn keep(
        &mut self,
        scores: &[f32],
        places: impl Fn(usize) -> Place,
        may: impl Fn(usize) -> bool,
        n: usize,
        chosen: &mut Vec<u16>,
    ) {
        self.keys.clear();
        let all = scores.iter().enumerate();
        let open = all.filter(|(i, _)| places(*i) != Place::Taken && may(*i));
        // Floats that are not negative sort like their bits. Of equals the first in the file.
        self.keys.extend(open.map(|(i, s)| u64::from(!sane(*s).to_bits()) << 16 | i as u64));
        let n = n.min(self.keys.len());
        if n == 0 {
            return;
        }
        if n < self.keys.len() {
            self.keys.select_nth_unstable(n - 1);
            self.keys.truncate(n);
        }
        self.keys.sort_unstable();
        chosen.extend(self.keys.iter().map(|key| *key as u16));
    }
}

/// Mark of a chunk that the best path chooses.
const CHOSEN: u8 = 4;

/// What a neuron's score counts by itself: any is better than none, to fill up what is computed.
const LITTLE: f32 = 1e-3;

/// What each chunk of `n` neurons adds, by the `scores` of all neurons in order: by how much its own exceed those by
/// which they would be replaced, of which `least` is the least that is computed if all are there.
pub fn gains(scores: &[f32], n: usize, least: f32) -> impl Iterator<Item = f32> + '_ {
    let gain = move |score: &f32| (score - least).max(0.0) + LITTLE * score;
    scores.chunks(n.max(1)).map(move |neurons| neurons.iter().map(gain).sum::<f32>())
}

/// What is no sensible score counts as none.
pub(crate) fn sane(score: f32) -> f32 {
    // What is not a number is not more than zero.
    if score > 0.0 { score.min(f32::MAX) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sum of scores less the price of the cheapest reads that cover the absent ones.
    fn worth(scores: &[f32], places: &[Place], chosen: &[bool], price: Price) -> f64 {
        let mut sum = 0.0;
        let mut gap = None;
        for (i, is_chosen) in chosen.iter().enumerate() {
            sum += if *is_chosen { f64::from(scores[i]) } else { 0.0 };
            if *is_chosen && places[i] == Place::Absent {
                let open = f64::from(price.open);
                let through =
                    gap.map_or(open, |n: u32| open.min(f64::from(price.chunk) * f64::from(n)));
                sum -= through + f64::from(price.chunk);
                gap = Some(0);
            } else if let Some(n) = &mut gap {
                *n += 1;
            }
        }
        sum
    }

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            Just(Place::Absent),
            Just(Place::Absent),
            Just(Place::Present),
            Just(Place::Taken)
        ]
    }

    proptest! {
        /// No set of as many chunks is worth more than what the found set is, but for the rounding
        /// to exactly `n`: what the multiplier finds is the best of its own size.
        #[test]
        fn the_found_set_is_the_best_of_its_size(
            items in prop::collection::vec((0.0f32..8.0, place()), 1..11),
            n in 1usize..6, open in 0.0f32..1.5, chunk in 0.0f32..0.5,
        ) {
            let scores: Vec<f32> = items.iter().map(|item| item.0).collect();
            let places: Vec<Place> = items.iter().map(|item| item.1).collect();
            let mut chooser = Chooser::default();
            let bound = 0.5;
            let price = Price { open, chunk };
            chooser.list(&scores, |i| places[i]);
            let found = chooser.forward(bound, price, |_| ());
            chooser.mark(bound, price);
            let set: Vec<bool> = chooser.ways.iter().map(|w| *w == CHOSEN).collect();
            prop_assert_eq!(set.iter().filter(|c| **c).count(), found);
            let best = (0u32..1 << scores.len())
                .map(|bits| (0..scores.len()).map(|i| bits >> i & 1 == 1).collect::<Vec<_>>())
                .filter(|s| s.iter().filter(|c| **c).count() == found)
                .filter(|s| s.iter().zip(&places).all(|(c, p)| !c || *p != Place::Taken))
                .map(|s| worth(&scores, &places, &s, price))
                .fold(f64::MIN, f64::max);
            let is = worth(&scores, &places, &set, price);
            prop_assert!(is > best - 1e-4, "{is} of {best} for {set:?}");

            let mut chosen = Vec::new();
            chooser.choose(&scores, |i| places[i], n, price, &mut chosen);
            let open = places.iter().filter(|p| **p != Place::Taken).count();
            prop_assert_eq!(chosen.len(), n.min(open));
            prop_assert!(chosen.iter().all(|i| places[*i as usize] != Place::Taken));
            let mut sorted = chosen.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), chosen.len());
        }

        #[test]
        fn what_is_worth_its_reads_is_chosen(
            chunks in prop::collection::vec((0.01f32..10.0, place()), 1..11),
            (price, fixed) in (0.0f32..3.0, 0.0f64..50_000.0),
        ) {
            let (scores, places): (Vec<f32>, Vec<Place>) = chunks.into_iter().unzip();
            let price = Price::of_layer(price, &Curve::line(fixed, 400.0), 4096, scores.len() as u32);
            let (mut chooser, mut chosen) = (Chooser::default(), Vec::new());
            let mean = chooser.choose_worth(&scores, &[], |i| places[i], price, &mut chosen);
            let total = mean * scores.len() as f32;
            let price = Price { open: price.open * total, chunk: price.chunk * total };
            let value = |set: &[bool]| worth(&scores, &places, set, price);
            let mut set = vec![false; scores.len()];
            chosen.iter().for_each(|i| set[usize::from(*i)] = true);
            let best = (0..1u32 << scores.len())
                .map(|bits| (0..scores.len()).map(|i| bits >> i & 1 == 1).collect::<Vec<_>>())
                .filter(|set| set.iter().zip(&places).all(|(is, at)| !is || *at != Place::Taken))
                .map(|set| value(&set))
                .fold(f64::NEG_INFINITY, f64::max);
            prop_assert!((value(&set) - best).abs() < 1e-3 * f64::from(total), "{} of {best}", value(&set));
            prop_assert!(chosen.is_sorted_by(|a, b| scores[usize::from(*a)] >= scores[usize::from(*b)]));
        }

        #[test]
        fn without_a_price_the_best_scores_are_chosen(
            scores in prop::collection::vec(prop_oneof![4 => 0.0f32..8.0, 1 => Just(f32::NAN)], 1..99),
            n in 0usize..120,
        ) {
            let mut chosen = Vec::new();
            Chooser::default().choose(&scores, |_| Place::Absent, n, Price::NOTHING, &mut chosen);
            let mut expected: Vec<u16> = (0..scores.len() as u16).collect();
            expected.sort_by(|a, b| sane(scores[*b as usize]).total_cmp(&sane(scores[*a as usize])));
            expected.truncate(n);
            prop_assert_eq!(chosen, expected);
        }
    }

    #[test]
    fn a_price_prefers_what_is_there_and_what_lies_together() {
        // Two lone chunks are somewhat better than one in memory and a pair of neighbours.
        let scores = [5.0, 0.0, 0.0, 0.0, 4.9, 4.9, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 4.9];
        let places = |i| if i == 12 { Place::Present } else { Place::Absent };
        let mut chosen = Vec::new();
        let mut chooser = Chooser::default();
        chooser.choose(&scores, places, 3, Price::NOTHING, &mut chosen);
        assert_eq!(chosen, [0, 9, 4]);
        let price = Price::new(0.5, &Curve::line(80.0, 1.0), 16 << 10);
        chooser.choose(&scores, places, 3, price, &mut chosen);
        assert_eq!(chosen, [4, 5, 12]);
    }
}
