use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

fn bytes(n: usize, rng: &mut Rng) -> Vec<i8> {
    (0..n).map(|_| (rng.below(255) as i16 - 127) as i8).collect()
}

proptest! {
    #[test]
    fn projections_equal_their_twins(
        seed in any::<u64>(), n_bits in 1usize..20, per_bit in 1usize..9, sparse in any::<bool>(),
    ) {
        let mut rng = Rng::new(seed, 0);
        let n_blocks = per_bit + 3;
        let blocks: Vec<u16> =
            (0..n_bits * per_bit).map(|_| rng.below(n_blocks) as u16).collect();
        let layout = Layout { per_bit, blocks: sparse.then_some(&blocks) };
        let weights = bytes(n_bits * per_bit * BLOCK, &mut rng);
        let planes: Vec<[u32; 2]> = (0..n_bits * per_bit)
            .map(|_| [rng.next() as u32, rng.next() as u32])
            .collect();
        let x = bytes(n_blocks * BLOCK, &mut rng);
        for isa in Isa::available() {
            let (mut plain, mut wide) = (vec![0; n_bits], vec![1; n_bits]);
            scalar::project_i8(layout, &weights, &x, &mut plain);
            project_i8(isa, layout, &weights, &x, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
            scalar::project_ternary(layout, &planes, &x, &mut plain);
            project_ternary(isa, layout, &planes, &x, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
        }
    }

    #[test]
    fn products_of_codes_equal_their_twins(
        seed in any::<u64>(), n_words in 1usize..70, n_planes in 0usize..7,
    ) {
        let mut rng = Rng::new(seed, 1);
        let codes: Vec<u64> = (0..n_planes * n_words * LANES).map(|_| rng.next()).collect();
        let bits: Vec<u64> = (0..n_words).map(|_| rng.next()).collect();
        for isa in Isa::available() {
            let (mut plain, mut wide) = (vec![0; n_planes * LANES], vec![1; n_planes * LANES]);
            scalar::dots(&codes, &bits, &mut plain);
            dots(isa, &codes, &bits, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
        }
    }

    #[test]
    fn comparisons_equal_their_twins(
        keys in prop::collection::vec(any::<u16>(), 0..300), least in any::<u16>(),
    ) {
        let n = keys.len().div_ceil(64);
        for isa in Isa::available() {
            let (mut plain, mut wide) = (vec![1; n], vec![2; n]);
            scalar::at_least(&keys, least, &mut plain);
            at_least(isa, &keys, least, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
        }
    }
}

#[test]
fn extremes_do_not_saturate() {
    let layout = Layout { per_bit: 2, blocks: None };
    for isa in Isa::available() {
        for (w, x) in [(127, 127), (-127, 127), (-127, -127)] {
            let mut out = [0];
            project_i8(isa, layout, &[w; 64], &[x; 64], &mut out);
            assert_eq!(out[0], 64 * i32::from(w) * i32::from(x), "{isa}");
        }
        // Forty words that all differ: more than bytes can count.
        let mut out = [0; LANES];
        dots(isa, &[u64::MAX; 40 * LANES], &[0; 40], &mut out);
        assert_eq!(out, [-40 * 64; LANES], "{isa}");
    }
}
