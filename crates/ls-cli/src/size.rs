//! Sizes as people write them.

use std::str::FromStr;

/// A budget on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// What the machine has available, and streaming only if the model does not fit that.
    Auto,
    /// No limit: weights stay in the mapped file.
    None,
    /// So many bytes.
    Bytes(u64),
}

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            size => parse(size)
                .map(Self::Bytes)
                .ok_or("expected a size like 700MB, 700MiB or 1.5GB, or auto, or none".into()),
        }
    }
}

/// `700MB` is 700 · 10⁶ bytes, `700MiB` and `700M` are 700 · 2²⁰.
fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = number.parse::<f64>().ok().zip(factor).map(|(n, factor)| n * factor as f64);
    value.filter(|bytes| *bytes >= 1.0 && *bytes < u64::MAX as f64).map(|bytes| bytes as u64)
}

/// A size that is no budget.
pub fn bytes(text: &str) -> Result<u64, String> {
    parse(text).ok_or("expected a size like 700MB, 700MiB or 1.5GB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_decimal_or_binary() {
        for (text, bytes) in [
            ("700MB", 700_000_000),
            ("700 MiB", 700 << 20),
            ("700m", 700 << 20),
            ("1.5GB", 1_500_000_000),
            ("2g", 2 << 30),
            ("4096", 4096),
        ] {
            assert_eq!(text.parse(), Ok(Budget::Bytes(bytes)), "{text}");
        }
        assert_eq!("auto".parse(), Ok(Budget::Auto));
        assert_eq!("none".parse(), Ok(Budget::None));
        for text in ["", "MB", "-1MB", "700XB", "1e9", "99999999999TB", "0", "1.2.3k"] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
    }
}
