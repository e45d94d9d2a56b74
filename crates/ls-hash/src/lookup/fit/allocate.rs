//! Which components a code describes, and how finely.

use crate::lookup::shape::MAX_WIDTH;

/// Share of the variance that 4 bits leave of a group of 1 to 4 normal components: Lloyd–Max in one
/// dimension, the best known quantisers in more.
const LEFT: [f64; MAX_WIDTH] = [0.0095, 0.107, 0.235, 0.34];

/// Components of `n_groups` groups that leave the least of the variances: components in descending
/// order of variance, in groups that become wider.
pub(crate) fn groups(variances: &[f64], n_groups: usize) -> Vec<Vec<u16>> {
    let mut order: Vec<u16> = (0..variances.len() as u16).collect();
    order.sort_by(|a, b| variances[usize::from(*b)].total_cmp(&variances[usize::from(*a)]));
    let mut sums = vec![0.0];
    for i in &order {
        sums.push(sums[sums.len() - 1] + variances[usize::from(*i)].max(0.0));
    }
    let mut at = 0;
    let groups = widths(&sums, n_groups).into_iter().map(|width| {
        at += width;
        order[at - width..at].to_vec()
    });
    groups.collect()
}

/// Widths of groups by dynamic programming over how many components the first groups describe;
/// `sums` are those of the leading variances.
fn widths(sums: &[f64], n_groups: usize) -> Vec<usize> {
    let n = sums.len() - 1;
    let n_groups = n_groups.min(n);
    // What is saved at most by describing so many components in so many groups.
    let mut best = vec![f64::NEG_INFINITY; n + 1];
    best[0] = 0.0;
    let mut chosen: Vec<Vec<u8>> = Vec::with_capacity(n_groups);
    for _ in 0..n_groups {
        let mut next = vec![f64::NEG_INFINITY; n + 1];
        let mut choice = vec![0; n + 1];
        for end in 1..=n {
            for (i, left) in LEFT.iter().enumerate().take(end) {
                let begin = end - i - 1;
                let saved = best[begin] + (1.0 - left) * (sums[end] - sums[begin]);
                if saved > next[end] {
                    (next[end], choice[end]) = (saved, i as u8 + 1);
                }
            }
        }
        chosen.push(choice);
        best = next;
    }
    let mut end = (0..=n).max_by(|a, b| best[*a].total_cmp(&best[*b])).unwrap_or(0);
    let mut widths = Vec::with_capacity(n_groups);
    for choice in chosen.iter().rev() {
        let width = usize::from(choice[end]);
        widths.push(width);
        end -= width;
    }
    widths.reverse();
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_components_get_groups_of_their_own() {
        let variances: Vec<f64> = (0..40).map(|i| 0.8f64.powi((i * 7) % 40)).collect();
        let groups = groups(&variances, 12);
        assert_eq!(groups.len(), 12);
        assert_eq!(groups[0], [0]);
        assert!(groups.iter().all(|group| (1..=MAX_WIDTH).contains(&group.len())));
        assert!(groups.is_sorted_by_key(|group| group.len()));
        let mut all: Vec<u16> = groups.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), groups.concat().len());
    }

    #[test]
    fn extremes_of_numbers_are_served() {
        assert_eq!(groups(&[1.0, 2.0, 3.0], 3), [[2], [1], [0]]);
        assert_eq!(groups(&[0.0; 5], 2).len(), 2);
        assert_eq!(groups(&[1.0; 100], 1)[0].len(), MAX_WIDTH);
    }

    /// As good as the best of all ways to divide.
    #[test]
    fn nothing_saves_more() {
        let sums = [0.0, 5.0, 8.0, 9.0, 9.5, 9.8, 9.9];
        let saved = |widths: &[usize]| {
            let mut at = 0;
            let parts = widths.iter().map(|width| {
                at += width;
                (1.0 - LEFT[width - 1]) * (sums[at] - sums[at - width])
            });
            parts.sum::<f64>()
        };
        let found = saved(&widths(&sums, 3));
        for a in 1..=MAX_WIDTH {
            for b in 1..=MAX_WIDTH {
                for c in 1..=MAX_WIDTH {
                    if a + b + c < sums.len() {
                        assert!(saved(&[a, b, c]) <= found + 1e-12);
                    }
                }
            }
        }
    }
}
