//! From features to tables. Plain elementwise code, which compiles to wide vectors.

use crate::score::{ROUND, bounded, from_bf16};
use crate::simd::lookup::{ENTRIES, ROW};

/// Features less their means are within this: whatever follows from them is finite.
const LARGEST: f32 = 1e12;

/// Centroids of all groups of one code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Centroids<'a> {
    /// Components of each group.
    pub widths: &'a [u8],
    /// The components themselves, group after group.
    pub components: &'a [u16],
    /// What a step of each component's centroids counts.
    pub scales: &'a [f32],
    /// `[component][entry]`.
    pub entries: &'a [[i8; ENTRIES]],
}

/// Ranges of the entries of tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spans {
    pub widest: f32,
    pub sum: f32,
}

impl Spans {
    /// What a step of a byte counts, so that no entry exceeds a byte, and no sum of `n` entries, each
    /// rounded up by half a step at most, 16 bits.
    pub(crate) fn step(self, n: usize) -> f32 {
        let step = (self.widest / 255.0).max(self.sum / (65_535 - n) as f32);
        step.max(f32::MIN_POSITIVE * 256.0)
    }
}

/// `out = x − mean`, and the largest magnitude of it.
#[inline(always)]
pub(crate) fn centre(x: &[f32], means: &[u16], out: &mut [f32], largest: &mut f32) {
    let mut most = [0.0f32; 16];
    let (whole, rest) = out.as_chunks_mut::<16>();
    let (x, x_rest) = x.as_chunks::<16>();
    let (means, means_rest) = means.as_chunks::<16>();
    for ((out, x), means) in whole.iter_mut().zip(x).zip(means) {
        for i in 0..16 {
            out[i] = bounded(x[i] - from_bf16(means[i]), LARGEST);
            most[i] = most[i].max(out[i].abs());
        }
    }
    for ((out, x), mean) in rest.iter_mut().zip(x_rest).zip(means_rest) {
        *out = bounded(x - from_bf16(*mean), LARGEST);
        most[0] = most[0].max(out.abs());
    }
    *largest = most.into_iter().fold(0.0, f32::max);
}

/// `out = x · by`, rounded; the products are within ±127.
#[inline(always)]
pub(crate) fn to_bytes(x: &[f32], by: f32, out: &mut [i8]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = (bounded(x * by, 127.0) + ROUND).to_bits() as i8;
    }
}

/// `out[group][entry] = Σ centroid · z` over the group's components; the least of each group, and
/// how wide the groups' ranges are.
#[inline(always)]
pub(crate) fn fill(
    centroids: Centroids<'_>,
    z: &[f32],
    out: &mut [[f32; ENTRIES]],
    offsets: &mut [f32],
    spans: &mut Spans,
) {
    let mut at = 0;
    *spans = Spans::default();
    for ((out, width), offset) in out.iter_mut().zip(centroids.widths).zip(offsets) {
        *out = [0.0; ENTRIES];
        let end = at + usize::from(*width);
        let scales = centroids.components[at..end].iter().zip(&centroids.scales[at..end]);
        for ((component, scale), entries) in scales.zip(&centroids.entries[at..end]) {
            let z = z[usize::from(*component)] * scale;
            for i in 0..ENTRIES {
                out[i] += z * f32::from(entries[i]);
            }
        }
        at = end;
        let [mut least, mut most] = [*out; 2];
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                least[i] = least[i].min(least[i + half]);
                most[i] = most[i].max(most[i + half]);
            }
        }
        *offset = least[0];
        spans.widest = spans.widest.max(most[0] - least[0]);
        spans.sum += most[0] - least[0];
    }
}

/// `(table − offset) · by` as bytes, each table twice.
#[inline(always)]
pub(crate) fn round(tables: &[[f32; ENTRIES]], offsets: &[f32], by: f32, out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<ROW>();
    for ((out, table), offset) in out.iter_mut().zip(tables).zip(offsets) {
        for i in 0..ENTRIES {
            let entry = bounded((table[i] - offset) * by, 255.0);
            let entry = (entry + ROUND).to_bits() as u8;
            out[i] = entry;
            out[i + ENTRIES] = entry;
        }
    }
}
