//! Look-up predictors as bytes.
//!
//! Little-endian throughout: 4 bytes of magic, a u32 version, the content, and the xxh3 of all before.
//! A reader asks for the sizes first; the lengths of all parts follow from them.
//!
//! | part | type | count |
//! |---|---|---|
//! | inputs, outputs, components, groups of the gate and of the other factor, kinds | u32 | 6 |
//! | decay, then the base of the gains' bytes | f32, u32 | 1 each |
//! | steps of the projection's rows | f32 | components |
//! | projection, two inputs a byte | u8 | components × padded inputs / 2 |
//! | for each factor: widths of its groups | u8 | groups |
//! | … the components in them | u16 | sum of the widths |
//! | … a step of each, and its centroids | f32, 16 × i8 | sum of the widths |
//! | … scales and biases of the outputs, upper halves of f32 | u16 | padded outputs, each |
//! | codes | u8 | padded outputs / 2 × groups of both |
//! | gains | u8 | padded outputs |
//! | for each kind: means, upper halves of f32 | u16 | inputs |
//! | … bases of the deviations' bytes; weights, correlations, explained shares | 2 × u32; 6 × f32 | 1 |
//! | … deviations of both factors | u8 | 2 × padded outputs |

use crate::error::HashError;
use crate::format::{Reader, Writer};
use crate::isa::Isa;
use crate::lookup::expect::Byte;
use crate::lookup::predictor::{Code, Kind, LookupPredictor};
use crate::lookup::shape::LookupShape;
use crate::simd::lookup::ENTRIES;

const MAGIC: [u8; 4] = *b"LSLP";
const VERSION: u32 = 1;
const WHAT: &str = "look-up predictor";

impl LookupPredictor {
    /// The predictor as bytes, which [`Self::from_bytes`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(MAGIC, VERSION);
        let LookupShape { n_inputs, n_outputs, n_components, gate_groups, up_groups, n_kinds } =
            self.shape;
        for size in [n_inputs, n_outputs, n_components, gate_groups, up_groups, n_kinds] {
            to.u32(size as u32);
        }
        to.all(&[self.decay]);
        to.u32(self.gain_byte.base);
        to.all(&self.rows);
        to.all(&self.weights);
        self.factors.iter().for_each(|code| write_code(&mut to, code));
        to.all(&self.codes);
        to.all(&self.gains);
        self.kinds.iter().for_each(|kind| write_kind(&mut to, kind));
        to.finish()
    }

    /// The predictor that [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are of something else, cut, damaged or of no sound predictor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HashError> {
        let mut from = Reader::new(bytes, WHAT, MAGIC, VERSION)?;
        let mut size = || from.u32("the sizes").map(|n| n as usize);
        let shape = LookupShape {
            n_inputs: size()?,
            n_outputs: size()?,
            n_components: size()?,
            gate_groups: size()?,
            up_groups: size()?,
            n_kinds: size()?,
        };
        shape.check()?;
        let n = shape.padded_outputs();
        let decay = from.all::<f32>("the decay", 1)?[0];
        let gain_byte = Byte { base: from.u32("the gains")? };
        let rows = from.all("the steps of rows", shape.n_components)?;
        let weights = from.all("the projection", shape.n_components * shape.row())?;
        let gate = read_code(&mut from, shape.gate_groups, n)?;
        let up = read_code(&mut from, shape.up_groups, n)?;
        let codes = from.all("codes", n / 2 * shape.n_groups())?;
        let gains = from.all("gains", n)?;
        let kinds = (0..shape.n_kinds).map(|_| read_kind(&mut from, &shape));
        let kinds = kinds.collect::<Result<_, _>>()?;
        from.finish()?;
        let made = Self {
            shape,
            rows,
            weights,
            factors: [gate, up],
            codes,
            gains,
            gain_byte,
            kinds,
            decay,
            isa: Isa::detect(),
        };
        made.check()?;
        Ok(made)
    }
}

fn write_code(to: &mut Writer, code: &Code) {
    to.all(&code.widths);
    to.all(&code.components);
    to.all(&code.scales);
    code.entries.iter().for_each(|entries| to.all(entries));
    to.all(&code.scale);
    to.all(&code.bias);
}

fn read_code(from: &mut Reader<'_>, groups: usize, n: usize) -> Result<Code, HashError> {
    let widths: Vec<u8> = from.all("widths of groups", groups)?;
    let total = widths.iter().map(|width| usize::from(*width)).sum();
    let components = from.all("components of groups", total)?;
    let scales = from.all("steps of centroids", total)?;
    let entries: Vec<i8> = from.all("centroids", total * ENTRIES)?;
    let entries = entries.as_chunks::<ENTRIES>().0.to_vec();
    let (scale, bias) = (from.all("scales", n)?, from.all("biases", n)?);
    Ok(Code { widths, components, scales, entries, scale, bias })
}

fn write_kind(to: &mut Writer, kind: &Kind) {
    to.all(&kind.means);
    kind.bytes.iter().for_each(|byte| to.u32(byte.base));
    for pair in [kind.by, kind.rho, kind.explained] {
        to.all(&pair);
    }
    kind.deviation.iter().for_each(|deviation| to.all(deviation));
}

fn read_kind(from: &mut Reader<'_>, shape: &LookupShape) -> Result<Kind, HashError> {
    let means = from.all("means", shape.n_inputs)?;
    let mut byte = || from.u32("deviations").map(|base| Byte { base });
    let bytes = [byte()?, byte()?];
    let mut pair = |what| from.all::<f32>(what, 2).map(|pair| [pair[0], pair[1]]);
    let by = pair("weights of a kind")?;
    let rho = pair("correlations")?;
    let explained = pair("explained shares")?;
    let n = shape.padded_outputs();
    let deviation = [from.all("deviations", n)?, from.all("deviations", n)?];
    Ok(Kind { means, deviation, bytes, by, rho, explained })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lookup::shape::FeatureKind;
    use crate::rng::Rng;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn predictors_come_back(
            n_inputs in 16usize..90, n_outputs in 1usize..200, n_components in 1usize..16,
            gate_groups in 1usize..8, up_groups in 1usize..8, n_kinds in 1usize..4, seed: u64,
        ) {
            let shape =
                LookupShape { n_inputs, n_outputs, n_components, gate_groups, up_groups, n_kinds };
            let Ok(made) = LookupPredictor::random(shape, seed) else { return Ok(()) };
            let bytes = made.to_bytes();
            prop_assert_eq!(&LookupPredictor::from_bytes(&bytes).unwrap(), &made);
            for cut in [0, 7, bytes.len() / 2, bytes.len() - 1] {
                prop_assert!(LookupPredictor::from_bytes(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn outputs_in_another_order_have_the_same_scores(
            n_inputs in 16usize..90, n_outputs in 1usize..200, groups in 1usize..8, seed: u64,
        ) {
            let shape = LookupShape {
                n_inputs, n_outputs, n_components: 9, gate_groups: groups, up_groups: 3, n_kinds: 2,
            };
            let Ok(made) = LookupPredictor::random(shape, seed) else { return Ok(()) };
            let mut rng = Rng::new(seed, 1);
            let mut order: Vec<u32> = (0..n_outputs as u32).collect();
            for i in (1..n_outputs).rev() {
                order.swap(i, rng.below(i + 1));
            }
            let other = made.reordered(&order).unwrap();
            let features: Vec<f32> = (0..n_inputs).map(|i| (i as f32 * 0.7).sin()).collect();
            for kind in [FeatureKind::Exact, FeatureKind::Speculative] {
                let (mut a, mut b) = (made.state(), other.state());
                made.set(&mut a, &features, kind);
                other.set(&mut b, &features, kind);
                let expected: Vec<f32> = order.iter().map(|i| a.scores()[*i as usize]).collect();
                prop_assert_eq!(b.scores(), &expected[..]);
            }
            let mut back = vec![0; n_outputs];
            order.iter().enumerate().for_each(|(i, from)| back[*from as usize] = i as u32);
            prop_assert_eq!(&other.reordered(&back).unwrap(), &made);
            order[0] = *order.last().unwrap();
            prop_assert_eq!(made.reordered(&order).is_err(), n_outputs > 1);
            prop_assert!(made.reordered(&order[1..]).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_is_seen() {
        let shape = LookupShape::within(64, 100, 20_000, 2).unwrap();
        let bytes = LookupPredictor::random(shape, 1).unwrap().to_bytes();
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(LookupPredictor::from_bytes(&damaged).is_err(), "byte {at}");
        }
    }
}
