//! The parameters and costs of the parts that encoder and decoder layers share.

use super::attention::AttentionDims;
use crate::yaml::Reader;
use crate::{Dim, Init, OutOfRange, ParamSpec};
use serde::{Deserialize, Serialize};

/// The function between the two linear layers of a [`super::TransformerEncoderLayer`] or a
/// [`super::TransformerDecoderLayer`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// Gaussian error linear unit, by the error function.
    Gelu,
    /// The same, approximated by the hyperbolic tangent.
    GeluTanh,
}

pub(super) const ACTIVATION: Reader<Activation> =
    Reader::keyword("`relu`, `gelu` or `gelu_tanh`", &["relu", "gelu", "gelu_tanh"], |node| {
        match node.as_text()? {
            "relu" => Some(Activation::Relu),
            "gelu" => Some(Activation::Gelu),
            "gelu_tanh" => Some(Activation::GeluTanh),
            _ => None,
        }
    });

/// The names of a weight and a bias.
pub(super) type Names = [&'static str; 2];

/// The sizes that decide what a layer's parts hold and cost.
pub(super) struct Block {
    pub(super) model: u64,
    pub(super) inner: u64,
    pub(super) activation: Activation,
    pub(super) bias: bool,
}

impl Block {
    fn part(
        &self,
        [weight, bias]: Names,
        shape: Vec<u64>,
        [of_weight, of_bias]: [Init; 2],
    ) -> Vec<ParamSpec> {
        let size = shape[0];
        let mut params = vec![ParamSpec::parameter(weight, shape, of_weight)];
        if self.bias {
            params.push(ParamSpec::parameter(bias, vec![size], of_bias));
        }
        params
    }

    /// The parameters of an attention. PyTorch initialises the three input projections as one
    /// matrix.
    pub(super) fn attention(&self, into: Names, out: Names) -> Vec<ParamSpec> {
        // Too large a size stays too large, and the number of elements says so.
        let three = self.model.saturating_mul(3);
        let into = self.part(
            into,
            vec![three, self.model],
            [Init::xavier(three, self.model), Init::Zeros],
        );
        let by_model = Init::fan_in(self.model as f64);
        let out = self.part(out, vec![self.model, self.model], [by_model, Init::Zeros]);
        [into, out].concat()
    }

    /// The parameters of the two linear layers.
    pub(super) fn feed_forward(&self) -> Vec<ParamSpec> {
        let (by_model, by_inner) =
            (Init::fan_in(self.model as f64), Init::fan_in(self.inner as f64));
        let widen = self.part(
            ["linear1.weight", "linear1.bias"],
            vec![self.inner, self.model],
            [by_model; 2],
        );
        let narrow = self.part(
            ["linear2.weight", "linear2.bias"],
            vec![self.model, self.inner],
            [by_inner; 2],
        );
        [widen, narrow].concat()
    }

    /// The parameters of a layer norm.
    pub(super) fn norm(&self, names: Names) -> Vec<ParamSpec> {
        self.part(names, vec![self.model], [Init::Ones, Init::Zeros])
    }

    /// The FLOPs of an attention with its projections: two for each query, two for each key.
    pub(super) fn attention_flops(&self, dims: &AttentionDims<'_>) -> Result<Dim, OutOfRange> {
        let two = Dim::Fixed(self.model).times_number(self.model)?.times_number(4)?;
        let positions = dims.queries.positions.plus(dims.keys)?;
        Dim::product([dims.queries.samples, &positions, &two])?.plus(&dims.flops(self.model)?)
    }

    /// The FLOPs of one position: the two linear layers and the activation between them. Around
    /// each of the `parts` there are a layer norm (8 for each element), a sum, and a dropout (2 for
    /// each element).
    pub(super) fn flops_each(&self, parts: u64) -> Result<Dim, OutOfRange> {
        let activation = match self.activation {
            Activation::Relu => 1,
            Activation::Gelu | Activation::GeluTanh => 8,
        };
        let (model, inner) = (Dim::Fixed(self.model), Dim::Fixed(self.inner));
        let linear =
            model.times(&inner)?.times_number(4)?.plus(&inner.times_number(activation + 2)?)?;
        linear.plus(&model.times_number(parts * (8 + 1 + 2))?)
    }
}
