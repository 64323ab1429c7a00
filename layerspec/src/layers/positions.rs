//! Layers that add an encoding of each position to a sequence.

use super::arguments::{bad, expect_float32, expect_floating};
use super::attention::Sequence;
use super::{layer, BadArgument, Rules};
use crate::yaml::{COUNT, FLAG, PROBABILITY, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Adds sines and cosines of each position's number to it (Vaswani et al. 2017,
    /// arXiv:1706.03762), then drops out: `sin(position / 10000^(2i / d_model))` in column `2i`,
    /// the cosine in the next. PyTorch has it in a tutorial.
    PositionalEncoding {
        /// Size of the input's last dimension.
        d_model: u64 = SIZE;
        /// Longer sequences are refused.
        max_len: u64 = SIZE, or 5000;
        /// Probability that an element of the sum is set to zero.
        dropout: f64 = PROBABILITY, or 0.1;
        /// Whether the input is `[batch, seq, d_model]`, and not `[seq, batch, d_model]`.
        batch_first: bool = FLAG, or false;
    }
}

layer! {
    /// Adds a learned row to each position: an `Embedding` of the positions' numbers. Not
    /// PyTorch's.
    LearnedPositions {
        /// Number of rows; longer sequences are refused.
        num_positions: u64 = SIZE;
        /// Size of each row, and of the input's last dimension.
        d_model: u64 = SIZE;
        /// Whether the input is `[batch, seq, d_model]`, and not `[seq, batch, d_model]`.
        batch_first: bool = FLAG, or false;
        /// Rows before that of the first position. They are not used; RoBERTa has 2.
        offset: u64 = COUNT, or 0;
    }
}

impl LearnedPositions {
    /// The positions that have a row.
    pub fn positions(&self) -> u64 {
        self.num_positions.saturating_sub(self.offset)
    }
}

/// Refuses an input that is not a sequence of vectors of this size, or is longer than `most`, which
/// `argument` says.
fn expect_positions(
    input: &TensorType,
    batch_first: bool,
    d_model: u64,
    argument: &str,
    most: u64,
) -> Result<(), String> {
    let Some(Sequence { positions, .. }) = Sequence::of(input, batch_first, d_model) else {
        let dims = if batch_first { "batch, seq" } else { "seq, batch" };
        return Err(format!("expected an input [{dims}, {d_model}] (d_model), found {input}"));
    };
    match positions.as_fixed() {
        Some(length) if length > most => {
            Err(format!("expected at most {most} positions ({argument}), found {input}"))
        }
        _ => Ok(()),
    }
}

impl Rules for PositionalEncoding {
    fn mixes_outermost(&self) -> bool {
        !self.batch_first
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_floating(&inputs[0])?;
        expect_positions(&inputs[0], self.batch_first, self.d_model, "max_len", self.max_len)?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        // A sum, and the dropout after it.
        Dim::product(inputs[0].dims())?.times_number(1 + 2)
    }
}

impl Rules for LearnedPositions {
    fn check(&self) -> Result<(), BadArgument> {
        match self.positions() {
            0 => Err(bad("offset", format!("less than num_positions ({})", self.num_positions))),
            _ => Ok(()),
        }
    }

    fn mixes_outermost(&self) -> bool {
        !self.batch_first
    }

    fn params(&self) -> Vec<ParamSpec> {
        let init = Init::Normal { mean: 0.0, std: 1.0 };
        vec![ParamSpec::parameter("weight", vec![self.num_positions, self.d_model], init)]
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_float32(&inputs[0])?;
        expect_positions(
            &inputs[0],
            self.batch_first,
            self.d_model,
            match self.offset {
                0 => "num_positions",
                _ => "num_positions - offset",
            },
            self.positions(),
        )?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())
    }
}
