//! The small kernels against their twins.

use std::sync::Arc;

use half::f16;
use ls_vk::kernels::axpy::Axpy;
use ls_vk::kernels::project::{Project, Projection};
use ls_vk::kernels::rms_norm::RmsNorm;
use ls_vk::twin::{self, Random};
use ls_vk::{Buffer, Device, For, Limits, MemoryKind, Recorder, VkError};

use crate::{Checked, TIMEOUT};

fn floats(device: &Arc<Device>, values: &[f32]) -> Arc<Buffer> {
    let bytes = 4 * values.len() as u64;
    let buffer = Buffer::new(device, MemoryKind::Readback, bytes, "floats").unwrap();
    buffer.write_floats(0, values).unwrap();
    Arc::new(buffer)
}

fn poisoned(device: &Arc<Device>, n: usize) -> Arc<Buffer> {
    floats(device, &vec![f32::NAN; n])
}

fn each_device(test: impl Fn(&Arc<Device>)) {
    for narrow in [false, true] {
        let checked =
            Checked::narrowed(|found| if narrow { Limits::least() } else { found.clone() });
        test(&checked.device);
    }
}

#[test]
fn axpy_adds_and_leaves_the_rest_alone() {
    each_device(|device| {
        let axpy = Axpy::new(device).unwrap();
        let mut random = Random::new(1);
        for n in [1usize, 127, 128, 129, 5000] {
            let (x, y) = (random.floats(n + 3), random.floats(n + 3));
            let (on_x, on_y) = (floats(device, &x), floats(device, &y));
            let mut recorder = Recorder::new(device, For::Compute, "axpy").unwrap();
            axpy.record(&mut recorder, n as u32, 2.5, &on_x, &on_y).unwrap();
            let too_many = axpy.record(&mut recorder, n as u32 + 4, 1.0, &on_x, &on_y);
            assert!(matches!(too_many, Err(VkError::OutOfRange { .. })));
            recorder.finish().unwrap().run(TIMEOUT).unwrap();
            for (i, got) in on_y.read_floats(0, n + 3).unwrap().into_iter().enumerate() {
                let want =
                    if i < n { 2.5f64.mul_add(x[i].into(), y[i].into()) } else { y[i].into() };
                assert!((f64::from(got) - want).abs() <= 5e-7, "{i} of {n}: {got} for {want}");
            }
        }
    });
}

#[test]
fn rms_norm_is_its_twin() {
    each_device(|device| {
        let kernel = RmsNorm::new(device).unwrap();
        let mut random = Random::new(2);
        for n in [1usize, 31, 576, 4096, 5000] {
            let (x, weight) = (random.floats(n), random.floats(n));
            let out = poisoned(device, n);
            let (on_x, on_weight) = (floats(device, &x), floats(device, &weight));
            let mut recorder = Recorder::new(device, For::Compute, "rms_norm").unwrap();
            let size = (n as u32, 1e-5);
            kernel.record(&mut recorder, size, &on_x, &on_weight, &out).unwrap();
            recorder.finish().unwrap().run(TIMEOUT).unwrap();
            let want = twin::rms_norm(&x, &weight, 1e-5);
            for (got, want) in out.read_floats(0, n).unwrap().into_iter().zip(want) {
                assert!(
                    (f64::from(got) - want).abs() <= 2e-6 * want.abs(),
                    "{n}: {got} for {want}"
                );
            }
        }
    });
}

#[test]
fn projections_make_values_and_bits() {
    each_device(|device| {
        let kernel = Project::new(device).unwrap();
        let mut random = Random::new(3);
        for (rows, cols) in [(1usize, 2usize), (33, 96), (64, 576), (257, 1024)] {
            let matrix: Vec<f16> =
                random.floats(rows * cols).into_iter().map(f16::from_f32).collect();
            let (x, thresholds) = (random.floats(cols), random.floats(rows));
            let bytes: Vec<u8> = matrix.iter().flat_map(|w| w.to_le_bytes()).collect();
            let on_matrix =
                Buffer::new(device, MemoryKind::Upload, bytes.len() as u64, "matrix").unwrap();
            on_matrix.write(0, &bytes).unwrap();
            let on = Projection {
                x: floats(device, &x),
                matrix: Arc::new(on_matrix),
                thresholds: floats(device, &thresholds),
                values: poisoned(device, rows),
                bits: poisoned(device, rows.div_ceil(32)),
            };
            let mut recorder = Recorder::new(device, For::Compute, "project").unwrap();
            kernel.record(&mut recorder, (rows as u32, cols as u32), &on).unwrap();
            assert!(kernel.record(&mut recorder, (rows as u32, 3), &on).is_err());
            recorder.finish().unwrap().run(TIMEOUT).unwrap();
            let (values, words) =
                (on.values.read_floats(0, rows).unwrap(), on.bits.read_words(0, rows.div_ceil(32)));
            let words = words.unwrap();
            for (r, want) in twin::project(&matrix, &x).into_iter().enumerate() {
                let got = values[r];
                let bound = 1e-6 * (cols as f64);
                assert!((f64::from(got) - want).abs() <= bound, "{rows} {cols}: {got} for {want}");
                assert_eq!(words[r / 32] >> (r % 32) & 1 == 1, got > thresholds[r], "bit {r}");
            }
            let behind = words.last().unwrap().checked_shr((rows % 32) as u32).unwrap_or(0);
            assert!(rows % 32 == 0 || behind == 0, "bits of no row");
        }
    });
}
