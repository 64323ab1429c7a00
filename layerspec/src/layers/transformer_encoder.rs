use super::arguments::{bad, expect_float32};
use super::{layer, BadArgument, Rules};
use crate::yaml::{Reader, FLAG, NON_NEGATIVE, PROBABILITY, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};

/// The function between the two linear layers of a [`TransformerEncoderLayer`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// Gaussian error linear unit, by the error function.
    Gelu,
}

const ACTIVATION: Reader<Activation> =
    Reader::word("`relu` or `gelu`", &["relu", "gelu"], |node| match node.as_text()? {
        "relu" => Some(Activation::Relu),
        "gelu" => Some(Activation::Gelu),
        _ => None,
    });

layer! {
    /// Attention of every position to every other (Vaswani et al. 2017, arXiv:1706.03762), then two
    /// linear layers on each position; both have a residual connection and a layer norm. It takes no mask.
    TransformerEncoderLayer {
        /// Size of the last dimension of input and output.
        d_model: u64 = SIZE;
        /// Number of heads, which share `d_model` equally.
        nhead: u64 = SIZE;
        /// Size between the two linear layers.
        dim_feedforward: u64 = SIZE, or 2048;
        /// Probability that an element is set to zero: of the attention weights, of the activation's result,
        /// and of what either part adds to its input.
        dropout: f64 = PROBABILITY, or 0.1;
        /// The function between the two linear layers.
        activation: Activation = ACTIVATION, or Activation::Relu => "relu";
        /// Added to the variance by the layer norms, against division by zero.
        layer_norm_eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Whether the input is `[batch, seq, d_model]`, and not `[seq, batch, d_model]`.
        batch_first: bool = FLAG, or false;
        /// Whether to normalise before attention and before the linear layers, and not after adding.
        norm_first: bool = FLAG, or false;
        /// Whether linear layers and layer norms add a learned bias.
        bias: bool = FLAG, or true;
    }
}

impl TransformerEncoderLayer {
    /// The sizes of an input: how many samples, and how many positions each has.
    fn samples_and_positions<'a>(&self, input: &'a TensorType) -> Option<[&'a Dim; 2]> {
        match input.dims() {
            [samples, positions, last] if self.batch_first && *last == Dim::Fixed(self.d_model) => {
                Some([samples, positions])
            }
            [positions, samples, last] if !self.batch_first && *last == Dim::Fixed(self.d_model) => {
                Some([samples, positions])
            }
            _ => None,
        }
    }
}

impl Rules for TransformerEncoderLayer {
    fn check(&self) -> Result<(), BadArgument> {
        if self.d_model.checked_rem(self.nhead) == Some(0) {
            return Ok(());
        }
        Err(bad("nhead", format!("a divisor of d_model ({})", self.d_model)))
    }

    fn params(&self) -> Vec<ParamSpec> {
        let (model, inner) = (self.d_model, self.dim_feedforward);
        // Too large a size stays too large, and the number of elements says so.
        let three = model.saturating_mul(3);
        // PyTorch draws the three projections as one matrix: `xavier_uniform_` of [3 * d_model, d_model].
        let xavier = (6.0 / (4.0 * model as f64)).sqrt();
        let (by_model, by_inner) = (Init::fan_in(model as f64), Init::fan_in(inner as f64));
        let mut params = Vec::with_capacity(12);
        let mut add = |[weight, bias]: [&'static str; 2], shape: Vec<u64>, [of_weight, of_bias]: [Init; 2]| {
            let size = shape[0];
            params.push(ParamSpec::parameter(weight, shape, of_weight));
            if self.bias {
                params.push(ParamSpec::parameter(bias, vec![size], of_bias));
            }
        };
        let in_proj = Init::Uniform { low: -xavier, high: xavier };
        add(["self_attn.in_proj_weight", "self_attn.in_proj_bias"], vec![three, model], [in_proj, Init::Zeros]);
        add(["self_attn.out_proj.weight", "self_attn.out_proj.bias"], vec![model, model], [by_model, Init::Zeros]);
        add(["linear1.weight", "linear1.bias"], vec![inner, model], [by_model; 2]);
        add(["linear2.weight", "linear2.bias"], vec![model, inner], [by_inner; 2]);
        add(["norm1.weight", "norm1.bias"], vec![model], [Init::Ones, Init::Zeros]);
        add(["norm2.weight", "norm2.bias"], vec![model], [Init::Ones, Init::Zeros]);
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_float32(input)?;
        if self.samples_and_positions(input).is_some() {
            return Ok(inputs.to_vec());
        }
        let dims = if self.batch_first { "batch, seq" } else { "seq, batch" };
        Err(format!("expected an input [{dims}, {}] (d_model), found {input}", self.d_model))
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let [samples, positions] = self.samples_and_positions(&inputs[0]).ok_or(OutOfRange)?;
        let (model, inner) = (Dim::Fixed(self.d_model), Dim::Fixed(self.dim_feedforward));
        let activation = match self.activation {
            Activation::Relu => 1,
            Activation::Gelu => 8,
        };
        // For one position: four projections, two linear layers and the activation between them; two layer
        // norms (8 an element), two sums and the dropout before each (2 an element).
        let projections = model.times(&model)?.times_number(8)?;
        let linear = model.times(&inner)?.times_number(4)?.plus(&inner.times_number(activation + 2)?)?;
        let around = model.times_number(2 * (8 + 1 + 2))?;
        // For one position and each other that it attends to: the products of scores and of values, and in
        // every head a softmax (5) and dropout (2).
        let attention = model.times_number(4)?.plus(&Dim::Fixed(self.nhead).times_number(5 + 2)?)?;
        let for_position = projections.plus(&linear)?.plus(&around)?.plus(&attention.times(positions)?)?;
        samples.times(positions)?.times(&for_position)
    }
}
