use crate::engine::error::layer_error;
use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::attention::heads::{Attention, AttentionHeads, Scores};
use crate::engine::modules::builder::{LayerBuilder, WeightBiasNames};
use crate::engine::modules::by_autograd::{AutogradOp, Differentiable};
use crate::engine::sizes::size;
use layerspec::layers::MultiheadAttention;
use tch::Tensor;
use tensor::TensorError;

const IN_PROJ: WeightBiasNames = ["in_proj_weight", "in_proj_bias"];
const OUT_PROJ: WeightBiasNames = ["out_proj.weight", "out_proj.bias"];
/// The names of the three matrices, if they are not one.
const PROJ: [&str; 3] = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];

/// The layer as ops: projections, attention, projection.
pub(crate) fn lower(layer: &MultiheadAttention, inputs: usize) -> LoweredLayer {
    let masks = usize::from(layer.attn_mask) + usize::from(layer.key_padding_mask);
    let sources = inputs.saturating_sub(masks);
    let (width, narrow) = (layer.embed_dim, layer.key_value_width());
    let mut ops = LayerBuilder::new(inputs, layer.bias);
    let projected = match sources {
        1 => vec![ops.linear(0, [width, width + 2 * narrow], IN_PROJ)],
        _ => {
            let mut names = match layer.is_packed() {
                true => vec![(IN_PROJ[0], IN_PROJ[0])],
                false => PROJ.map(|name| (name, name)).to_vec(),
            };
            names.extend(layer.bias.then_some((IN_PROJ[1], IN_PROJ[1])));
            project(&mut ops, [width, narrow, narrow], (0..sources).collect(), names)
        }
    };
    let heads = |heads: u64| i64::try_from(heads).unwrap_or(i64::MAX);
    let attention = Attention::new(AttentionHeads {
        queries: heads(layer.num_heads),
        keys: heads(layer.key_value_heads()),
        batch_first: layer.batch_first,
        dropout: layer.dropout,
        purpose: "attention",
        causal: layer.is_causal,
        scores: Scores::default(),
        window: None,
        mask: layer.attn_mask,
        padding_mask: layer.key_padding_mask,
    });
    let attended =
        ops.add(attention, projected.into_iter().chain(sources..inputs).collect(), Vec::new());
    let output = ops.linear(attended, [width, width], OUT_PROJ);
    ops.finish(output)
}

/// Adds the projections of query, key and value, or of a query and a key that is the value, too.
/// Returns the slots of their outputs.
pub(crate) fn project(
    ops: &mut LayerBuilder,
    widths: [u64; 3],
    sources: Vec<usize>,
    names: Vec<(&'static str, &'static str)>,
) -> Vec<usize> {
    let first = ops.add_multi_output(AutogradOp(Projections { widths }), sources, names, 3);
    (first..first + 3).collect()
}

/// Projections of several inputs, whose matrices are in one parameter or in three.
#[derive(Debug)]
struct Projections {
    widths: [u64; 3],
}

impl Differentiable for Projections {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let widths: Vec<i64> =
            self.widths.iter().map(|&width| size(width)).collect::<Result<_, _>>()?;
        let [query, others @ ..] = inputs else {
            return Err(layer_error("expected an input, got none"));
        };
        let (Some(key), Some(value)) = (others.first(), others.last()) else {
            return Err(layer_error("expected a query and a key, got one input"));
        };
        let weights = match ctx.optional_param(IN_PROJ[0]) {
            Some(packed) => packed.f_split_with_sizes(&widths[..], 0)?,
            None => PROJ
                .iter()
                .map(|name| Ok(ctx.param(name)?.shallow_clone()))
                .collect::<Result<_, TensorError>>()?,
        };
        let biases = match ctx.optional_param(IN_PROJ[1]) {
            Some(packed) => {
                packed.f_split_with_sizes(&widths[..], 0)?.into_iter().map(Some).collect()
            }
            None => vec![None, None, None],
        };
        let project = |((input, weight), bias): ((&Tensor, &Tensor), &Option<Tensor>)| {
            Ok(input.f_linear(weight, bias.as_ref())?)
        };
        [query, key, value].into_iter().zip(&weights).zip(&biases).map(project).collect()
    }
}
