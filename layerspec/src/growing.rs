//! Which layers can be given the new positions of a growing sequence alone, because they work on each position by itself, or
//! attend to earlier ones only, which attention remembers.

use crate::{Layer, LayerGraph, LayerId, LayerKind, ValueId};
use std::collections::HashMap;

/// A layer that needs the whole sequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer} ({kind}) needs {needs}")]
pub struct NeedsAll {
    /// Its name.
    pub layer: String,
    /// Its kind.
    pub kind: &'static str,
    /// What it needs, or what it would have to be told.
    pub needs: &'static str,
}

const WHOLE: &str = "the whole sequence";
const CAUSAL: &str = "to be causal, with batch_first and without a mask between positions";

impl LayerGraph {
    /// The layers that work on these inputs' positions, ascending, where each of them can go on from the positions that came
    /// before. Of each input, dimension 1 counts positions.
    ///
    /// # Errors
    /// The first layer that cannot.
    pub fn growing(&self, inputs: &[ValueId]) -> Result<Vec<LayerId>, NeedsAll> {
        // The dimension of the positions, for each value that has some.
        let mut positions: HashMap<ValueId, usize> = inputs.iter().map(|input| (*input, 1)).collect();
        let mut layers = Vec::new();
        for layer in self.layers() {
            let ports: Vec<Option<usize>> = layer.inputs.iter().map(|value| positions.get(value).copied()).collect();
            if ports.iter().all(Option::is_none) {
                continue;
            }
            let dims = self.value(layer.inputs[0]).ty.dims().len();
            let output = output(layer, &ports, dims);
            let refused = |needs| NeedsAll { layer: layer.name.clone(), kind: layer.kind.name(), needs };
            let output = output.map_err(refused)?;
            positions.extend(layer.outputs.iter().map(|value| (*value, output)));
            layers.push(layer.id);
        }
        // Samples go on in another order, so whatever is remembered of the other layers must begin with them.
        let begins_with_batch = |value: &ValueId| {
            let first = self.value(*value).ty.dims().first().map(ToString::to_string);
            self.batch().is_some() && first.as_deref() == self.batch()
        };
        let fixed = self.layers().iter().filter(|layer| !layers.contains(&layer.id));
        for layer in fixed.filter(|_| !layers.is_empty()) {
            let used = layer.outputs.iter().filter(|value| !self.users(**value).is_empty());
            if !used.clone().all(begins_with_batch) {
                let (layer, kind) = (layer.name.clone(), layer.kind.name());
                return Err(NeedsAll { layer, kind, needs: "outputs that begin with the batch" });
            }
        }
        Ok(layers)
    }
}

/// The dimension of the positions in the layer's output.
fn output(layer: &Layer, ports: &[Option<usize>], dims: usize) -> Result<usize, &'static str> {
    let first = ports.first().copied().flatten();
    let alone = first.filter(|_| ports.len() == 1);
    // Whether positions are not in the last dimension, which such layers work on.
    let beside = |dim: Option<usize>| dim.filter(|dim| dim + 1 < dims).ok_or(WHOLE);
    let swapped = |index: i64| usize::try_from(if index < 0 { index + dims as i64 } else { index }).unwrap_or(dims);
    // Attention to itself: one input that grows and at most the padding of it, which grows too.
    let to_itself = |fits: bool| match ports {
        [Some(1)] | [Some(1), Some(1)] if fits => Ok(1),
        _ => Err(CAUSAL),
    };
    match &layer.kind {
        LayerKind::Embedding(_) => alone.ok_or(WHOLE),
        LayerKind::Identity(_)
        | LayerKind::ReLU(_)
        | LayerKind::GELU(_)
        | LayerKind::SiLU(_)
        | LayerKind::Sigmoid(_)
        | LayerKind::Tanh(_)
        | LayerKind::Mish(_)
        | LayerKind::Scale(_)
        | LayerKind::Dropout(_) => alone.ok_or(WHOLE),
        LayerKind::Linear(_) | LayerKind::LlamaMLP(_) => beside(alone),
        LayerKind::RMSNorm(norm) if norm.normalized_shape.len() == 1 => beside(alone),
        LayerKind::LayerNorm(norm) if norm.normalized_shape.len() == 1 => beside(alone),
        LayerKind::Add(_) | LayerKind::Sub(_) | LayerKind::Mul(_) => match first {
            // A part that does not grow would be stretched over the new positions.
            Some(dim) if ports.iter().all(|port| *port == first) => Ok(dim),
            _ => Err("every input to grow"),
        },
        LayerKind::Transpose(axes) => {
            let (one, other) = (swapped(axes.dim0), swapped(axes.dim1));
            alone
                .map(|dim| {
                    if dim == one {
                        other
                    } else if dim == other {
                        one
                    } else {
                        dim
                    }
                })
                .ok_or(WHOLE)
        }
        LayerKind::PositionalEncoding(encoding) if encoding.batch_first => alone.filter(|dim| *dim == 1).ok_or(WHOLE),
        LayerKind::LearnedPositions(learned) if learned.batch_first => alone.filter(|dim| *dim == 1).ok_or(WHOLE),
        LayerKind::RotaryEmbedding(rotary) if rotary.num_heads.is_some() => alone.filter(|dim| *dim == 1).ok_or(WHOLE),
        LayerKind::LlamaAttention(llama) => to_itself(llama.is_causal),
        LayerKind::TransformerEncoderLayer(encoder) => {
            to_itself(encoder.is_causal && encoder.batch_first && !encoder.src_mask)
        }
        LayerKind::MultiheadAttention(attention) if !attention.is_causal => match ports {
            // Queries that grow, over keys that do not.
            [Some(1), others @ ..] if !others.is_empty() && others.iter().all(Option::is_none) => {
                if attention.batch_first && !attention.attn_mask {
                    Ok(1)
                } else {
                    Err(CAUSAL)
                }
            }
            _ => Err(CAUSAL),
        },
        LayerKind::MultiheadAttention(attention) => to_itself(attention.batch_first && !attention.attn_mask),
        LayerKind::TransformerDecoderLayer(decoder) => {
            let grows = |mask: &&str| mask.starts_with("tgt");
            let masks = decoder.masks();
            let wanted: Vec<bool> = [true, false].into_iter().chain(masks.iter().map(grows)).collect();
            let found: Vec<bool> = ports.iter().map(Option::is_some).collect();
            let fits = decoder.tgt_is_causal && decoder.batch_first && !decoder.tgt_mask && !decoder.memory_mask;
            if fits && wanted == found {
                Ok(1)
            } else {
                Err(CAUSAL)
            }
        }
        _ => Err(WHOLE),
    }
}
