//! Random frames and inputs: any bytes, with scales that keep sums in range.

use half::{bf16, f16};

use super::write_column;
use crate::format::RowFormat;
use crate::kernels::mlp::MlpShape;

/// Numbers that look random: a linear congruential generator, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// In −1..1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` floats in −1..1.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    fn scale(&mut self, to: &mut [u8], size: f32) {
        let value = size * (1.25 + 0.75 * self.float());
        to[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    }

    /// Any block of a format, of weights up to about `size`.
    fn block(&mut self, format: RowFormat, block: &mut [u8], size: f32) {
        block.fill_with(|| self.bits() as u8);
        let value = size * self.float();
        match format {
            RowFormat::F32 => block.copy_from_slice(&value.to_le_bytes()),
            RowFormat::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            RowFormat::BF16 => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            RowFormat::Q4_0 => self.scale(block, size / 16.0),
            RowFormat::Q5_0 => self.scale(block, size / 32.0),
            RowFormat::Q8_0 => self.scale(block, size / 256.0),
            RowFormat::Q4_1 | RowFormat::Q5_1 => {
                self.scale(block, size / 32.0);
                self.scale(&mut block[2..], -size / 2.0);
            }
            RowFormat::Q4_K | RowFormat::Q5_K => {
                self.scale(block, size / 2000.0);
                self.scale(&mut block[2..], size / 128.0);
            }
            RowFormat::Q6_K => self.scale(&mut block[208..], size / 8000.0),
        }
    }

    /// A frame of `len` bytes with `n` neurons. What belongs to none of them is 0xa5.
    ///
    /// # Panics
    ///
    /// If the shape is impossible or `len` too short.
    pub fn frame(&mut self, shape: &MlpShape, n: usize, len: usize) -> Vec<u8> {
        assert!(shape.bytes_for(n) <= len, "{n} neurons of {shape:?} in {len} bytes");
        let mut frame = vec![0xa5; len];
        let [gate, up, down] = shape.neuron_bytes();
        // So that products are about 1.
        let size = 2.0 / (shape.d_model as f32).sqrt();
        for j in 0..n {
            for (format, at, bytes) in [(shape.gate, 0, gate), (shape.up, shape.up_at, up)] {
                let row = &mut frame[at + j * bytes..][..bytes];
                let blocks = row.chunks_exact_mut(format.block_bytes());
                blocks.for_each(|block| self.block(format, block, size));
            }
            let column = write_column(shape.down, &self.floats(shape.d_model));
            frame[shape.down_at + j * down..][..down].copy_from_slice(&column);
        }
        frame
    }
}
