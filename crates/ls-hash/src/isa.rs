//! Which instruction set the kernels use, chosen at run time.

use std::fmt;

/// An instruction set that this processor has: a value of this type is the proof.
///
/// Predictions do not depend on it: sums are of integers, and floats are computed by the same
/// operations in the same order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(pub(crate) Kind);

/// Ordered from the plainest to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(dead_code)] // each architecture builds some of them
pub(crate) enum Kind {
    Scalar,
    Neon,
    Avx2,
    Avx512,
}

impl Isa {
    /// Plain Rust, on every processor.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The best one here.
    pub fn detect() -> Self {
        *Self::available().last().expect("scalar is always there")
    }

    /// All that this processor has, the best last.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self::SCALAR];
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            found.push(Self(Kind::Neon));
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            found.push(Self(Kind::Avx2));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vpopcntdq")
            {
                found.push(Self(Kind::Avx512));
            }
        }
        found
    }

    /// The one called `name`, if this processor has it.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// `scalar`, `neon`, `avx2` or `avx512-popcnt`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            Kind::Neon => "neon",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512-popcnt",
        }
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
