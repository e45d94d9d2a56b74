//! Predictors and states of training as bytes.
//!
//! Little-endian throughout: 4 bytes of magic, a u32 version, the content, and the xxh3 of all
//! before. A reader asks for the sizes first; the lengths of all parts follow from them.
//!
//! A predictor's content, version 1:
//!
//! | part | type | count |
//! |---|---|---|
//! | inputs, outputs, blocks per bit (2³² − 1: all), type of weights (0 int8, 1 ternary), form (0 direct, 1 bilinear), codes per estimate, norm (0 none, 1 RMS), stacks | u32 | 8 |
//! | bits of each stack | u32 | stacks |
//! | steps of a byte for each unit of a feature | f32 | inputs |
//! | blocks that each bit reads, unless all | u16 | bits × blocks per bit |
//! | weights, `[bit][block][input]`; ternary: bits of the positive and of the negative ones | i8; 2 × u32 for 32 | bits × blocks per bit × 32 |
//! | thresholds | i32 | bits |
//! | for each further stack: codes `[group][word][lane]`, thresholds | u64, i32 | bits × words below, bits |
//! | codes `[group][estimate][code][word][lane]` | u64 | 8 lanes a group |
//! | terms `[group][term][lane]`: for each estimate scales and offset; then a gain, if bilinear | upper half of f32 | 8 lanes a group |

use xxhash_rust::xxh3::xxh3_64;

use crate::error::HashError;
use crate::isa::Isa;
use crate::predictor::{Predictor, Stack};
use crate::project::{Projection, WeightType, Weights};
use crate::shape::{Form, Norm, Shape};
use crate::simd::{BLOCK, LANES};

const MAGIC: [u8; 4] = *b"LSHP";
const VERSION: u32 = 1;
const DENSE: u32 = u32::MAX;

/// Bytes of magic, version and checksum.
const FRAME: usize = 16;

/// Writes the parts of a file one after the other.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(magic: [u8; 4], version: u32) -> Self {
        let mut bytes = magic.to_vec();
        bytes.extend(version.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn u32(&mut self, x: u32) {
        self.0.extend(x.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, x: u64) {
        self.0.extend(x.to_le_bytes());
    }

    pub(crate) fn all<T: Number>(&mut self, x: &[T]) {
        self.0.reserve(x.len() * T::BYTES);
        for x in x {
            x.put(&mut self.0);
        }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let sum = xxh3_64(&self.0);
        self.u64(sum);
        self.0
    }
}

/// A number of fixed size.
pub(crate) trait Number: Copy {
    const BYTES: usize;
    fn put(self, to: &mut Vec<u8>);
    /// From `BYTES` bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();
            fn put(self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many bytes as it has"))
            }
        }
    )*};
}

numbers!(i8 u8 u16 i32 u32 u64 f32);

impl Number for [u32; 2] {
    const BYTES: usize = 8;
    fn put(self, to: &mut Vec<u8>) {
        self[0].put(to);
        self[1].put(to);
    }
    fn get(bytes: &[u8]) -> Self {
        [u32::get(&bytes[..4]), u32::get(&bytes[4..])]
    }
}

/// Reads the parts of a file one after the other.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// After magic and version; the checksum is right.
    pub(crate) fn new(
        bytes: &'a [u8],
        what: &'static str,
        magic: [u8; 4],
        version: u32,
    ) -> Result<Self, HashError> {
        if bytes.len() < FRAME {
            let (expected, found) = (FRAME as u64, bytes.len() as u64);
            return Err(HashError::Truncated { what, expected, found });
        }
        let (content, sum) = bytes.split_at(bytes.len() - 8);
        let found: [u8; 4] = content[..4].try_into().expect("four bytes");
        if found != magic {
            return Err(HashError::Magic { what, found });
        }
        let found = u32::get(&content[4..8]);
        if found != version {
            return Err(HashError::Version { found, expected: version });
        }
        let (expected, found) = (u64::get(sum), xxh3_64(content));
        if found != expected {
            return Err(HashError::Checksum { expected, found });
        }
        Ok(Self(&content[8..]))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, HashError> {
        self.all(what, 1).map(|x| x[0])
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, HashError> {
        self.all(what, 1).map(|x| x[0])
    }

    /// `n` numbers. Nothing is allocated before it is known that they are there.
    pub(crate) fn all<T: Number>(
        &mut self,
        what: &'static str,
        n: usize,
    ) -> Result<Vec<T>, HashError> {
        let (expected, found) = (n as u64 * T::BYTES as u64, self.0.len() as u64);
        if expected > found {
            return Err(HashError::Truncated { what, expected, found });
        }
        let (part, rest) = self.0.split_at(expected as usize);
        self.0 = rest;
        Ok(part.chunks_exact(T::BYTES).map(T::get).collect())
    }

    pub(crate) fn finish(self) -> Result<(), HashError> {
        match self.0.len() {
            0 => Ok(()),
            n => Err(HashError::Trailing { n }),
        }
    }
}

pub(crate) fn write_shape(to: &mut Writer, shape: &Shape) {
    to.u32(shape.n_inputs as u32);
    to.u32(shape.n_outputs as u32);
    to.u32(if shape.is_dense() { DENSE } else { shape.blocks_per_bit as u32 });
    to.u32((shape.weights == WeightType::Ternary) as u32);
    to.u32((shape.form == Form::Bilinear) as u32);
    to.u32(shape.n_codes as u32);
    to.u32((shape.norm == Norm::Rms) as u32);
    to.u32(shape.stacks.len() as u32);
    to.all(&shape.stacks.iter().map(|bits| *bits as u32).collect::<Vec<_>>());
}

pub(crate) fn read_shape(from: &mut Reader<'_>) -> Result<Shape, HashError> {
    let [n_inputs, n_outputs, blocks, weights, form, n_codes, norm, n_stacks] =
        *from.all::<u32>("the sizes", 8)?
    else {
        unreachable!("eight were read")
    };
    let stacks = from.all::<u32>("widths of stacks", n_stacks as usize)?;
    let mut shape = Shape {
        n_inputs: n_inputs as usize,
        n_outputs: n_outputs as usize,
        stacks: stacks.into_iter().map(|bits| bits as usize).collect(),
        blocks_per_bit: if blocks == DENSE { Shape::DENSE } else { blocks as usize },
        weights: either("type of weights", weights, [WeightType::Int8, WeightType::Ternary])?,
        form: either("form", form, [Form::Direct, Form::Bilinear])?,
        n_codes: n_codes as usize,
        norm: either("norm", norm, [Norm::None, Norm::Rms])?,
    };
    shape.check()?;
    if shape.is_dense() {
        shape.blocks_per_bit = Shape::DENSE;
    }
    Ok(shape)
}

/// The first for 0, the second for 1.
fn either<T>(what: &'static str, found: u32, values: [T; 2]) -> Result<T, HashError> {
    let value = values.into_iter().nth(found as usize);
    value.ok_or(HashError::Field { what, found })
}

impl Predictor {
    /// The predictor as bytes, which [`Predictor::from_bytes`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(MAGIC, VERSION);
        write_shape(&mut to, &self.shape);
        to.all(&self.scale);
        to.all(&self.projection.blocks);
        match &self.projection.weights {
            Weights::Int8(weights) => to.all(weights),
            Weights::Ternary(weights) => to.all(weights),
        }
        to.all(&self.projection.thresholds);
        for stack in &self.stacks {
            to.all(&stack.codes);
            to.all(&stack.thresholds);
        }
        to.all(&self.codes);
        to.all(&self.terms);
        to.finish()
    }

    /// A predictor from the bytes that [`Predictor::to_bytes`] made.
    ///
    /// # Errors
    ///
    /// If they are not such bytes. Nothing is allocated for parts that they do not have.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HashError> {
        let mut from = Reader::new(bytes, "predictor", MAGIC, VERSION)?;
        let shape = read_shape(&mut from)?;
        let scale = from.all("scale", shape.n_inputs)?;
        let projection = read_projection(&mut from, &shape)?;
        let mut stacks = Vec::new();
        for pair in shape.stacks.windows(2) {
            let codes = from.all("codes of a stack", pair[1] * (pair[0] / 64))?;
            stacks.push(Stack { codes, thresholds: from.all("thresholds of a stack", pair[1])? });
        }
        let lanes = shape.n_groups() * LANES;
        let planes = shape.form.n_planes(shape.n_codes);
        let codes = from.all("codes", lanes * planes * (shape.n_bits() / 64))?;
        let terms = from.all("terms", lanes * shape.form.n_terms(shape.n_codes))?;
        from.finish()?;
        let read = Self { shape, scale, projection, stacks, codes, terms, isa: Isa::detect() };
        read.check()?;
        Ok(read)
    }
}

fn read_projection(from: &mut Reader<'_>, shape: &Shape) -> Result<Projection, HashError> {
    let n_blocks = shape.stacks[0] * shape.per_bit();
    let blocks = from.all("blocks", if shape.is_dense() { 0 } else { n_blocks })?;
    let weights = match shape.weights {
        WeightType::Int8 => Weights::Int8(from.all("weights", n_blocks * BLOCK)?),
        WeightType::Ternary => Weights::Ternary(from.all("weights", n_blocks)?),
    };
    let thresholds = from.all("thresholds", shape.stacks[0])?;
    Ok(Projection { per_bit: shape.per_bit(), blocks, weights, thresholds })
}
