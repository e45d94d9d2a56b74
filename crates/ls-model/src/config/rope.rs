//! Frequency factors of Llama 3.

/// Parameters of the "llama3" scaling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    /// Divisor of the lowest frequencies.
    pub factor: f32,
    /// Waves longer than `original_context / low_freq_factor` are divided in full.
    pub low_freq_factor: f32,
    /// Waves shorter than `original_context / high_freq_factor` are left alone.
    pub high_freq_factor: f32,
    /// Context length before scaling, in tokens.
    pub original_context: f32,
}

impl Llama3 {
    /// The divisor of each frequency, `[rope_dim / 2]`.
    pub fn factors(&self, base: f32, rope_dim: usize) -> Vec<f32> {
        let divisor = |pair: usize| {
            let exponent = (2 * pair) as f64 / rope_dim as f64;
            let wavelength = 2.0 * std::f64::consts::PI * f64::from(base).powf(exponent);
            self.divisor(wavelength) as f32
        };
        (0..rope_dim / 2).map(divisor).collect()
    }

    fn divisor(&self, wavelength: f64) -> f64 {
        let (low, high) = (f64::from(self.low_freq_factor), f64::from(self.high_freq_factor));
        let (context, factor) = (f64::from(self.original_context), f64::from(self.factor));
        if wavelength < context / high {
            return 1.0;
        }
        if wavelength > context / low {
            return factor;
        }
        let smooth = (context / wavelength - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_waves_and_divides_long_ones() {
        let scaling = Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let factors = scaling.factors(500_000.0, 64);
        assert_eq!(factors.len(), 32);
        assert_eq!(factors[0], 1.0);
        assert_eq!(factors[31], 32.0);
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
        // Pair 15: 2π·500000^(30/64) = 2948.9 lies between 2048 and 8192, so that
        // smooth = (8192/2948.9 - 1)/3 = 0.5926.
        assert!((factors[15] - 1.0 / (0.4074 / 32.0 + 0.5926)).abs() < 2e-3, "{}", factors[15]);
    }
}
