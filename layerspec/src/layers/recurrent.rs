//! Layers that go through a sequence step by step.

use super::attention::Sequence;
use super::{layer, Arity, Rules};
use crate::yaml::{Reader, FLAG, PROBABILITY, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// More layers are refused: each has parameters with names of their own.
const MAX_LAYERS: u64 = 64;

const LAYERS: Reader<u64> = Reader::new("a whole number from 1 to 64", |node| {
    (SIZE.read)(node).filter(|layers| *layers <= MAX_LAYERS)
});

/// PyTorch's names of the parameters of each layer, forward and reverse.
static NAMES: LazyLock<Vec<[[String; 4]; 2]>> = LazyLock::new(|| {
    let of = |layer: u64, direction: &str| {
        ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
            .map(|name| format!("{name}_l{layer}{direction}"))
    };
    (0..MAX_LAYERS).map(|layer| ["", "_reverse"].map(|direction| of(layer, direction))).collect()
});

/// The function of an [`RNN`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Nonlinearity {
    /// Hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

const NONLINEARITY: Reader<Nonlinearity> =
    Reader::keyword("`tanh` or `relu`", &["tanh", "relu"], |node| match node.as_text()? {
        "tanh" => Some(Nonlinearity::Tanh),
        "relu" => Some(Nonlinearity::Relu),
        _ => None,
    });

/// The arguments that determine parameters, shapes and costs.
struct Steps {
    /// The number of gates: vectors of the hidden size that each step computes.
    gates: u64,
    input: u64,
    hidden: u64,
    layers: u64,
    directions: u64,
    bias: bool,
    batch_first: bool,
    /// The names of the states before the first step.
    states: &'static [&'static str],
}

impl Steps {
    /// Width of what a layer takes.
    fn input_of(&self, layer: u64) -> u64 {
        if layer == 0 {
            self.input
        } else {
            self.hidden.saturating_mul(self.directions)
        }
    }

    fn arity(&self) -> Arity {
        Arity::Named(vec![vec!["input"], [&["input"], self.states].concat()])
    }

    fn params(&self) -> Vec<ParamSpec> {
        let init = Init::fan_in(self.hidden as f64);
        let rows = self.gates.saturating_mul(self.hidden);
        let mut params = Vec::new();
        for (layer, names) in (0..self.layers).zip(NAMES.iter()) {
            for (_, [of_input, of_hidden, bias_of_input, bias_of_hidden]) in
                (0..self.directions).zip(names)
            {
                params.push(ParamSpec::parameter(of_input, vec![rows, self.input_of(layer)], init));
                params.push(ParamSpec::parameter(of_hidden, vec![rows, self.hidden], init));
                if self.bias {
                    params.push(ParamSpec::parameter(bias_of_input, vec![rows], init));
                    params.push(ParamSpec::parameter(bias_of_hidden, vec![rows], init));
                }
            }
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        let Sequence { samples, .. } =
            Sequence::expect(input, "input", self.batch_first, "input_size", self.input)?;
        let runs = self.layers.checked_mul(self.directions).ok_or(OutOfRange)?;
        let dims = vec![Dim::Fixed(runs), samples.clone(), Dim::Fixed(self.hidden)];
        let state = TensorType::new(DType::Float32, dims);
        if let Some((name, given)) =
            self.states.iter().zip(&inputs[1..]).find(|(_, given)| **given != state)
        {
            return Err(format!("expected for `{name}` {state}, found {given}"));
        }
        let mut dims = input.dims().to_vec();
        dims[2] = Dim::Fixed(self.hidden.checked_mul(self.directions).ok_or(OutOfRange)?);
        let output = TensorType::new(DType::Float32, dims);
        Ok(std::iter::once(output).chain(self.states.iter().map(|_| state.clone())).collect())
    }

    /// For each step, layer and direction: two products, and about 8 for each element of a gate.
    fn flops(&self, inputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        let [first, second, _] = inputs[0].dims() else { return Err(OutOfRange) };
        let of_width = |width: u64, times: u64| {
            let columns = width.checked_add(self.hidden)?.checked_mul(2)?.checked_add(8)?;
            columns
                .checked_mul(self.gates.checked_mul(self.hidden)?)?
                .checked_mul(self.directions)?
                .checked_mul(times)
        };
        let others = self.layers.saturating_sub(1);
        let each = of_width(self.input, 1).zip(of_width(self.input_of(1), others));
        let each = each.and_then(|(first, others)| first.checked_add(others)).ok_or(OutOfRange)?;
        Dim::product([first, second])?.times_number(each)
    }
}

/// Declares a layer with its gates and states.
macro_rules! recurrent {
    (
        $(#[doc = $doc:literal])+
        $Name:ident: $gates:literal gates, states $states:expr
        $(, with $(#[doc = $own_doc:literal])+
            $own:ident: $Own:ty = $reader:expr, or $default:expr => $shown:literal)?
        $(, unsupported { $($refused:ident: $instead:literal;)* })?
    ) => {
        layer! {
            $(#[doc = $doc])+
            $Name {
                /// Size of the input's last dimension.
                input_size: u64 = SIZE;
                /// Size of a state, and of the output's last dimension (twice that if it is
                /// bidirectional).
                hidden_size: u64 = SIZE;
                /// Number of layers, each of which goes through what the one below it gave.
                num_layers: u64 = LAYERS, or 1;
                $($(#[doc = $own_doc])+ $own: $Own = $reader, or $default => $shown;)?
                /// Whether each step adds learned biases.
                bias: bool = FLAG, or true;
                /// Whether input and output are `[batch, seq, size]`, and not `[seq, batch, size]`.
                batch_first: bool = FLAG, or false;
                /// Probability that an element is set to zero of what one layer gives to the next.
                dropout: f64 = PROBABILITY, or 0.0;
                /// Whether it goes through the sequence from its end, too, with parameters for
                /// that.
                bidirectional: bool = FLAG, or false;
            }
            $(unsupported { $($refused: $instead;)* })?
        }

        impl $Name {
            fn steps(&self) -> Steps {
                Steps {
                    gates: $gates,
                    input: self.input_size,
                    hidden: self.hidden_size,
                    layers: self.num_layers,
                    directions: if self.bidirectional { 2 } else { 1 },
                    bias: self.bias,
                    batch_first: self.batch_first,
                    states: $states,
                }
            }
        }

        impl Rules for $Name {
            fn arity(&self) -> Arity {
                self.steps().arity()
            }

            fn mixes_outermost(&self) -> bool {
                !self.batch_first
            }

            fn params(&self) -> Vec<ParamSpec> {
                self.steps().params()
            }

            fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
                self.steps().infer(inputs)
            }

            fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
                self.steps().flops(inputs)
            }
        }
    };
}

recurrent! {
    /// Goes through a sequence (Elman 1990): each step makes a state of its input and the state
    /// before. Inputs: the sequence and, if not zeros, the states before the first step, `[layers
    /// and directions, batch, hidden_size]`. Outputs, which `out_variables` can name: the last
    /// layer's states at every step, and all layers' after the last.
    RNN: 1 gates, states &["h_0"],
    with
        /// The function of each step.
        nonlinearity: Nonlinearity = NONLINEARITY, or Nonlinearity::Tanh => "tanh"
}

recurrent! {
    /// As `RNN`, with gates that keep a state over many steps (Cho et al. 2014, arXiv:1406.1078).
    GRU: 3 gates, states &["h_0"]
}

recurrent! {
    /// As `RNN`, with gates and a second state that lasts (Hochreiter and Schmidhuber 1997).
    /// Inputs: the sequence and, if not zeros, both states before the first step. Outputs: the last
    /// layer's first states at every step, and both states of all layers after the last.
    LSTM: 4 gates, states &["h_0", "c_0"],
    unsupported { proj_size: "states are not projected; leave it out"; }
}
