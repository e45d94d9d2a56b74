//! What host and device share while stages run: lists, inputs, partial sums, results.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::Work;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Result, VkError};
use crate::format::GROUP;
use crate::kernels::mlp::{HEADER_WORDS, Plan, RING, Variant, X_SLOTS};
use crate::memory::MemoryKind;

const FLAG_NEURONS: u32 = 1 << 16;
pub(super) const FLAG_FIRST: u32 = 1 << 17;
pub(super) const FLAG_OUTPUT: u32 = 1 << 18;
pub(super) const FLAG_PARK: u32 = 1 << 19;
const FLAG_HALF: u32 = 1 << 20;
pub(super) const FLAG_FRESH: u32 = 1 << 21;
const X_SLOT_SHIFT: u32 = 22;

/// The last word of a stage's header, but for what is only known when it is posted.
pub(super) fn bits(work: &Work, pass: u64) -> u32 {
    let per = work.per_entry();
    let kind = if matches!(work, Work::Neurons(_)) { FLAG_NEURONS } else { 0 };
    let half = if pass % 2 == 1 { FLAG_HALF } else { 0 };
    per | kind | half | ((pass % u64::from(X_SLOTS)) as u32) << X_SLOT_SHIFT
}

/// The lists of stages that the device watches, one slot for each place of the ring.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    lists: Arc<Buffer>,
    list_words: u32,
}

impl Mailbox {
    /// First word of the slot of a stage.
    fn slot(&self, number: u32) -> u64 {
        u64::from(number % RING * self.list_words)
    }

    /// Writes all of a stage but its number, which [`Mailbox::ring`] adds.
    pub fn write(&self, number: u32, entries: &[u32], bits: u32) -> Result<()> {
        let slot = self.slot(number);
        self.lists.write_words(4 * (slot + u64::from(HEADER_WORDS)), entries)?;
        self.lists.write_words(4 * (slot + 2), &[entries.len() as u32, bits])
    }

    /// Tells the device that a stage is there: after all else of it.
    pub fn ring(&self, number: u32) -> Result<()> {
        self.lists.post(self.slot(number), number)
    }

    /// Writes a stage that ends a persistent dispatch.
    pub fn ring_park(&self, number: u32) -> Result<()> {
        self.write(number, &[], FLAG_PARK)?;
        self.ring(number)
    }

    /// Takes back that a stage has come to its slot. Only while no dispatch watches.
    pub fn unring(&self, number: u32) -> Result<()> {
        self.lists.post(self.slot(number), number.wrapping_sub(RING))
    }

    /// Takes back that a dispatch has parked at a stage's slot. Only while none watches.
    pub fn unpark(&self, number: u32) -> Result<()> {
        self.lists.post(self.slot(number) + 1, 0)
    }
}

/// The buffers of a runner.
#[derive(Debug)]
pub(super) struct Memory {
    pub mailbox: Mailbox,
    pub inputs: Arc<Buffer>,
    pub partials: Arc<Buffer>,
    pub results: Arc<Buffer>,
    /// Results of the stage in hand; how many have come, and the stage.
    values: Vec<f32>,
    collected: (usize, u32),
    scratch: Vec<u32>,
}

impl Memory {
    pub fn new(device: &Arc<Device>, plan: &Plan, completion: MemoryKind) -> Result<Self> {
        // Where the device reads it fastest among what the host can write.
        let mapped = device.limits().mapped_device_memory;
        let near = if mapped { MemoryKind::Mapped } else { MemoryKind::Upload };
        let buffer = |kind, bytes: u64, name| {
            let limit = device.limits().max_storage_range;
            if bytes > limit {
                return Err(VkError::Limit { what: "bytes of a buffer", needed: bytes, limit });
            }
            Buffer::new(device, kind, bytes, name).map(Arc::new)
        };
        let (list_words, d_model) = (plan.list_words(), plan.shape.d_model);
        let lists = buffer(near, 4 * u64::from(RING * list_words), "stage lists")?;
        let results = buffer(completion, 4 * u64::from(RING) * d_model as u64, "stage results")?;
        // Zero is the number of no stage.
        lists.fill(0)?;
        results.fill(0xff)?;
        Ok(Self {
            mailbox: Mailbox { lists, list_words },
            inputs: buffer(near, 4 * u64::from(X_SLOTS * plan.x_words()), "stage inputs")?,
            partials: buffer(MemoryKind::Device, plan.partial_bytes(), "partial sums")?,
            results,
            values: vec![0.0; d_model],
            collected: (0, 0),
            scratch: vec![],
        })
    }

    pub fn lists(&self) -> &Arc<Buffer> {
        &self.mailbox.lists
    }

    pub fn write_input(&mut self, plan: &Plan, slot: u32, x: &[f32]) -> Result<()> {
        encode_input(plan.variant(), x, &mut self.scratch);
        self.inputs.write_words(4 * u64::from(slot * plan.x_words()), &self.scratch)
    }

    /// Collects the results of a stage as they come; whether all have.
    pub fn collect(&mut self, number: u32) -> Result<bool> {
        if self.collected.1 != number {
            self.collected = (0, number);
        }
        let (n, from) = (self.values.len(), self.collected.0);
        let first = u64::from(number % RING) * n as u64;
        self.collected.0 +=
            self.results.take_present(first + from as u64, &mut self.values[from..])?;
        let all = self.collected.0 == n;
        if all {
            // For the next stage of this place. Ordered before it is posted.
            self.results.clear(first, n)?;
        }
        Ok(all)
    }

    /// Results that were collected, for a vector whose memory is used for the next.
    pub fn take_results(&mut self, mut spare: Vec<f32>) -> Vec<f32> {
        spare.resize(self.values.len(), 0.0);
        std::mem::replace(&mut self.values, spare)
    }
}

/// The input as the kernels of a variant read it: floats, halves or bytes, in quads of four words,
/// the first quad of each 32 values before the second ones. At the end, for each 32, their scale, the
/// sums of each half of what they stand for, and nothing. Of each four halves, the first word has the
/// first and the third, the second word the others.
pub fn encode_input(variant: Variant, x: &[f32], words: &mut Vec<u32>) {
    let groups = x.as_chunks::<GROUP>().0;
    match variant {
        Variant::One | Variant::Plain | Variant::Subgroups => {
            encode_groups(groups, words, encode_floats);
        }
        Variant::Half => encode_groups(groups, words, encode_halves),
        Variant::Dot => encode_groups(groups, words, encode_bytes),
    }
}

/// `N` quads of each group, and its last.
fn encode_groups<const N: usize>(
    groups: &[[f32; GROUP]],
    words: &mut Vec<u32>,
    encode: impl Fn(&[f32; GROUP], &mut [[u32; 4]; N]) -> [u32; 4],
) {
    words.resize(4 * (N + 1) * groups.len(), 0);
    let quads = words.as_chunks_mut::<4>().0;
    for (i, group) in groups.iter().enumerate() {
        let mut values = [[0; 4]; N];
        let rest = encode(group, &mut values);
        for (k, quad) in values.into_iter().enumerate() {
            quads[k * groups.len() + i] = quad;
        }
        quads[N * groups.len() + i] = rest;
    }
}

/// Scale of a group whose largest magnitude becomes `to`, and its inverse.
fn scale_of(group: &[f32; GROUP], to: f32) -> (f32, f32) {
    // As integers, magnitudes are in the same order, and a NaN is the largest of all. In lanes and
    // signed, so that compilers take vectors: the device waits for the input.
    let mut lanes = [0i32; 8];
    for part in group.as_chunks::<8>().0 {
        for (most, x) in lanes.iter_mut().zip(part) {
            let size = x.abs().to_bits() as i32;
            *most = if size > *most { size } else { *most };
        }
    }
    let largest = lanes.into_iter().fold(0, i32::max);
    // What is not finite stays so: a NaN as the scale spoils the sum visibly.
    match f32::from_bits(largest as u32) {
        x if !x.is_finite() => (f32::NAN, 0.0),
        x if x > 1e-30 => (x * to.recip(), to / x),
        _ => (0.0, 0.0),
    }
}

/// 32 values as they are, and the sums of each half.
fn encode_floats(group: &[f32; GROUP], quads: &mut [[u32; 4]; 8]) -> [u32; 4] {
    for (to, x) in quads.as_flattened_mut().iter_mut().zip(group) {
        *to = x.to_bits();
    }
    let sum = |half: &[f32]| half.iter().sum::<f32>().to_bits();
    [1f32.to_bits(), sum(&group[..16]), sum(&group[16..]), 0]
}

/// 32 values as halves, their scale, and the sums of each half of what the halves stand for.
fn encode_halves(group: &[f32; GROUP], quads: &mut [[u32; 4]; 4]) -> [u32; 4] {
    // Products with small weights stay clear of the least halves, which a device may take for zero,
    // and 8 products with bytes (128 at most) stay below the largest half.
    const LARGEST: f32 = 32.0;
    let (scale, inverse) = scale_of(group, LARGEST);
    let (mut values, mut halves) = (*group, [f16::ZERO; GROUP]);
    values.iter_mut().for_each(|x| *x *= inverse);
    halves.convert_from_f32_slice(&values);
    halves.convert_to_f32_slice(&mut values);
    let pair = |a: f16, b: f16| u32::from(a.to_bits()) | u32::from(b.to_bits()) << 16;
    for (to, [a, b, c, d]) in
        quads.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(halves.as_chunks().0)
    {
        *to = [pair(*a, *c), pair(*b, *d)];
    }
    let sum = |half: &[f32]| (scale * half.iter().sum::<f32>()).to_bits();
    [scale.to_bits(), sum(&values[..16]), sum(&values[16..]), 0]
}

/// 32 values as bytes, their scale, and the sums of each half of what the bytes stand for.
fn encode_bytes(group: &[f32; GROUP], quads: &mut [[u32; 4]; 2]) -> [u32; 4] {
    // Adding it rounds to nearest and leaves the integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let (scale, inverse) = scale_of(group, 127.0);
    let (mut integers, mut bytes) = ([0i32; GROUP], [0u8; GROUP]);
    for (to, x) in integers.iter_mut().zip(group) {
        *to = (x * inverse + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32;
    }
    for (to, q) in bytes.iter_mut().zip(integers) {
        *to = q as u8;
    }
    for (to, q) in quads.as_flattened_mut().iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_le_bytes(*q);
    }
    // What is not finite has any integers: its scale spoils the sum.
    let sum = |half: &[i32]| scale * half.iter().fold(0i32, |sum, q| sum.wrapping_add(*q)) as f32;
    let (low, high) = integers.split_at(GROUP / 2);
    [scale.to_bits(), sum(low).to_bits(), sum(high).to_bits(), 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_for_the_input_and_nan_stays_visible() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 0.1).collect();
        let mut words = vec![];
        encode_input(Variant::Dot, &x, &mut words);
        assert_eq!(words.len(), 64 / 4 + 2 * 4);
        let scale = f32::from_bits(words[16 + 4]);
        // The second quad of the second block.
        let byte = (words[8 + 4 + 3] >> 24) as u8 as i8;
        assert!((f32::from(byte) * scale - x[63]).abs() < 0.02);
        let sum = f32::from_bits(words[16 + 6]);
        assert!((sum - x[48..].iter().sum::<f32>()).abs() < 0.2);
        for value in [f32::INFINITY, f32::NAN] {
            let mut bad = x.clone();
            bad[3] = value;
            encode_input(Variant::Dot, &bad, &mut words);
            assert!(f32::from_bits(words[16]).is_nan(), "{value}");
        }
        encode_input(Variant::Plain, &x, &mut words);
        assert_eq!(words.len(), 64 + 2 * 4);
        // Values 32 and 4.
        assert_eq!((words[4], words[8]), (x[32].to_bits(), x[4].to_bits()));
        assert_eq!(f32::from_bits(words[64 + 1]), x[..16].iter().sum::<f32>());
    }

    #[test]
    fn halves_stand_for_the_input_and_nan_stays_visible() {
        let mut x: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 0.1).collect();
        x[5] = -1e-9;
        let mut words = vec![];
        encode_input(Variant::Half, &x, &mut words);
        assert_eq!(words.len(), 64 / 2 + 2 * 4);
        for (i, x) in x.iter().enumerate() {
            // Of four, the first and the third in the low word.
            let (block, word) = (i / 32, i % 32 / 4 * 2 + i % 2);
            let (word, shift) = (words[(word / 4 * 2 + block) * 4 + word % 4], i % 4 / 2 * 16);
            let half = f16::from_bits((word >> shift) as u16).to_f32();
            assert!(half.abs() <= 32.0);
            let error = half * f32::from_bits(words[32 + i / 32 * 4]) - x;
            assert!(error.abs() <= x.abs() / 2040.0 + 1e-8, "{i}: {error} of {x}");
        }
        for (i, half) in x.as_chunks::<16>().0.iter().enumerate() {
            let sum = f32::from_bits(words[32 + i / 2 * 4 + 1 + i % 2]);
            assert!((sum - half.iter().sum::<f32>()).abs() < 0.01, "{i}: {sum}");
        }
        for (bad, others) in [(f32::NAN, 1.0), (f32::NEG_INFINITY, 1.0), (f32::NAN, 0.0)] {
            let mut x = [others; 64];
            x[40] = bad;
            encode_input(Variant::Half, &x, &mut words);
            assert!(f32::from_bits(words[36]).is_nan() && f32::from_bits(words[37]).is_nan());
            assert!(f32::from_bits(words[32]).is_finite());
        }
        // Whatever floats hold, halves are in range.
        for size in [f32::MAX, 1e-29, 1e-31, f32::MIN_POSITIVE, 0.0] {
            encode_input(Variant::Half, &[size; 32], &mut words);
            let (half, scale) = (f16::from_bits(words[0] as u16), f32::from_bits(words[16]));
            let error = half.to_f32() * (scale / size.max(1e-30)) - size / size.max(1e-30);
            assert!(error.abs() <= 1e-3 || size < 1e-30, "{size}: {half} {scale}");
            assert!(half.is_finite() && scale.is_finite());
        }
    }
}
