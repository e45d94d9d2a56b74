//! The low-rank network, trained as the first layer and the codes of a hash predictor are.

use std::ops::ControlFlow;

use ndarray::{ArrayView1, Axis, concatenate};

use super::layer::Activation;
use super::{TrainConfig, Trainer};
use crate::baseline::LowRank;
use crate::error::HashError;
use crate::project::WeightType;
use crate::samples::Samples;
use crate::shape::{Form, Norm, Shape};

impl LowRank {
    /// Trains a low-rank network on the logarithms of importance: the baseline that costs most.
    /// The rank is a multiple of 64.
    ///
    /// # Errors
    ///
    /// As those of [`Trainer::new`].
    pub fn train(
        rank: usize,
        norm: Norm,
        config: TrainConfig,
        samples: &dyn Samples,
    ) -> Result<Self, HashError> {
        let shape = Shape {
            n_inputs: samples.n_inputs(),
            n_outputs: samples.n_outputs(),
            stacks: vec![rank],
            blocks_per_bit: Shape::DENSE,
            weights: WeightType::Int8,
            form: Form::Direct,
            n_codes: 1,
            norm,
        };
        let mut trainer = Trainer::unfitted(shape, config, samples, Activation::Relu)?;
        for estimate in trainer.net.heads.iter_mut().flat_map(|head| &mut head.estimates) {
            estimate.binary = false;
        }
        let _ = trainer.train(samples, |_| ControlFlow::Continue(()));
        let net = &trainer.net;
        let outer: Vec<_> =
            net.heads.iter().map(|h| h.estimates[0].codes[0].value.view()).collect();
        let offsets: Vec<_> =
            net.heads.iter().map(|h| h.estimates[0].offset.value.row(0)).collect();
        Ok(Self {
            norm,
            inner: &net.layers[0].weights.value * &ArrayView1::from(&net.scale),
            bias: net.layers[0].bias.value.row(0).to_owned(),
            outer: concatenate(Axis(0), &outer).expect("all have as many columns"),
            offset: concatenate(Axis(0), &offsets).expect("all are vectors"),
        })
    }
}
