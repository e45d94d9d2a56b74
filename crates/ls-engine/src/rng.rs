//! The pseudo-random numbers behind sampling.

/// PCG-XSH-RR 64/32: small, fast, and defined by integer arithmetic alone, so a seed gives the same
/// numbers on every platform and in every version.
#[derive(Clone, Debug)]
pub struct Pcg32 {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const DEFAULT_STREAM: u64 = 0xda3e_39cb_94b9_5bdb;

impl Pcg32 {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_stream(seed, DEFAULT_STREAM)
    }

    fn with_stream(seed: u64, stream: u64) -> Self {
        let mut rng = Self { state: 0, increment: (stream << 1) | 1 };
        rng.next_u32();
        rng.state = rng.state.wrapping_add(seed);
        rng.next_u32();
        rng
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let folded = (((old >> 18) ^ old) >> 27) as u32;
        folded.rotate_right((old >> 59) as u32)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32()) << 32;
        let bits = (high | u64::from(self.next_u32())) >> 11;
        bits as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_those_of_the_reference_implementation() {
        let mut rng = Pcg32::with_stream(42, 54);
        let numbers: Vec<u32> = (0..6).map(|_| rng.next_u32()).collect();
        assert_eq!(
            numbers,
            [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]
        );
    }

    #[test]
    fn fractions_fill_the_unit_interval_evenly() {
        let mut rng = Pcg32::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            let x = rng.next_f64();
            assert!((0.0..1.0).contains(&x));
            counts[(x * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (900..1100).contains(&n)), "{counts:?}");
    }
}
