//! The squares of a stage's gradients, of which the boss computes the norm.

use crate::engine::error::EngineError;
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::params::param_store::ParamStore;
use layerspec::LayerId;
use pipeline::norm::{blocks, summed, Square, BLOCK};
use tch::{Kind, Tensor};
use tensor::memory::squares_of_blocks;
use tensor::transfer::HostCopy;
use tensor::TensorError;

/// Sums of squares that a GPU may still be computing.
#[derive(Debug)]
pub struct GradSquares {
    parts: Vec<GradientPart>,
    /// The sums of the blocks of each part, one part after the other.
    sums: HostCopy,
}

/// The gradient of a parameter, or this replica's shard of it.
#[derive(Debug)]
struct GradientPart {
    layer: LayerId,
    number: u32,
    /// The number of blocks of the whole gradient.
    blocks: u32,
    /// The first block here.
    first: u32,
    /// The number of blocks here.
    count: usize,
}

/// The sums of squares of the gradient of each parameter that the stage owns, or of this replica's
/// shard of it. They depend neither on the cut nor on the number of threads or the sharding.
pub(crate) fn grad_squares(
    store: &ParamStore,
    gradients: &GradientStore,
) -> Result<GradSquares, EngineError> {
    let params = store.params();
    let (mut parts, mut all) = (Vec::new(), Vec::new());
    for (index, gradient) in gradients.totals(params)?.into_iter().enumerate() {
        let param = &params.all[index];
        let Some(gradient) = gradient.filter(|_| param.owner_stage.is_none()) else { continue };
        let range = store.shards().shard_range(params, index);
        let begin = range.map_or(0, |range| range.start.unsigned_abs());
        let sums = squares_of_blocks(&gradient, BLOCK as usize)?;
        parts.push(GradientPart {
            layer: param.owner,
            number: param.number,
            blocks: blocks(param.tensor.numel() as u64),
            first: u32::try_from(begin / BLOCK).unwrap_or(u32::MAX),
            count: sums.numel(),
        });
        all.push(sums);
    }
    Ok(GradSquares { parts, sums: HostCopy::begin(&joined(&all)?)? })
}

fn joined(all: &[Tensor]) -> Result<Tensor, TensorError> {
    Ok(match all {
        [] => Tensor::f_zeros([0], (Kind::Double, tch::Device::Cpu))?,
        several => Tensor::f_cat(several, 0)?,
    })
}

impl GradSquares {
    /// Whether nobody needs to wait for the sums.
    pub fn are_known(&self) -> bool {
        self.sums.is_made()
    }

    /// The sums. Waits for them.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&self) -> Result<Vec<Square>, TensorError> {
        let numbers = self.sums.numbers()?;
        let (mut rest, mut squares) = (numbers.as_slice(), Vec::new());
        for part in &self.parts {
            let (sums, others) = rest.split_at(part.count.min(rest.len()));
            rest = others;
            let GradientPart { layer, number, blocks, first, .. } = *part;
            let nodes = summed(blocks, first, sums).into_iter();
            squares.extend(nodes.map(|(node, sum)| Square { layer, number, blocks, node, sum }));
        }
        Ok(squares)
    }
}
