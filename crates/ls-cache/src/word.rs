//! The state of a frame in one atomic word.
//!
//! Key, pins and state change together, so that whoever pins a frame has checked in the same step
//! that it still holds the right key: no later look is needed.

/// State of a frame: its key's number, how many hold it, and notes for whoever lets go last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub u64);

const PIN: u64 = 1 << 32;
const PINS: u64 = ((1 << 26) - 1) << 32;
const FILLING: u64 = 1 << 62;
const RESIDENT: u64 = 1 << 63;

/// The policy does not have it among its candidates: the last unpin has to say so.
pub(crate) const PARKED: u64 = 1 << 58;
/// It may have to go at once when the last pin does: the last unpin has to ask.
pub(crate) const DOOMED: u64 = 1 << 59;
/// Published without a pin and not pinned since.
pub(crate) const FRESH: u64 = 1 << 60;

impl Word {
    /// Holds nothing.
    pub const FREE: Self = Self(0);

    pub fn is_free(self) -> bool {
        self == Self::FREE
    }

    /// Exclusive to whoever fills it for `slot`.
    pub fn filling(slot: u32, notes: u64) -> Self {
        Self(FILLING | notes | u64::from(slot))
    }

    pub fn slot(self) -> u32 {
        self.0 as u32
    }

    pub fn pins(self) -> u64 {
        (self.0 & PINS) / PIN
    }

    pub fn has(self, note: u64) -> bool {
        self.0 & note != 0
    }

    pub fn with(self, note: u64) -> Self {
        Self(self.0 | note)
    }

    pub fn without(self, note: u64) -> Self {
        Self(self.0 & !note)
    }

    pub fn is_filling(self) -> bool {
        self.has(FILLING)
    }

    pub fn is_resident(self) -> bool {
        self.has(RESIDENT)
    }

    /// Resident, and pinned by no one.
    pub fn is_idle(self) -> bool {
        self.is_resident() && self.pins() == 0
    }

    pub fn holds(self, slot: u32) -> bool {
        self.is_resident() && self.slot() == slot
    }

    /// Pinned once more.
    ///
    /// # Panics
    ///
    /// If 67 million pins of one frame were leaked.
    pub fn pinned(self) -> Self {
        assert!(self.0 & PINS != PINS, "pins of a frame are given back");
        Self(self.0 + PIN)
    }

    /// Pinned once less. The last one takes away what it reports: see [`PARKED`], [`FRESH`].
    pub fn unpinned(self) -> Self {
        debug_assert!(self.is_resident() && self.pins() > 0, "a pin is given back once");
        let word = Self(self.0 - PIN);
        if word.pins() == 0 { word.without(PARKED | FRESH) } else { word }
    }

    /// From filling to resident.
    pub fn published(self) -> Self {
        debug_assert!(self.is_filling(), "a frame is published once");
        self.without(FILLING).with(RESIDENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_word_do_not_touch() {
        let word = Word::filling(u32::MAX, PARKED);
        assert!(word.is_filling() && !word.is_resident() && !word.holds(u32::MAX));
        let word = word.published().pinned().pinned();
        assert!(word.holds(u32::MAX) && word.has(PARKED) && !word.has(DOOMED | FRESH));
        assert_eq!((word.slot(), word.pins()), (u32::MAX, 2));
        let word = word.unpinned();
        assert!(word.has(PARKED) && !word.is_idle());
        assert!(word.unpinned().is_idle() && !word.unpinned().has(PARKED));
    }

    #[test]
    #[should_panic(expected = "given back")]
    fn the_count_of_pins_does_not_run_over() {
        let _ = Word(RESIDENT | PINS).pinned();
    }
}
