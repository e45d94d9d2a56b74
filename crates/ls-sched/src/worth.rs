//! What reads are worth, by how much of the model the cache holds.

use crate::{Config, Layout};

/// What chunks must add to be read, if they are chosen [by worth](crate::Count::ByWorth).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// See [`Config::price`].
    pub price: f32,
    /// See [`Config::horizon`].
    pub horizon: f32,
}

/// Price without a cache, and where it ends; between it is in inverse proportion to the share that is not there.
const PRICE: (f64, f64) = (0.07, 0.6);
/// Horizon with a cache of this share of all chunks and less, and where it ends; between it is in inverse proportion to the share.
const HORIZON: (f64, f64, f64) = (8.0, 0.25, 2.0);

impl Worth {
    /// What is sensible for a cache that holds `share` of all chunks: the more it holds, the less
    /// an absent one adds, and the better what is there can stand for it. With little, a price leaves
    /// too little to compute, and it matters more that what is read is wanted again.
    #[must_use]
    pub fn usual(share: f64) -> Self {
        let (least, most) = PRICE;
        let (longest, small, shortest) = HORIZON;
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        let price = least / (1.0 - share);
        let horizon = longest * small / share.max(small);
        Self { price: price.min(most) as f32, horizon: horizon.max(shortest) as f32 }
    }

    /// The same for the budget of `config`.
    #[must_use]
    pub fn of(config: &Config, layout: &Layout) -> Self {
        let all: u64 = layout.layers.iter().map(|layer| u64::from(layer.n_chunks)).sum();
        let bytes = all * u64::from(layout.frame_bytes);
        Self::usual(config.budget_bytes as f64 / bytes.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_there_the_dearer_is_the_rest() {
        let at = |share| {
            let Worth { price, horizon } = Worth::usual(share);
            (price, horizon)
        };
        assert_eq!(at(0.0), (0.07, 8.0));
        assert_eq!(at(0.5), (0.14, 4.0));
        assert_eq!(at(1.0), (0.6, 2.0));
        assert_eq!(at(9.0), (0.6, 2.0));
        assert_eq!(at(-1.0), at(0.0));
        assert_eq!(at(f64::NAN), at(0.0));
        let prices: Vec<f32> = (0..50).map(|i| at(f64::from(i) / 50.0).0).collect();
        assert!(prices.is_sorted());
    }
}
