//! Means with the extremes that they were made from.

/// A mean with its extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    pub mean: f64,
    min: f64,
    max: f64,
}

impl Mean {
    /// `None` of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(Self { mean: values.iter().sum::<f64>() / values.len() as f64, min, max })
    }

    /// `12.3 (11.0–13.6)`, with more digits for small values.
    pub fn shown(self) -> String {
        let digits = digits(self.mean);
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.mean, self.min, self.max)
    }
}

/// Digits behind the point that leave about three that mean something.
pub fn digits(value: f64) -> usize {
    match value.abs() {
        v if v < 1.0 => 3,
        v if v < 10.0 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_have_more_digits() {
        let shown = |values: &[f64]| Mean::of(values.iter().copied()).map(Mean::shown);
        assert_eq!(shown(&[10.0, 14.0]).unwrap(), "12.0 (10.0–14.0)");
        assert_eq!(shown(&[0.25, 0.5]).unwrap(), "0.375 (0.250–0.500)");
        assert_eq!(shown(&[]), None);
    }
}
