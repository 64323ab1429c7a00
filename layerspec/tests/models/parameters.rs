//! Parameters and buffers of layers, and how they are initialised, as in PyTorch.

use crate::shapes::one;
use layerspec::{Init, Role};

/// Name, shape and role of a layer's parameters and buffers.
pub(crate) fn params(input: &str, layer: &str) -> String {
    let graph = one(input, layer);
    let show = |param: &layerspec::ParamSpec| {
        let buffer = if param.role == Role::Buffer { " buffer" } else { "" };
        format!("{} {:?}{buffer}", param.name, param.shape)
    };
    graph.layers()[0].kind.params().iter().map(show).collect::<Vec<_>>().join(", ")
}

#[test]
fn parameters_are_pytorchs() {
    assert_eq!(
        params("[b, 4]", "Linear: {in_features: 4, out_features: 2}"),
        "weight [2, 4], bias [2]"
    );
    assert_eq!(
        params("[b, 4]", "Linear: {in_features: 4, out_features: 2, bias: false}"),
        "weight [2, 4]"
    );
    let conv = "Conv2d: {in_channels: 4, out_channels: 6, kernel_size: [3, 5], groups: 2}";
    assert_eq!(params("[b, 4, 9, 9]", conv), "weight [6, 2, 3, 5], bias [6]");
    assert_eq!(
        params("[b, 3, 4]", "LayerNorm: {normalized_shape: [3, 4]}"),
        "weight [3, 4], bias [3, 4]"
    );
    assert_eq!(params("[b, 4]", "LayerNorm: {normalized_shape: 4, bias: false}"), "weight [4]");
    assert_eq!(params("[b, 4]", "LayerNorm: {normalized_shape: 4, elementwise_affine: false}"), "");
    assert_eq!(
        params("[b, 4, 9, 9]", "BatchNorm2d: {num_features: 4}"),
        "weight [4], bias [4], running_mean [4] buffer, running_var [4] buffer, \
         num_batches_tracked [] buffer"
    );
    assert_eq!(
        params(
            "[b, 4, 9, 9]",
            "BatchNorm2d: {num_features: 4, affine: false, track_running_stats: false}"
        ),
        ""
    );
    let transposed =
        "ConvTranspose2d: {in_channels: 4, out_channels: 6, kernel_size: [3, 5], groups: 2}";
    assert_eq!(params("[b, 4, 9, 9]", transposed), "weight [4, 3, 3, 5], bias [6]");
    assert_eq!(params("[b, 3, 4]", "PReLU: {num_parameters: 3}"), "weight [3]");
    assert_eq!(params("[b, 3, 4]", "RMSNorm: {normalized_shape: [3, 4]}"), "weight [3, 4]");
    assert_eq!(params("[b, 3, 4, 4]", "InstanceNorm2d: {num_features: 3}"), "");
    let encoder = "TransformerEncoderLayer: {d_model: 4, nhead: 2, dim_feedforward: 6";
    assert_eq!(
        params("[s, b, 4]", &format!("{encoder}}}")),
        "self_attn.in_proj_weight [12, 4], self_attn.in_proj_bias [12], self_attn.out_proj.weight \
         [4, 4], self_attn.out_proj.bias [4], linear1.weight [6, 4], linear1.bias [6], \
         linear2.weight [4, 6], linear2.bias [4], norm1.weight [4], norm1.bias [4], norm2.weight \
         [4], norm2.bias [4]"
    );
    assert_eq!(
        params("[s, b, 4]", &format!("{encoder}, bias: false}}")),
        "self_attn.in_proj_weight [12, 4], self_attn.out_proj.weight [4, 4], linear1.weight [6, \
         4], linear2.weight [4, 6], norm1.weight [4], norm2.weight [4]"
    );
}

#[test]
fn initialisation_is_pytorchs() {
    let first = |input: &str, layer: &str| one(input, layer).layers()[0].kind.params()[0].init;
    let bound = 1.0 / 4f64.sqrt();
    assert_eq!(
        first("[b, 4]", "Linear: {in_features: 4, out_features: 2}"),
        Init::Uniform { low: -bound, high: bound }
    );
    let bound = 1.0 / (2.0 * 3.0 * 5.0f64).sqrt();
    assert_eq!(
        first(
            "[b, 4, 9, 9]",
            "Conv2d: {in_channels: 4, out_channels: 6, kernel_size: [3, 5], groups: 2}"
        ),
        Init::Uniform { low: -bound, high: bound }
    );
    let tokens = "{shape: [b], dtype: int64}";
    assert_eq!(
        first(tokens, "Embedding: {num_embeddings: 9, embedding_dim: 4, padding_idx: -2}"),
        Init::NormalZeroRow { mean: 0.0, std: 1.0, zero_row: 7 }
    );
    assert_eq!(first("[b, 4]", "LayerNorm: {normalized_shape: 4}"), Init::Ones);
    let uniform = |bound: f64| Init::Uniform { low: -bound, high: bound };
    let encoder =
        one("[s, b, 4]", "TransformerEncoderLayer: {d_model: 4, nhead: 2, dim_feedforward: 9}");
    let inits: Vec<Init> =
        encoder.layers()[0].kind.params().iter().map(|param| param.init).collect();
    let (in_proj, linear1, linear2) =
        (uniform((6.0 / 16f64).sqrt()), uniform(0.5), uniform(1.0 / 3.0));
    let norms = [Init::Ones, Init::Zeros, Init::Ones, Init::Zeros];
    let attention = [in_proj, Init::Zeros, uniform(0.5), Init::Zeros];
    assert_eq!(inits, [attention, [linear1, linear1, linear2, linear2], norms].concat());
}
