//! How long a read takes, by its size.

use serde::{Deserialize, Serialize};

/// The cost of a read at the depth in use: a fixed part and one for each KiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Microseconds that every read costs.
    pub fixed_us: f64,
    /// Microseconds for each KiB read.
    pub us_per_kib: f64,
}

impl Curve {
    /// Microseconds that a read of `bytes` costs.
    #[must_use]
    pub fn read_us(&self, bytes: u64) -> f64 {
        self.fixed_us + self.us_per_kib * bytes as f64 / 1024.0
    }

    /// Bytes that cost as much as one more read: a shorter gap is cheaper read through.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        let kib = self.fixed_us / self.us_per_kib;
        // A float that fits no integer is cut to the nearest one; not a number becomes zero.
        if kib.is_finite() { (kib.max(0.0) * 1024.0) as u64 } else { 0 }
    }

    /// The curve through points of (bytes, microseconds) with the least squares of the relative
    /// errors; `None` for fewer than two sizes.
    #[must_use]
    pub fn fit(points: &[(u64, f64)]) -> Option<Self> {
        // Each point weighs 1/t²: what counts is by which factor the curve is off.
        let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (bytes, us) in points.iter().filter(|(_, us)| *us > 0.0) {
            let (x, weight) = (*bytes as f64 / 1024.0, 1.0 / (us * us));
            w += weight;
            wx += weight * x;
            wy += weight * us;
            wxx += weight * x * x;
            wxy += weight * x * us;
        }
        let det = w * wxx - wx * wx;
        if !det.is_normal() || det < 1e-9 * w * wxx {
            return None;
        }
        let us_per_kib = (w * wxy - wx * wy) / det;
        let fixed_us = (wy - us_per_kib * wx) / w;
        if us_per_kib <= 0.0 {
            return None;
        }
        if fixed_us < 0.0 {
            // The line through the origin that fits best.
            return Some(Self { fixed_us: 0.0, us_per_kib: wxy / wxx });
        }
        Some(Self { fixed_us, us_per_kib })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let curve = Curve { fixed_us: 10.0, us_per_kib: 0.5 };
        let points: Vec<_> =
            [4, 16, 64, 512, 1024].map(|kib| (kib * 1024, curve.read_us(kib * 1024))).into();
        let found = Curve::fit(&points).unwrap();
        assert!((found.fixed_us - 10.0).abs() < 1e-6 && (found.us_per_kib - 0.5).abs() < 1e-9);
        assert!((20_000..=20_480).contains(&found.gap_bytes()));
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(Curve::fit(&[]), None);
        assert_eq!(Curve::fit(&[(4096, 10.0), (4096, 11.0)]), None);
        assert_eq!(Curve::fit(&[(4096, 10.0), (8192, 5.0)]), None);
    }

    #[test]
    fn no_curve_has_a_negative_start() {
        let found = Curve::fit(&[(4096, 1.0), (409_600, 200.0)]).unwrap();
        assert_eq!(found.fixed_us, 0.0);
    }

    #[test]
    fn a_senseless_curve_reads_no_gaps() {
        for (fixed_us, us_per_kib) in [(f64::NAN, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)] {
            assert_eq!(Curve { fixed_us, us_per_kib }.gap_bytes(), 0);
        }
        assert!(Curve { fixed_us: 1e300, us_per_kib: 1.0 }.gap_bytes() > 0);
    }
}
