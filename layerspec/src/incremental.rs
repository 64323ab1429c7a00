//! Incremental decoding: the layers that can compute the new positions of a growing sequence alone.
//! They work on each position by itself, or attend to earlier positions only, whose keys and values
//! are cached.

use crate::layers::Transpose;
use crate::{Layer, LayerGraph, LayerId, LayerKind, ValueId};
use std::collections::HashMap;

/// A layer that needs the whole sequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer} ({kind}) needs {needs}")]
pub struct NotIncremental {
    /// Its name.
    pub layer: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its requirement.
    pub needs: &'static str,
}

const WHOLE: &str = "the whole sequence";
const CAUSAL: &str = "to be causal, with batch_first and without a mask between positions";

impl LayerGraph {
    /// The layers that depend on these inputs, ascending, if each of them can continue from earlier
    /// positions. Dimension 1 of each input is the position.
    ///
    /// # Errors
    /// The first layer that cannot continue.
    pub fn incremental(&self, inputs: &[ValueId]) -> Result<Vec<LayerId>, NotIncremental> {
        // The dimension of the positions of each value that has one.
        let mut positions: HashMap<ValueId, usize> =
            inputs.iter().map(|input| (*input, 1)).collect();
        let mut layers = Vec::new();
        for layer in self.layers() {
            let ports: Vec<Option<usize>> =
                layer.inputs.iter().map(|value| positions.get(value).copied()).collect();
            if ports.iter().all(Option::is_none) {
                continue;
            }
            let dims = self.value(layer.inputs[0]).ty.dims().len();
            let output = output(layer, &ports, dims);
            let refused = |needs| NotIncremental {
                layer: layer.name.clone(),
                kind: layer.kind.name(),
                needs,
            };
            let output = output.map_err(refused)?;
            positions.extend(layer.outputs.iter().map(|value| (*value, output)));
            layers.push(layer.id);
        }
        // Samples may continue in another order, so cached outputs of the other layers must begin
        // with the batch dimension.
        let begins_with_batch = |value: &ValueId| {
            let first = self.value(*value).ty.dims().first().map(ToString::to_string);
            self.batch().is_some() && first.as_deref() == self.batch()
        };
        let fixed = self.layers().iter().filter(|layer| !layers.contains(&layer.id));
        for layer in fixed.filter(|_| !layers.is_empty()) {
            let used = layer.outputs.iter().filter(|value| !self.users(**value).is_empty());
            if !used.clone().all(begins_with_batch) {
                let (layer, kind) = (layer.name.clone(), layer.kind.name());
                return Err(NotIncremental {
                    layer,
                    kind,
                    needs: "outputs that begin with the batch",
                });
            }
        }
        Ok(layers)
    }
}

/// The dimension of the positions in the layer's output.
fn output(layer: &Layer, ports: &[Option<usize>], dims: usize) -> Result<usize, &'static str> {
    let first = ports.first().copied().flatten();
    let alone = first.filter(|_| ports.len() == 1).ok_or(WHOLE);
    // These layers work on the last dimension, so positions must be in another one.
    let before_last = || alone.and_then(|dim| if dim + 1 < dims { Ok(dim) } else { Err(WHOLE) });
    let second = || alone.and_then(|dim| if dim == 1 { Ok(dim) } else { Err(WHOLE) });
    match &layer.kind {
        LayerKind::Embedding(_)
        | LayerKind::Identity(_)
        | LayerKind::ReLU(_)
        | LayerKind::GELU(_)
        | LayerKind::SiLU(_)
        | LayerKind::Sigmoid(_)
        | LayerKind::Tanh(_)
        | LayerKind::Mish(_)
        | LayerKind::Scale(_)
        | LayerKind::Clamp(_)
        | LayerKind::Abs(_)
        | LayerKind::Exp(_)
        | LayerKind::Sqrt(_)
        | LayerKind::Rsqrt(_)
        | LayerKind::DropPath(_)
        | LayerKind::Dropout(_) => alone,
        LayerKind::Linear(_) | LayerKind::LlamaMLP(_) => before_last(),
        LayerKind::RMSNorm(norm) if norm.normalized_shape.len() == 1 => before_last(),
        LayerKind::LayerNorm(norm) if norm.normalized_shape.len() == 1 => before_last(),
        LayerKind::Add(_) | LayerKind::Sub(_) | LayerKind::Mul(_) | LayerKind::Div(_) => {
            match first {
                // An input without positions would be broadcast over the new positions.
                Some(dim) if ports.iter().all(|port| *port == first) => Ok(dim),
                _ => Err("every input to grow"),
            }
        }
        LayerKind::Transpose(axes) => alone.map(|dim| transposed(axes, dim, dims)),
        LayerKind::PositionalEncoding(encoding) if encoding.batch_first => second(),
        LayerKind::LearnedPositions(learned) if learned.batch_first => second(),
        LayerKind::RotaryEmbedding(rotary) if rotary.num_heads.is_some() => second(),
        LayerKind::LlamaAttention(_)
        | LayerKind::TransformerEncoderLayer(_)
        | LayerKind::TransformerDecoderLayer(_)
        | LayerKind::MultiheadAttention(_) => match continues(&layer.kind, ports) {
            true => Ok(1),
            false => Err(CAUSAL),
        },
        _ => Err(WHOLE),
    }
}

/// The dimension that `dim` becomes.
fn transposed(axes: &Transpose, dim: usize, dims: usize) -> usize {
    let index = |index: i64| {
        usize::try_from(if index < 0 { index + dims as i64 } else { index }).unwrap_or(dims)
    };
    match (index(axes.dim0), index(axes.dim1)) {
        (one, other) if dim == one => other,
        (one, other) if dim == other => one,
        _ => dim,
    }
}

/// Whether a layer with attention can continue from cached keys and values.
fn continues(kind: &LayerKind, ports: &[Option<usize>]) -> bool {
    // One input with positions, and at most its padding mask, which has positions too.
    let is_self_attention = matches!(ports, [Some(1)] | [Some(1), Some(1)]);
    match kind {
        // `rope_scaling` of `dynamic` and `longrope` depends on the length of the whole sequence.
        // Cached keys stay turned as they were when they were new, so the result is not that of the
        // whole sequence at once. Transformers does the same, except for Phi-3: it computes all
        // keys anew when the text gets longer than the first training's.
        LayerKind::LlamaAttention(llama) => is_self_attention && llama.is_causal,
        LayerKind::TransformerEncoderLayer(encoder) => {
            is_self_attention && encoder.is_causal && encoder.batch_first && !encoder.src_mask
        }
        LayerKind::MultiheadAttention(attention) => {
            // Without causality: queries with new positions, over fixed keys.
            let fits = match ports {
                _ if attention.is_causal => is_self_attention,
                [Some(1), others @ ..] => !others.is_empty() && others.iter().all(Option::is_none),
                _ => false,
            };
            fits && attention.batch_first && !attention.attn_mask
        }
        LayerKind::TransformerDecoderLayer(decoder) => {
            let has_positions = |mask: &&str| mask.starts_with("tgt");
            let masks = decoder.masks();
            let expected = [true, false].into_iter().chain(masks.iter().map(has_positions));
            decoder.tgt_is_causal
                && decoder.batch_first
                && !decoder.tgt_mask
                && !decoder.memory_mask
                && expected.eq(ports.iter().map(Option::is_some))
        }
        _ => false,
    }
}
