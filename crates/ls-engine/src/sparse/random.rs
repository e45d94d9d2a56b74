//! Random choices.

use ls_cpu::{Cpu, Masks};

use super::keep::Units;
use super::{ChoiceError, Choose, Choosing, Grain, Keep, MlpInput, MlpShape};
use crate::Pcg32;

/// Others for every token and layer: the worst that a prediction can do, and what speed is measured
/// with. The same seed gives the same choice at the same position.
#[derive(Clone, Debug)]
pub struct Random {
    keep: Keep,
    grain: Grain,
    seed: u64,
}

impl Random {
    /// Chooses exactly as many as `keep` says.
    pub fn new(keep: Keep, grain: Grain, seed: u64) -> Self {
        Self { keep, grain, seed }
    }
}

impl Choose for Random {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        let units = Units::of(&self.keep, self.grain, layers)?;
        let most = units.iter().map(|units| units.len().div_ceil(64)).max().unwrap_or(0);
        Ok(Box::new(RandomOf { units, seed: self.seed, words: vec![0; most] }))
    }
}

#[derive(Debug)]
struct RandomOf {
    units: Vec<Units>,
    seed: u64,
    /// Bits of units.
    words: Vec<u64>,
}

impl Choosing for RandomOf {
    fn choose(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        let units = &self.units[at.layer];
        for t in 0..at.n {
            let stream = (at.position + t) as u64 * self.units.len() as u64 + at.layer as u64;
            let mut rng = Pcg32::new(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let words = &mut self.words[..units.len().div_ceil(64)];
            random_bits(&mut rng, units.len(), units.keep, words);
            let to = masks.words_mut(t);
            match units.grain {
                Grain::Neuron => to.copy_from_slice(words),
                Grain::Chunk => (0..units.len())
                    .filter(|unit| words[unit / 64] >> (unit % 64) & 1 == 1)
                    .for_each(|unit| ls_cpu::set_range(to, units.neurons(unit))),
            }
        }
    }
}

/// Sets `k` random ones of `len` bits.
///
/// Words of bits that are each set with about the right chance, then single bits until their number
/// is right: a number drawn for each bit would cost as much as what it saves to compute.
fn random_bits(rng: &mut Pcg32, len: usize, k: usize, words: &mut [u64]) {
    const PLACES: u32 = 8;
    let chance = ((k << PLACES) / len.max(1)) as u64;
    for word in words.iter_mut() {
        // Each binary place of the chance, the lowest first, halves what is set and may add half.
        *word = 0;
        for place in 0..PLACES {
            let random = u64::from(rng.next_u32()) << 32 | u64::from(rng.next_u32());
            *word = if chance >> place & 1 == 1 { *word | random } else { *word & random };
        }
    }
    if chance >> PLACES == 1 {
        words.fill(u64::MAX);
    }
    if let Some(last) = words.last_mut().filter(|_| !len.is_multiple_of(64)) {
        *last &= (1 << (len % 64)) - 1;
    }
    let mut count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    while count != k {
        let bit = ((u64::from(rng.next_u32()) * len as u64) >> 32) as usize;
        let is_set = words[bit / 64] >> (bit % 64) & 1 == 1;
        if is_set == (count > k) {
            words[bit / 64] ^= 1 << (bit % 64);
            count = if is_set { count - 1 } else { count + 1 };
        }
    }
}
