//! A trainer as bytes, from which training goes on as if it had not been interrupted.

use ndarray::Array2;

use super::head::Head;
use super::layer::{Activation, Layer};
use super::param::Param;
use super::{TrainConfig, Trainer};
use crate::error::HashError;
use crate::format::{Reader, Writer, read_shape, write_shape};
use crate::samples::Samples;
use crate::shape::Shape;

const MAGIC: [u8; 4] = *b"LSHT";
const VERSION: u32 = 1;

impl Trainer {
    /// Everything that training needs to go on.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(MAGIC, VERSION);
        write_shape(&mut to, &self.shape);
        write_config(&mut to, &self.config);
        to.u64(self.step as u64);
        to.all(&self.net.scale);
        to.all(&self.net.gains);
        to.all(&[self.net.sizes.gate, self.net.sizes.up, self.net.sizes.act]);
        for param in params(&self.net.layers, &self.net.heads) {
            for matrix in [&param.value, &param.first, &param.second] {
                // In the order of rows, whatever the memory's.
                to.all(&matrix.iter().copied().collect::<Vec<f32>>());
            }
        }
        to.finish()
    }

    /// The trainer that [`Trainer::to_bytes`] wrote, if it had the same settings. It goes on to
    /// the very same predictor, if `samples` are the same too.
    ///
    /// # Errors
    ///
    /// If these are not such bytes, [`HashError::OtherSettings`] if they come from others.
    pub fn resume(
        bytes: &[u8],
        shape: Shape,
        config: TrainConfig,
        samples: &dyn Samples,
    ) -> Result<Self, HashError> {
        let mut from = Reader::new(bytes, "state of training", MAGIC, VERSION)?;
        let saved = read_shape(&mut from)?;
        if canonical(&saved) != canonical(&shape) || read_config(&mut from)? != config {
            return Err(HashError::OtherSettings);
        }
        let step = from.u64("step")?;
        let Some(step) = usize::try_from(step).ok().filter(|step| *step <= config.n_steps) else {
            return Err(HashError::Field { what: "step", found: u32::MAX });
        };
        // Places and blocks of all parameters follow from the settings.
        let mut trainer = Self::unfitted(shape, config, samples, Activation::Sign)?;
        trainer.step = step;
        trainer.net.scale = from.all("scale", trainer.shape.n_inputs)?;
        trainer.net.gains = from.all("gains", trainer.shape.n_outputs)?;
        let sizes = from.all("sizes of factors", 3)?;
        let net = &mut trainer.net;
        (net.sizes.gate, net.sizes.up, net.sizes.act) = (sizes[0], sizes[1], sizes[2]);
        for param in params_mut(&mut net.layers, &mut net.heads) {
            for matrix in [&mut param.value, &mut param.first, &mut param.second] {
                read_matrix(&mut from, matrix)?;
            }
        }
        from.finish()?;
        Ok(trainer)
    }
}

/// The shape as a reader gives it: one spelling of dense.
fn canonical(shape: &Shape) -> Shape {
    let dense = shape.is_dense();
    Shape {
        blocks_per_bit: if dense { Shape::DENSE } else { shape.blocks_per_bit },
        ..shape.clone()
    }
}

fn read_matrix(from: &mut Reader<'_>, to: &mut Array2<f32>) -> Result<(), HashError> {
    let values: Vec<f32> = from.all("parameters", to.len())?;
    *to = Array2::from_shape_vec(to.raw_dim(), values).expect("as many as it has places");
    Ok(())
}

fn write_config(to: &mut Writer, config: &TrainConfig) {
    to.u64(config.seed);
    to.u64(config.n_steps as u64);
    to.u64(config.batch as u64);
    to.u32(config.learning_rate.to_bits());
}

fn read_config(from: &mut Reader<'_>) -> Result<TrainConfig, HashError> {
    let numbers = from.all::<u64>("settings", 3)?;
    Ok(TrainConfig {
        seed: numbers[0],
        n_steps: usize::try_from(numbers[1]).unwrap_or(usize::MAX),
        batch: usize::try_from(numbers[2]).unwrap_or(usize::MAX),
        learning_rate: f32::from_bits(from.u32("learning rate")?),
    })
}

fn params<'a>(layers: &'a [Layer], heads: &'a [Head]) -> impl Iterator<Item = &'a Param> {
    let of_layers = layers.iter().flat_map(|layer| [&layer.weights, &layer.bias]);
    let estimates = heads.iter().flat_map(|head| &head.estimates);
    of_layers.chain(estimates.flat_map(|e| e.codes.iter().chain([&e.scales, &e.offset])))
}

fn params_mut<'a>(
    layers: &'a mut [Layer],
    heads: &'a mut [Head],
) -> impl Iterator<Item = &'a mut Param> {
    let of_layers = layers.iter_mut().flat_map(|layer| [&mut layer.weights, &mut layer.bias]);
    let estimates = heads.iter_mut().flat_map(|head| &mut head.estimates);
    of_layers
        .chain(estimates.flat_map(|e| e.codes.iter_mut().chain([&mut e.scales, &mut e.offset])))
}
