//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, with the text that said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    text: String,
    pub bytes: u64,
}

const UNITS: [(&str, u64); 10] = [
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("", 1),
];

impl FromStr for Size {
    type Err = String;

    /// `700MB` is 700 · 10⁶ bytes, `700MiB` and `700M` 700 · 2²⁰; the same as for `leanstream`.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        match number.parse::<f64>().ok().zip(factor).map(|(n, factor)| n * factor as f64) {
            Some(bytes) if bytes >= 1.0 && bytes < u64::MAX as f64 => {
                Ok(Self { text: text.to_owned(), bytes: bytes as u64 })
            }
            _ => Err("expected a size like 700MB, 700MiB or 1.5GiB".into()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_with_an_i_and_decimal_without() {
        for (text, bytes) in [("700MiB", 700 << 20), ("700mb", 700_000_000), ("1.5G", 3 << 29)] {
            assert_eq!(text.parse::<Size>().unwrap(), Size { text: text.to_owned(), bytes });
        }
        for text in ["", "MiB", "0", "7x", "-1MB", "1.2.3MB", "none"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
