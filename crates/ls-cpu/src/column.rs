//! Columns of the down matrix: one neuron's weights towards every output, side by side.
//!
//! A chunk of neurons is computed whole where it lies, so the down matrix is stored by column and
//! quantised along the outputs. Model files quantise it along the neurons; a column is therefore
//! quantised anew, once, when a model is packed.

use std::fmt;

use half::{bf16, f16};

use crate::quant::GROUP;

/// How the values of a column are stored.
///
/// The quantised formats are groups of 32 values `w = d · q`, with `d` an f16 and `q` a signed
/// integer of as many bits as the name says. A column is the `d` of all its groups, then the
/// integers of each group. They are stored with half of their range added, so that none is
/// negative: `Q8` as 32 bytes; the others as the low four bits of each, byte j with value j in
/// its low and value j + 16 in its high half. `Q5` follows with the fifth bits, bit i of a 32-bit
/// word; `Q6` with the two high bits in 8 bytes, byte j having those of values j, j + 8, j + 16
/// and j + 24 from its low bits up.
///
/// The scales lie apart because a kernel multiplies those of many groups at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ColumnFormat {
    F32,
    F16,
    BF16,
    Q8,
    Q6,
    Q5,
    Q4,
}

/// Bytes of a group's scale.
pub(crate) const SCALE: usize = 2;

impl ColumnFormat {
    /// Every format, in a fixed order.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::BF16, Self::Q8, Self::Q6, Self::Q5, Self::Q4];

    /// Values in one group.
    pub const fn group_len(self) -> usize {
        if self.is_quantized() { GROUP } else { 1 }
    }

    /// Bytes of one group, with its scale.
    pub const fn group_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8 => 34,
            Self::Q6 => 26,
            Self::Q5 => 22,
            Self::Q4 => 18,
        }
    }

    /// Whether values are integers that share a scale.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Bytes of a column of `len` values; `None` if they are not whole groups.
    pub fn column_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.group_len()) {
            return None;
        }
        (len / self.group_len()).checked_mul(self.group_bytes())
    }

    /// Half of the range of `q`: its smallest value is minus this.
    pub(crate) const fn center(self) -> i32 {
        match self {
            Self::Q6 => 32,
            Self::Q5 => 16,
            Self::Q4 => 8,
            _ => 128,
        }
    }
}

impl fmt::Display for ColumnFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Stores `values` in `out`.
///
/// # Panics
///
/// If `out` is not the bytes of so many values.
pub fn quantize_column(format: ColumnFormat, values: &[f32], out: &mut [u8]) {
    assert_eq!(format.column_bytes(values.len()), Some(out.len()), "bytes of a {format} column");
    match format {
        ColumnFormat::F32 => {
            for (x, to) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                *to = x.to_le_bytes();
            }
        }
        ColumnFormat::F16 => {
            for (x, to) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *to = f16::from_f32(*x).to_le_bytes();
            }
        }
        ColumnFormat::BF16 => {
            for (x, to) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *to = bf16::from_f32(*x).to_le_bytes();
            }
        }
        _ => {
            let groups = values.as_chunks::<GROUP>().0;
            let (scales, integers) = out.split_at_mut(groups.len() * SCALE);
            let to = scales.as_chunks_mut().0.iter_mut();
            let to = to.zip(integers.chunks_exact_mut(format.group_bytes() - SCALE));
            for (x, (scale, integers)) in groups.iter().zip(to) {
                let (d, q) = quantize_group(format, x);
                *scale = d.to_le_bytes();
                pack_group(format, &q, integers);
            }
        }
    }
}

/// Reads a column into `out`.
///
/// # Panics
///
/// If `column` is not the bytes of so many values.
pub fn dequantize_column(format: ColumnFormat, column: &[u8], out: &mut [f32]) {
    assert_eq!(format.column_bytes(out.len()), Some(column.len()), "bytes of a {format} column");
    match format {
        ColumnFormat::F32 => {
            for (x, from) in out.iter_mut().zip(column.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*from);
            }
        }
        ColumnFormat::F16 => {
            for (x, from) in out.iter_mut().zip(column.as_chunks::<2>().0) {
                *x = f16::from_le_bytes(*from).to_f32();
            }
        }
        ColumnFormat::BF16 => {
            for (x, from) in out.iter_mut().zip(column.as_chunks::<2>().0) {
                *x = bf16::from_le_bytes(*from).to_f32();
            }
        }
        _ => {
            let groups = out.as_chunks_mut::<GROUP>().0;
            for (x, (d, q)) in groups.iter_mut().zip(quantized_groups(format, column)) {
                *x = q.map(|q| d * f32::from(q));
            }
        }
    }
}

/// Scales and integers of a quantised column's groups.
pub(crate) fn quantized_groups(
    format: ColumnFormat,
    column: &[u8],
) -> impl Iterator<Item = (f32, [i8; GROUP])> {
    let (scales, integers) = column.split_at(column.len() / format.group_bytes() * SCALE);
    let integers = integers.chunks_exact(format.group_bytes() - SCALE);
    scales.as_chunks().0.iter().zip(integers).map(move |(scale, integers)| {
        (f16::from_le_bytes(*scale).to_f32(), unpack_group(format, integers))
    })
}

/// The integers of a group.
fn unpack_group(format: ColumnFormat, group: &[u8]) -> [i8; GROUP] {
    let high = |i: usize| match format {
        ColumnFormat::Q6 => group[16 + i % 8] >> (i / 8 * 2) & 3,
        ColumnFormat::Q5 => group[16 + i / 8] >> (i % 8) & 1,
        _ => 0,
    };
    std::array::from_fn(|i| {
        let q = match format {
            ColumnFormat::Q8 => group[i],
            _ => group[i % 16] >> (i / 16 * 4) & 15 | high(i) << 4,
        };
        (i32::from(q) - format.center()) as i8
    })
}

fn pack_group(format: ColumnFormat, q: &[i32; GROUP], group: &mut [u8]) {
    group.fill(0);
    for (i, q) in q.iter().enumerate() {
        let q = (q + format.center()) as u8;
        if format == ColumnFormat::Q8 {
            group[i] = q;
            continue;
        }
        group[i % 16] |= (q & 15) << (i / 16 * 4);
        match format {
            ColumnFormat::Q6 => group[16 + i % 8] |= q >> 4 << (i / 8 * 2),
            ColumnFormat::Q5 => group[16 + i / 8] |= q >> 4 << (i % 8),
            _ => {}
        }
    }
}

/// Steps of the scale, to either side of the plain one, among which the best is sought.
const SCALE_STEPS: i32 = 9;

/// Quantises a group with the scale that leaves the least squared error, of some that are tried.
///
/// The plain scale lets the largest magnitude fall on the end of the range that has one value
/// more. Others round that value worse and the rest better.
fn quantize_group(format: ColumnFormat, x: &[f32; GROUP]) -> (f16, [i32; GROUP]) {
    let center = format.center() as f32;
    let extreme = x.iter().copied().fold(0f32, |m, x| if x.abs() > m.abs() { x } else { m });
    // Below that the inverse would overflow; a NaN or an infinity must not turn into zeros.
    if extreme.abs() < 1e-30 || !extreme.is_finite() || x.iter().any(|x| x.is_nan()) {
        let whole = x.iter().all(|x| x.is_finite());
        let d = if whole { f16::ZERO } else { f16::NAN };
        return (d, [i32::from(!whole); GROUP]);
    }
    let round =
        |inverse: f32| x.map(|x| (x * inverse).round_ties_even().clamp(-center, center - 1.0));
    let steps = if format == ColumnFormat::Q8 { 1 } else { SCALE_STEPS };
    let mut best = (-1.0, 0.0);
    for step in -steps..=steps {
        let q = round(-(center + 0.1 * step as f32) / extreme);
        let dot: f32 = q.iter().zip(x).map(|(q, x)| q * x).sum();
        let square: f32 = q.iter().map(|q| q * q).sum();
        // With the best scale for these integers, dot / square, the error is Σx² - dot² / square.
        if square > 0.0 && dot * dot / square > best.0 {
            best = (dot * dot / square, dot / square);
        }
    }
    let d = f16::from_f32(best.1);
    // A scale beyond an f16 becomes an infinity, or zero: products show it, or nothing is lost.
    let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
    (d, round(inverse).map(|q| q as i32))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(format: ColumnFormat, x: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; format.column_bytes(x.len()).unwrap()];
        let mut back = vec![0.0; x.len()];
        quantize_column(format, x, &mut bytes);
        dequantize_column(format, &bytes, &mut back);
        back
    }

    proptest! {
        #[test]
        fn values_come_back_within_a_step(x in prop::collection::vec(-4f32..4.0, 64)) {
            for (format, step) in [
                (ColumnFormat::Q8, 1.0 / 128.0),
                (ColumnFormat::Q6, 1.0 / 32.0),
                (ColumnFormat::Q5, 1.0 / 16.0),
                (ColumnFormat::Q4, 1.0 / 8.0),
                (ColumnFormat::BF16, 1.0 / 128.0),
                (ColumnFormat::F16, 1.0 / 1024.0),
                (ColumnFormat::F32, 0.0),
            ] {
                let back = round_trip(format, &x);
                let square = |it: &mut dyn Iterator<Item = f32>| it.map(|e| e * e).sum::<f32>();
                for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                    let max = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                    let error = square(&mut x.iter().zip(back).map(|(x, y)| x - y));
                    // Rounding to the plain scale errs by half a step at most.
                    let bound = 32.0 * (0.5 * step * max).powi(2);
                    prop_assert!(error <= bound * 1.1 + 1e-9, "{format}: {error} > {bound}");
                }
            }
        }

        #[test]
        fn packed_integers_come_back(q in prop::collection::vec(-128i32..128, 32)) {
            for format in ColumnFormat::ALL.into_iter().filter(|f| f.is_quantized()) {
                let q: [i32; 32] =
                    std::array::from_fn(|i| q[i] * format.center() / 128);
                let mut group = vec![0; format.group_bytes() - SCALE];
                pack_group(format, &q, &mut group);
                prop_assert_eq!(unpack_group(format, &group).map(i32::from), q);
            }
        }
    }

    #[test]
    fn odd_values_stay_what_they_are() {
        for format in ColumnFormat::ALL {
            assert_eq!(round_trip(format, &[0.0; 32]), [0.0; 32], "{format}");
            for odd in [f32::NAN, f32::INFINITY] {
                let mut x = [1.0; 32];
                x[7] = odd;
                assert!(!round_trip(format, &x)[7].is_finite(), "{format} hides {odd}");
            }
        }
        let mut tiny = [0.0; 32];
        tiny[3] = 1e-35;
        assert!(round_trip(ColumnFormat::Q6, &tiny).iter().all(|x| x.abs() < 1e-30));
    }

    #[test]
    fn partial_groups_have_no_size() {
        assert_eq!(ColumnFormat::Q6.column_bytes(48), None);
        assert_eq!(ColumnFormat::Q6.column_bytes(64), Some(52));
        assert_eq!(ColumnFormat::F16.column_bytes(3), Some(6));
    }
}
