//! The MLP kernels against their twin: every format and variant, odd shapes, narrow devices.

use std::sync::Arc;

use half::f16;
use ls_vk::control::{Mode, Runner, RunnerOptions, Work, encode_input};
use ls_vk::format::{ColumnFormat, RowFormat};
use ls_vk::kernels::mlp::{Activation, MlpShape, Tuning, Variant};
use ls_vk::twin::{self, Random};
use ls_vk::{Device, Limits, Slab, VkError};

use crate::{Checked, TIMEOUT};

/// Frames of random neurons, on the device and here.
#[derive(Debug)]
pub struct Layer {
    pub shape: MlpShape,
    pub slab: Arc<Slab>,
    pub frames: Vec<(Vec<u8>, u32)>,
    pub per_frame: u32,
}

/// A shape whose parts follow each other with `gap` bytes between them.
pub fn shape(
    d: usize,
    (gate, up, down): (RowFormat, RowFormat, ColumnFormat),
    per_frame: usize,
    gap: usize,
) -> MlpShape {
    let row = |format: RowFormat| format.row_bytes(d).unwrap();
    let up_at = per_frame * row(gate) + gap;
    let down_at = up_at + per_frame * row(up) + gap;
    MlpShape { d_model: d, gate, up, down, up_at, down_at, activation: Activation::Silu }
}

impl Layer {
    pub fn new(device: &Arc<Device>, shape: MlpShape, sizes: &[u32]) -> Self {
        let per_frame = *sizes.iter().max().unwrap();
        let bytes = (shape.bytes_for(per_frame as usize) + 8).next_multiple_of(4);
        let slab = Slab::new(device, bytes as u32, sizes.len() as u32, None).unwrap();
        let mut random = Random::new(shape.d_model as u64 + sizes.len() as u64);
        let frames: Vec<(Vec<u8>, u32)> =
            sizes.iter().map(|n| (random.frame(&shape, *n as usize, bytes), *n)).collect();
        for (i, (frame, _)) in frames.iter().enumerate() {
            let mut writer = slab.write(i as u32).unwrap();
            writer.copy_from_slice(frame);
            writer.finish().unwrap();
        }
        Self { shape, slab, frames, per_frame }
    }

    pub fn all(&self) -> Work {
        let frames = self.frames.iter().enumerate().map(|(i, (_, n))| (i as u32, *n)).collect();
        Work::Frames { per_frame: self.per_frame, frames }
    }

    /// The largest error relative to the magnitude of what is summed up.
    pub fn error(&self, work: &Work, x: &[f64], out: &[f32]) -> f64 {
        let neurons: Vec<(u32, u32)> = match work {
            Work::Frames { frames, .. } => {
                frames.iter().flat_map(|(f, n)| (0..*n).map(move |j| (*f, j))).collect()
            }
            Work::Neurons(neurons) => neurons.clone(),
        };
        let of = neurons.iter().map(|(f, j)| (&self.frames[*f as usize].0[..], *j as usize));
        let answer = twin::mlp(&self.shape, of, x);
        let error = |((got, want), size): ((&f32, &f64), &f64)| {
            // A NaN must not pass for the smallest error.
            let error = (f64::from(*got) - want).abs() / (size + 1e-9);
            if error.is_nan() { f64::INFINITY } else { error }
        };
        out.iter().zip(&answer.out).zip(&answer.magnitude).map(error).fold(0.0, f64::max)
    }
}

pub fn run(runner: &mut Runner, x: &[f32], work: &Work) -> Vec<f32> {
    runner.begin(x, TIMEOUT).unwrap();
    let ticket = runner.queue(work, true, vec![]).unwrap();
    let mut out = vec![f32::NAN; x.len()];
    runner.output(ticket, &mut out, TIMEOUT).unwrap();
    out
}

/// What the kernel's input stands for: for bytes and halves, their values.
fn seen_input(variant: Variant, x: &[f32]) -> Vec<f64> {
    let mut words = vec![];
    encode_input(variant, x, &mut words);
    let (values, rest) = match variant {
        Variant::Dot => words.split_at(x.len() / 4),
        Variant::Half => words.split_at(x.len() / 2),
        Variant::One | Variant::Plain | Variant::Subgroups => {
            return x.iter().map(|x| f64::from(*x)).collect();
        }
    };
    // The first quads of all blocks come before the second ones.
    let word = |block: usize, k: usize| values[(k / 4 * (x.len() / 32) + block) * 4 + k % 4];
    let value = |i: usize| match variant {
        Variant::Dot => f64::from(word(i / 32, i % 32 / 4).to_le_bytes()[i % 4] as i8),
        // Of four, the first and the third lie in the first word.
        _ => {
            let both = word(i / 32, i % 32 / 4 * 2 + i % 2);
            f16::from_bits((both >> (i % 4 / 2 * 16)) as u16).to_f64()
        }
    };
    let scale = |i: usize| f64::from(f32::from_bits(rest[4 * (i / 32)]));
    (0..x.len()).map(|i| value(i) * scale(i)).collect()
}

/// Errors of sums in f32 stay far below this, relative to the sums' magnitudes.
const BOUND: f64 = 3e-6;
/// An input in bytes has steps of 1/127 of the largest of 32, so errors of up to half a step, of
/// either sign.
const BYTES_BOUND: f64 = 6e-3;
/// Eight products are added up in halves, each time with an error of up to 2⁻¹¹ of the sum so far, and
/// inputs have as much. Random errors stay far below what that comes to (4.4·10⁻³).
const HALVES_BOUND: f64 = 1e-3;

/// Bounds of errors against the input that the kernel sees, and against the exact one.
fn bounds(variant: Variant) -> (f64, f64) {
    match variant {
        Variant::One | Variant::Plain | Variant::Subgroups => (BOUND, BOUND),
        Variant::Half => (HALVES_BOUND, HALVES_BOUND),
        Variant::Dot => (BOUND, BYTES_BOUND),
    }
}

fn check(layer: &Layer, options: &RunnerOptions, x: &[f32], work: &Work) {
    let mut runner = Runner::new(&layer.slab, layer.shape, options).unwrap();
    let out = run(&mut runner, x, work);
    let variant = runner.plan().variant();
    let (seen, exact) =
        (seen_input(variant, x), x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let what = format!("{:?} {variant:?} {options:?}", layer.shape);
    let (of_seen, of_exact) = bounds(variant);
    let error = layer.error(work, &seen, &out);
    assert!(error <= of_seen, "{what}: {error:e}");
    let error = layer.error(work, &exact, &out);
    assert!(error <= of_exact, "{what}: {error:e}");
}

#[test]
fn every_row_format_is_its_twin() {
    let checked = Checked::open();
    let columns = ColumnFormat::ALL;
    for (i, row) in RowFormat::ALL.into_iter().enumerate() {
        let d = 512;
        let down = columns[i % columns.len()];
        let layer = Layer::new(&checked.device, shape(d, (row, row, down), 3, 2), &[3, 3, 1]);
        let x = Random::new(7).floats(d);
        // Each format plainly, by halves and by integers; what differs in the others is not its
        // unpacking.
        let plain = match i % 4 {
            0 => Variant::Subgroups,
            1 => Variant::One,
            _ => Variant::Plain,
        };
        for variant in [plain, Variant::Half, Variant::Dot] {
            if !variant.is_possible(checked.device.limits(), &layer.shape, 1) {
                let has_halves = checked.device.limits().float16;
                match variant {
                    Variant::Half => {
                        assert!(!has_halves || matches!(row, RowFormat::F32 | RowFormat::BF16));
                    }
                    _ => assert!(!row.is_quantized(), "{row} {variant:?}"),
                }
                continue;
            }
            let options = RunnerOptions {
                variant: Some(variant),
                tuning: Tuning { workgroups: Some(2), threads: Some(128), ..Default::default() },
                ..Default::default()
            };
            check(&layer, &options, &x, &layer.all());
        }
    }
}

#[test]
fn halves_are_exact_where_they_can_be() {
    let checked = Checked::open();
    for row in RowFormat::ALL {
        let d = 256;
        let layer =
            Layer::new(&checked.device, shape(d, (row, row, ColumnFormat::F32), 3, 2), &[3, 2]);
        if !Variant::Half.is_possible(checked.device.limits(), &layer.shape, 1) {
            continue;
        }
        let options = RunnerOptions { variant: Some(Variant::Half), ..Default::default() };
        let mut runner = Runner::new(&layer.slab, layer.shape, &options).unwrap();
        let mut random = Random::new(16);
        for at in 0..16 {
            // Sums of 8 bytes' halves have eleven bits at most. Products of floats have as many, but
            // not their sums: of those there is one in each lane.
            let mut value = |i: usize| match random.bits() % 4 {
                _ if !row.is_quantized() && i % 16 != at => 0.0,
                _ if i % 32 == at => 1.0,
                n => [-1.0, -0.5, 0.5, 1.0][n as usize],
            };
            let x: Vec<f32> = (0..d).map(&mut value).collect();
            let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            assert_eq!(seen_input(Variant::Half, &x), exact);
            let error = layer.error(&layer.all(), &exact, &run(&mut runner, &x, &layer.all()));
            assert!(error <= BOUND, "{row} {at}: {error:e}");
        }
    }
}

#[test]
fn the_largest_bytes_and_sane_floats_stay_within_halves() {
    let checked = Checked::open();
    // Blocks of −128 times a scale of 1, and of 128.
    let bytes: Vec<u8> = [0x00, 0x3c].into_iter().chain([0x80; 32]).collect();
    for (row, block) in [(RowFormat::Q8_0, bytes), (RowFormat::F16, vec![0x00, 0x58])] {
        let shape = shape(64, (row, row, ColumnFormat::F32), 1, 0);
        let mut layer = Layer::new(&checked.device, shape, &[1]);
        if !Variant::Half.is_possible(checked.device.limits(), &shape, 1) {
            continue;
        }
        let frame = &mut layer.frames[0].0;
        let rows = frame[..shape.down_at].chunks_exact_mut(block.len());
        rows.for_each(|to| to.copy_from_slice(&block));
        let mut writer = layer.slab.write(0).unwrap();
        writer.copy_from_slice(frame);
        writer.finish().unwrap();
        let options = RunnerOptions { variant: Some(Variant::Half), ..Default::default() };
        let mut runner = Runner::new(&layer.slab, shape, &options).unwrap();
        for x in [[1.0; 64], [-1.0; 64]] {
            let out = run(&mut runner, &x, &layer.all());
            let error = layer.error(&layer.all(), &x.map(f64::from), &out);
            assert!(error <= BOUND, "{row}: {error:e}");
        }
    }
}

#[test]
fn an_input_that_is_no_number_shows() {
    let checked = Checked::open();
    let formats = (RowFormat::Q8_0, RowFormat::Q8_0, ColumnFormat::Q8);
    let layer = Layer::new(&checked.device, shape(64, formats, 2, 0), &[2]);
    for variant in Variant::ALL {
        if !variant.is_possible(checked.device.limits(), &layer.shape, 1) {
            continue;
        }
        let options = RunnerOptions { variant: Some(variant), ..Default::default() };
        let mut runner = Runner::new(&layer.slab, layer.shape, &options).unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = Random::new(17).floats(64);
            x[3] = bad;
            let out = run(&mut runner, &x, &layer.all());
            assert!(out.iter().all(|x| !x.is_finite()), "{variant:?} {bad}: {out:?}");
        }
    }
}

#[test]
fn halves_come_after_products_of_bytes() {
    let formats = (RowFormat::Q5_0, RowFormat::F16, ColumnFormat::Q6);
    let shape = shape(96, formats, 2, 0);
    let quantized = MlpShape { up: RowFormat::Q4_1, ..shape };
    let check_best = |checked: &Checked, shape: MlpShape, want: Variant| {
        let layer = Layer::new(&checked.device, shape, &[2, 1]);
        for mode in [Mode::Persistent, Mode::Blocking] {
            let options = RunnerOptions { mode: Some(mode), ..Default::default() };
            let runner = Runner::new(&layer.slab, shape, &options).unwrap();
            assert_eq!(runner.plan().variant(), want);
            drop(runner);
            check(&layer, &options, &Random::new(18).floats(96), &layer.all());
        }
    };
    let checked = Checked::open();
    if !Variant::Half.is_possible(checked.device.limits(), &shape, 1) {
        return;
    }
    check_best(&checked, shape, Variant::Half);
    let without_bytes = |found: &Limits| Limits { integer_dot: false, ..found.clone() };
    let narrowed = Checked::narrowed(without_bytes);
    check_best(&narrowed, quantized, Variant::Half);
    let narrowed = Checked::narrowed(|found| Limits { float16: false, ..without_bytes(found) });
    check_best(&narrowed, quantized, Variant::Subgroups);
}

#[test]
fn every_column_format_and_mixed_rows() {
    let checked = Checked::open();
    for (i, down) in ColumnFormat::ALL.into_iter().enumerate() {
        let rows = [(RowFormat::Q4_K, RowFormat::Q6_K), (RowFormat::F16, RowFormat::Q8_0)][i % 2];
        let d = 256 * (1 + i % 3);
        let mut shape = shape(d, (rows.0, rows.1, down), 2, 2 * (i % 2));
        shape.activation = Activation::GeluTanh;
        let layer = Layer::new(&checked.device, shape, &[2; 5]);
        let options = RunnerOptions {
            tuning: Tuning { workgroups: Some(3), ..Default::default() },
            ..Default::default()
        };
        check(&layer, &options, &Random::new(8).floats(d), &layer.all());
    }
}

#[test]
fn odd_shapes() {
    let checked = Checked::open();
    let formats = (RowFormat::Q4_0, RowFormat::Q4_0, ColumnFormat::Q5);
    // Widths whose rows and columns begin in the middle of words, one block, more than one pass of
    // a small workgroup, several blocks a thread, more values than lavapipe has iterations.
    for (d, threads, per) in
        [(32, 32, 1), (96, 64, 7), (1056, 32, 3), (4128, 512, 1), (70_016, 64, 1)]
    {
        let layer = Layer::new(&checked.device, shape(d, formats, per, 0), &[per as u32; 3]);
        let halves = Variant::Half.is_possible(checked.device.limits(), &layer.shape, 1);
        let variants = [None, halves.then_some(Variant::Half)];
        for (workgroups, variant) in [1, 5].into_iter().zip(variants) {
            let options = RunnerOptions {
                variant,
                tuning: Tuning {
                    workgroups: Some(workgroups),
                    threads: Some(threads),
                    ..Default::default()
                },
                ..Default::default()
            };
            check(&layer, &options, &Random::new(9).floats(d), &layer.all());
        }
    }
}

#[test]
fn batches_larger_than_the_tables_of_a_workgroup() {
    let checked = Checked::open();
    let formats = (RowFormat::Q8_0, RowFormat::Q8_0, ColumnFormat::Q8);
    let layer = Layer::new(&checked.device, shape(64, formats, 90, 0), &[90, 90, 90, 90, 17]);
    for variant in [Variant::Plain, Variant::Subgroups] {
        let options = RunnerOptions {
            variant: Some(variant),
            tuning: Tuning { workgroups: Some(1), threads: Some(32), ..Default::default() },
            ..Default::default()
        };
        check(&layer, &options, &Random::new(10).floats(64), &layer.all());
    }
}

#[test]
fn lists_of_single_neurons() {
    let checked = Checked::open();
    let formats = (RowFormat::Q5_0, RowFormat::Q4_1, ColumnFormat::Q6);
    let layer = Layer::new(&checked.device, shape(128, formats, 6, 0), &[6, 6, 2]);
    let work = Work::Neurons(vec![(1, 5), (0, 0), (2, 1), (1, 2), (0, 3)]);
    let options = RunnerOptions {
        tuning: Tuning { workgroups: Some(2), ..Default::default() },
        ..Default::default()
    };
    check(&layer, &options, &Random::new(11).floats(128), &work);
    check(&layer, &options, &Random::new(11).floats(128), &Work::Neurons(vec![]));
}

#[test]
fn narrow_devices_compute_the_same() {
    for narrow in [Limits::least(), Limits::adreno_7xx(), Limits::orin()] {
        let checked = Checked::narrowed(|_| narrow);
        let formats = (RowFormat::Q4_K, RowFormat::Q4_K, ColumnFormat::Q6);
        let layer = Layer::new(&checked.device, shape(1536, formats, 4, 0), &[4, 4, 4, 2]);
        let options = RunnerOptions::default();
        check(&layer, &options, &Random::new(12).floats(1536), &layer.all());
    }
}

#[test]
fn a_slab_of_several_buffers() {
    let checked =
        Checked::narrowed(|found| Limits { max_storage_range: 64 << 10, ..found.clone() });
    let formats = (RowFormat::F16, RowFormat::F16, ColumnFormat::F16);
    let layer = Layer::new(&checked.device, shape(256, formats, 5, 0), &[5; 25]);
    assert!(layer.slab.layout().n_slabs > 2);
    for variant in [Variant::Plain, Variant::Subgroups] {
        let options = RunnerOptions {
            variant: Some(variant),
            tuning: Tuning { workgroups: Some(3), threads: Some(64), ..Default::default() },
            max_entries: Some(100),
            ..Default::default()
        };
        check(&layer, &options, &Random::new(13).floats(256), &layer.all());
    }
    // Too much for one buffer, where a kernel can see only one.
    let least = Checked::narrowed(|_| Limits { max_storage_range: 64 << 10, ..Limits::least() });
    assert!(matches!(Slab::new(&least.device, 1 << 12, 17, None), Err(VkError::Limit { .. })));
}

#[test]
fn loops_that_lavapipe_would_end_are_split() {
    let checked = Checked::open();
    let formats = (RowFormat::F16, RowFormat::F16, ColumnFormat::F16);
    // One workgroup would need well over 65,535 iterations for this list.
    let layer = Layer::new(&checked.device, shape(32, formats, 1000, 0), &[1000; 2]);
    let frames: Vec<(u32, u32)> = (0..160).map(|i| (i % 2, 1000)).collect();
    let work = Work::Frames { per_frame: 1000, frames };
    let options = RunnerOptions {
        tuning: Tuning { workgroups: Some(1), threads: Some(32), ..Default::default() },
        variant: Some(Variant::Plain),
        ..Default::default()
    };
    check(&layer, &options, &Random::new(14).floats(32), &work);
}

#[test]
fn the_same_list_gives_the_same_bits() {
    let checked = Checked::open();
    let formats = (RowFormat::Q4_0, RowFormat::Q4_0, ColumnFormat::Q4);
    let layer = Layer::new(&checked.device, shape(544, formats, 5, 0), &[5; 9]);
    let x = Random::new(15).floats(544);
    let bits = |mode| {
        let options = RunnerOptions {
            mode: Some(mode),
            tuning: Tuning { workgroups: Some(4), ..Default::default() },
            ..Default::default()
        };
        let mut runner = Runner::new(&layer.slab, layer.shape, &options).unwrap();
        (0..3).map(|_| run(&mut runner, &x, &layer.all())).collect::<Vec<_>>()
    };
    let first = bits(Mode::Blocking);
    assert!(first.iter().all(|out| *out == first[0]));
    assert_eq!(first, bits(Mode::Staged));
}

#[test]
fn impossible_work_is_refused() {
    let checked = Checked::open();
    let formats = (RowFormat::Q4_0, RowFormat::Q4_0, ColumnFormat::Q4);
    let layer = Layer::new(&checked.device, shape(64, formats, 4, 0), &[4, 4]);
    let mut runner = Runner::new(
        &layer.slab,
        layer.shape,
        &RunnerOptions { max_entries: Some(4), ..Default::default() },
    )
    .unwrap();
    assert!(runner.queue(&layer.all(), true, vec![]).is_err(), "no input yet");
    runner.begin(&[0.0; 64], TIMEOUT).unwrap();
    assert!(runner.begin(&[0.0; 32], TIMEOUT).is_err());
    let frames = |frames: &[(u32, u32)]| Work::Frames { per_frame: 4, frames: frames.to_vec() };
    for work in [
        frames(&[(2, 1)]),
        frames(&[(0, 0)]),
        frames(&[(0, 5)]),
        frames(&[(0, 1); 5]),
        Work::Frames { per_frame: 0, frames: vec![] },
        Work::Frames { per_frame: 1024, frames: vec![] },
        Work::Neurons(vec![(0, 1023)]),
        Work::Neurons(vec![(0, 40)]),
    ] {
        assert!(runner.queue(&work, true, vec![]).is_err(), "{work:?}");
    }
    let mut bad = layer.shape;
    bad.d_model = 40;
    assert!(Runner::new(&layer.slab, bad, &RunnerOptions::default()).is_err());
    bad = layer.shape;
    bad.up_at += 1;
    assert!(Runner::new(&layer.slab, bad, &RunnerOptions::default()).is_err());
}
