use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

fn bytes(n: usize, rng: &mut Rng) -> Vec<u8> {
    (0..n).map(|_| rng.next() as u8).collect()
}

proptest! {
    #[test]
    fn projections_equal_their_twins(
        seed in any::<u64>(), rows in 1usize..11, blocks in 1usize..6,
    ) {
        let mut rng = Rng::new(seed, 0);
        let weights = bytes(rows * blocks * ROW, &mut rng);
        let x: Vec<i8> = bytes(blocks * INPUTS, &mut rng).into_iter().map(|x| x as i8).collect();
        for isa in Isa::available() {
            let (mut plain, mut wide) = (vec![0; rows], vec![1; rows]);
            scalar::project_u4(&weights, &x, &mut plain);
            project_u4(isa, &weights, &x, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
        }
    }

    #[test]
    fn sums_of_entries_equal_their_twins(
        seed in any::<u64>(), blocks in 0usize..5, gate in 1usize..9, up in 1usize..9,
    ) {
        let mut rng = Rng::new(seed, 1);
        let codes = bytes(blocks * (gate + up) * ROW, &mut rng);
        let halves = (0..gate + up).map(|_| bytes(ENTRIES, &mut rng));
        let tables: Vec<u8> = halves.flat_map(|half| [half.clone(), half].concat()).collect();
        for isa in Isa::available() {
            let n = 2 * blocks * OUTPUTS;
            let (mut plain, mut wide) = (vec![0; n], vec![1; n]);
            scalar::look_up(&codes, gate, &tables, &mut plain);
            look_up(isa, &codes, gate, &tables, &mut wide);
            prop_assert_eq!(&plain, &wide, "{}", isa);
        }
    }
}

#[test]
fn extremes_do_not_overflow() {
    for isa in Isa::available() {
        let mut out = [0; 5];
        project_u4(isa, &[255; 5 * 8 * ROW], &[-128; 8 * INPUTS], &mut out);
        assert_eq!(out, [-128 * 15 * 8 * INPUTS as i32; 5], "{isa}");
        let mut sums = [0; 2 * OUTPUTS];
        look_up(isa, &[7; 512 * ROW], 256, &[255; 512 * ROW], &mut sums);
        assert_eq!(sums, [255 * 256; 2 * OUTPUTS], "{isa}");
    }
}

/// What an output's code is, in the order of codes.
#[test]
fn codes_lie_as_documented() {
    for output in 0..OUTPUTS {
        let mut codes = [0; 2 * ROW];
        put_code(&mut codes, 2, 1, output, 9);
        let mut tables = [0; 2 * ROW];
        tables[ROW + 9] = 5;
        tables[ROW + ENTRIES + 9] = 5;
        let mut sums = [0; 2 * OUTPUTS];
        for isa in Isa::available() {
            look_up(isa, &codes, 1, &tables, &mut sums);
            for (i, sum) in sums.iter().enumerate() {
                assert_eq!(*sum, if i == OUTPUTS + output { 5 } else { 0 }, "{isa} {i}");
            }
        }
    }
}
