//! The model's outputs that come back from a round.

use serde::{Deserialize, Serialize};

/// The model's outputs that a round sends to the boss.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RoundOutputs {
    /// None of them.
    #[default]
    None,
    /// All of them.
    All,
    /// Only the first one. If no other stage uses it, only its last position: the logits of the
    /// next token, instead of those of a whole prompt.
    First(LastPosition),
}

impl RoundOutputs {
    /// Whether the boss gets the model's output with this number.
    pub fn has(self, model_output: u32) -> bool {
        match self {
            RoundOutputs::None => false,
            RoundOutputs::All => true,
            RoundOutputs::First(_) => model_output == 0,
        }
    }
}

/// The last of several positions in a tensor with three dimensions.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastPosition {
    /// The dimension of the positions.
    pub dim: u8,
    /// Their number. A tensor with another number is sent whole, so that the boss can tell its
    /// shape.
    pub positions: u64,
}

impl LastPosition {
    /// The index of the last position in a tensor of this shape, or `None` if it does not have
    /// these positions.
    pub fn index(self, shape: &[i64]) -> Option<i64> {
        let positions = i64::try_from(self.positions).ok().filter(|count| *count > 0)?;
        let found = shape.get(usize::from(self.dim)).filter(|_| shape.len() == 3)?;
        (*found == positions).then_some(positions - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tensor_with_these_positions_has_a_last_one() {
        let of = |dim, positions| LastPosition { dim, positions };
        assert_eq!(of(2, 4).index(&[1, 3, 4]), Some(3));
        assert_eq!(of(1, 3).index(&[1, 3, 4]), Some(2));
        for (last, shape) in [
            (of(1, 4), &[1, 3, 4][..]),
            (of(1, 4), &[3, 4]),
            (of(3, 4), &[1, 3, 4]),
            (of(1, 0), &[1, 0, 4]),
            (of(1, u64::MAX), &[1, -1, 4]),
        ] {
            assert_eq!(last.index(shape), None, "{last:?} {shape:?}");
        }
    }
}
