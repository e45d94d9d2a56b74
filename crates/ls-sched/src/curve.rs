//! How long a read takes, by its size.

/// What a read costs a device that is kept busy: a fixed part and one for each KiB.
///
/// It is the time by which the read delays all later ones, at the device's queue depth; the time
/// until its own bytes are there is longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// Nanoseconds that every read costs.
    pub fixed_ns: f64,
    /// Nanoseconds for each KiB.
    pub ns_per_kib: f64,
    /// A shorter read costs as much as one of so many bytes: flash of phones reads pages of
    /// several dies at once. 0 where there is no such knee.
    pub knee_bytes: u64,
}

impl Curve {
    /// A device without a knee.
    #[must_use]
    pub const fn line(fixed_ns: f64, ns_per_kib: f64) -> Self {
        Self { fixed_ns, ns_per_kib, knee_bytes: 0 }
    }

    /// Nanoseconds that a read of `bytes` costs.
    #[must_use]
    pub fn read_ns(&self, bytes: u64) -> f64 {
        self.fixed_ns + self.ns_per_kib * bytes.max(self.knee_bytes) as f64 / 1024.0
    }

    /// What a read of `bytes` costs beyond its bytes, as bytes. A gap that is shorter is cheaper
    /// read through than skipped.
    #[must_use]
    pub fn gap_bytes(&self, bytes: u64) -> u64 {
        let knee = self.knee_bytes.saturating_sub(bytes) as f64;
        let gap = self.fixed_ns / self.ns_per_kib * 1024.0 + knee;
        // A float that fits no integer is cut to the nearest one; not a number becomes zero.
        if gap.is_finite() { gap.max(0.0) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_costs_what_a_read_does() {
        let curve = Curve::line(17_000.0, 320.0);
        assert_eq!(curve.gap_bytes(12 << 10), 54_400);
        let through = curve.read_ns((24 << 10) + 54_400);
        assert!((through - 2.0 * curve.read_ns(12 << 10)).abs() < 1.0);
        assert_eq!(Curve::line(1.0, 0.0).gap_bytes(0), 0);
        assert_eq!(Curve::line(f64::NAN, 1.0).gap_bytes(0), 0);
    }

    #[test]
    fn below_the_knee_size_is_free() {
        let curve = Curve { knee_bytes: 24 << 10, ..Curve::line(0.0, 290.0) };
        assert_eq!(curve.read_ns(4 << 10), curve.read_ns(24 << 10));
        assert_eq!(curve.gap_bytes(16 << 10), 8 << 10);
        assert_eq!(curve.gap_bytes(32 << 10), 0);
    }
}
