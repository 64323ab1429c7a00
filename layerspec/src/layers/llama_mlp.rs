use super::arguments::expect_float32;
use super::llama::linear;
use super::{layer, Rules};
use crate::yaml::{Reader, FLAG, SIZE};
use crate::{Dim, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};

/// The function of a [`LlamaMLP`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LlamaActivation {
    /// As `SiLU`.
    Silu,
    /// As `GELU`, by the error function.
    Gelu,
    /// As `GELU`, by the hyperbolic tangent.
    GeluTanh,
}

const ACTIVATION: Reader<LlamaActivation> =
    Reader::keyword("`silu`, `gelu` or `gelu_tanh`", &["silu", "gelu", "gelu_tanh"], |node| {
        match node.as_text()? {
            "silu" => Some(LlamaActivation::Silu),
            "gelu" => Some(LlamaActivation::Gelu),
            "gelu_tanh" => Some(LlamaActivation::GeluTanh),
            _ => None,
        }
    });

layer! {
    /// `down(activation(gate(x)) * up(x))`, three linear layers (SwiGLU and GEGLU, Shazeer 2020,
    /// arXiv:2002.05202), as Hugging Face's. Not PyTorch's.
    LlamaMLP {
        /// Size of the last dimension of input and output.
        hidden_size: u64 = SIZE;
        /// Size between the linear layers.
        intermediate_size: u64 = SIZE;
        /// Whether the linear layers add a learned bias.
        mlp_bias: bool = FLAG, or false;
        /// The function of the gate; `gelu_tanh` is `GELU` with `approximate: tanh`, as Gemma's.
        activation: LlamaActivation = ACTIVATION, or LlamaActivation::Silu => "silu";
        /// Whether one linear layer, `gate_up_proj`, is both gate and up, as Phi-3's.
        fused: bool = FLAG, or false;
    }
}

impl LlamaMLP {
    /// The size of gate and up together. Too large a size stays too large.
    pub fn fused_size(&self) -> u64 {
        self.intermediate_size.saturating_mul(2)
    }
}

impl Rules for LlamaMLP {
    fn params(&self) -> Vec<ParamSpec> {
        let (model, inner, bias) = (self.hidden_size, self.intermediate_size, self.mlp_bias);
        let both = match self.fused {
            true => {
                let names = ["gate_up_proj.weight", "gate_up_proj.bias"];
                linear(names, [self.fused_size(), model], bias)
            }
            false => [
                linear(["gate_proj.weight", "gate_proj.bias"], [inner, model], bias),
                linear(["up_proj.weight", "up_proj.bias"], [inner, model], bias),
            ]
            .concat(),
        };
        [both, linear(["down_proj.weight", "down_proj.bias"], [model, inner], bias)].concat()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_float32(input)?;
        match input.dims() {
            [.., last] if *last == Dim::Fixed(self.hidden_size) => Ok(inputs.to_vec()),
            _ => Err(format!(
                "expected an input [.., {}] (hidden_size), found {input}",
                self.hidden_size
            )),
        }
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let activation = match self.activation {
            LlamaActivation::Silu => 5,
            LlamaActivation::Gelu | LlamaActivation::GeluTanh => 8,
        };
        // For each element of the input a column of three products; the activation and a product
        // in between.
        let each = Dim::Fixed(self.intermediate_size).times_number(6)?;
        let rows = inputs[0].dims().split_last().map_or(&[][..], |(_, outer)| outer);
        let between = Dim::product(rows)?
            .times_number(self.intermediate_size)?
            .times_number(activation + 1)?;
        Dim::product(inputs[0].dims())?.times(&each)?.plus(&between)
    }
}
