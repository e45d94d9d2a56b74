//! The table of the adaptive interval: how many stages to compute before the next ranking.

use crate::SchedError;
use crate::bytes::{Reader, Writer};
use crate::error::within;
use crate::solve::Profile;

const MAGIC: [u8; 4] = *b"LSIT";
const VERSION: u32 = 1;

/// Intervals by what can be seen when a ranking is there: stages done, chunks of the present layer
/// that are ready, and chunks of the next one that are missing; the last two in stages' worth of chunks,
/// in steps of 1/[`STEPS`].
///
/// Made by [`solve`](crate::solve), or read from bytes:
///
/// | part | type | count |
/// |---|---|---|
/// | "LSIT", version 1 | u8, u32 | 4, 1 |
/// | stages, layers | u32 | 2 |
/// | times and sizes of the profile, in the order of its fields | f32 | 9 |
/// | staleness | f32 | stages + 1 |
/// | expected nanoseconds of a layer: by this table, ranked once, at each fixed interval from 1 | f32 | stages + 1 |
/// | intervals by done, ready, missing; 255 for never again | u8 | stages × (stages × 4 + 1)² |
/// | xxh3 of all before | u64 | 1 |
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub(crate) profile: Profile,
    pub(crate) expected: Vec<f32>,
    pub(crate) intervals: Vec<u8>,
}

/// Steps for each stage's worth of chunks.
pub const STEPS: usize = 4;

/// In a table: no further ranking.
pub(crate) const NEVER: u8 = 255;

/// Most stages of a table: its size grows with their third power.
pub(crate) const MAX_STAGES: u32 = 16;

impl Table {
    /// Values of ready and of missing chunks that are told apart.
    pub(crate) fn side(stages: u32) -> usize {
        stages as usize * STEPS + 1
    }

    /// Stages to compute before the next layer is ranked again; `u32::MAX` if it is not worth it.
    #[must_use]
    pub fn interval(&self, done: u32, ready: f32, missing: f32) -> u32 {
        let side = Self::side(self.profile.stages);
        // A float that fits no integer is cut to the nearest one.
        let step = |x: f32| ((x * STEPS as f32).round() as usize).min(side - 1);
        let place = (done as usize * side + step(ready)) * side + step(missing);
        match self.intervals.get(place) {
            Some(&NEVER) | None => u32::MAX,
            Some(interval) => (*interval).into(),
        }
    }

    /// What the table was solved for.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Nanoseconds that a layer is expected to take by this table.
    #[must_use]
    pub fn expected_ns(&self) -> f32 {
        self.expected[0]
    }

    /// Nanoseconds that a layer is expected to take if the next one is ranked once.
    #[must_use]
    pub fn one_shot_ns(&self) -> f32 {
        // An interval of all stages.
        self.expected[self.expected.len() - 1]
    }

    /// Nanoseconds that a layer is expected to take at a fixed interval of so many stages.
    #[must_use]
    pub fn fixed_ns(&self, interval: u32) -> f32 {
        self.expected[interval.clamp(1, self.profile.stages) as usize]
    }

    /// The best fixed interval; all stages: rank once.
    #[must_use]
    pub fn best_fixed(&self) -> u32 {
        let all = (1..).zip(&self.expected[1..]);
        all.min_by(|a, b| a.1.total_cmp(b.1)).map_or(1, |(interval, _)| interval)
    }

    /// The table as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(MAGIC, VERSION);
        to.u32(self.profile.stages);
        to.u32(self.profile.n_layers);
        self.profile.numbers().iter().for_each(|x| to.f32(*x));
        self.profile.staleness.iter().chain(&self.expected).for_each(|x| to.f32(*x));
        to.raw(&self.intervals);
        to.finish()
    }

    /// A table from bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are no table of this version, or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SchedError> {
        let mut from = Reader::new(bytes, "table of intervals", MAGIC, VERSION)?;
        let (stages, n_layers) = (from.u32("the sizes")?, from.u32("the sizes")?);
        within("stages", stages.into(), 1.0..=MAX_STAGES.into(), "1 to 16")?;
        let mut profile = Profile::new(stages, n_layers);
        for number in profile.numbers_mut() {
            *number = from.f32("the profile")?;
        }
        for number in &mut profile.staleness {
            *number = from.f32("the staleness")?;
        }
        profile.check()?;
        let mut expected = vec![0.0; stages as usize + 1];
        for number in &mut expected {
            *number = from.f32("the expected times")?;
            within("expected time", (*number).into(), 0.0..=f32::MAX.into(), "0 or more")?;
        }
        let n = stages as usize * Self::side(stages).pow(2);
        let intervals = from.raw("the intervals", n as u64)?.to_vec();
        from.finish()?;
        let bad = |i: &&u8| **i != NEVER && (**i == 0 || u32::from(**i) > stages);
        if let Some(found) = intervals.iter().find(bad) {
            let found = f64::from(*found);
            return Err(SchedError::Setting { what: "interval", found, expected: "1 to stages" });
        }
        Ok(Self { profile, expected, intervals })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::solve;

    fn table() -> Table {
        solve(&Profile { missing: 2.0, ..Profile::new(4, 8) }).unwrap()
    }

    #[test]
    fn bytes_give_the_table_back() {
        let table = table();
        assert_eq!(Table::from_bytes(&table.to_bytes()).unwrap(), table);
    }

    #[test]
    fn look_ups_beyond_the_edges_are_cut() {
        let table = table();
        assert_eq!(table.interval(4, 1.0, 1.0), u32::MAX);
        assert_eq!(table.interval(0, 1e9, f32::NAN), table.interval(0, 4.0, 0.0));
        assert_eq!(table.interval(1, -3.0, f32::INFINITY), table.interval(1, 0.0, 4.0));
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_an_error(place: prop::sample::Index, bit in 0u32..8, cut: bool) {
            let mut bytes = table().to_bytes();
            let place = place.index(bytes.len());
            if cut { bytes.truncate(place) } else { bytes[place] ^= 1 << bit }
            prop_assert!(Table::from_bytes(&bytes).is_err());
        }

        #[test]
        fn any_content_is_an_error_or_sound(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut to = Writer::new(MAGIC, VERSION);
            to.u32(1);
            to.raw(&content);
            if let Ok(table) = Table::from_bytes(&to.finish()) {
                prop_assert_eq!(Table::from_bytes(&table.to_bytes()).is_ok(), true);
            }
        }
    }
}
