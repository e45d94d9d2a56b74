//! Random numbers that follow from a seed.

/// Entries of the table of normal quantiles.
const QUANTILES: usize = 1 << 12;

/// SplitMix64, and a table for normal numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
    quantiles: Vec<f32>,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        let n = QUANTILES as f64;
        let quantiles = (0..QUANTILES).map(|i| quantile((i as f64 + 0.5) / n) as f32).collect();
        Self { state: seed, quantiles }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Three normal numbers of variance 1, cut at 3.7.
    pub fn normals(&mut self) -> [f32; 3] {
        let bits = self.next();
        [bits >> 52, bits >> 40, bits >> 28].map(|i| self.quantiles[i as usize % QUANTILES])
    }
}

/// The normal number below which a share of `p` lies.
pub(crate) fn quantile(p: f64) -> f64 {
    // Bisection: it is asked for a few thousand times, and erfc is exact.
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let x = 0.5 * (low + high);
        if share_below(x) < p { low = x } else { high = x }
    }
    0.5 * (low + high)
}

/// The share of normal numbers below `x`.
pub(crate) fn share_below(x: f64) -> f64 {
    0.5 * libm::erfc(-x / core::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        assert!((quantile(0.975) - 1.959_964).abs() < 1e-5);
        assert!((quantile(0.3) + 0.524_401).abs() < 1e-5);
        let mut rng = Rng::new(1);
        let all: Vec<f32> = (0..20_000).flat_map(|_| rng.normals()).collect();
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let variance = all.iter().map(|x| x * x).sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
