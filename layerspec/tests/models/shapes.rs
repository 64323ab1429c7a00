//! Shape and parameter arithmetic against values worked out by hand or known from PyTorch.

use crate::parameters::params;
use crate::support::{model, refused};
use layerspec::{Bindings, Dim, LayerGraph, LayerKind, Shape};

/// The output type of a model of one layer, as text.
fn output(input: &str, layer: &str) -> String {
    let graph = one(input, layer);
    graph.value(graph.outputs()[0]).ty.to_string()
}

pub(crate) fn one(input: &str, layer: &str) -> LayerGraph {
    model(&format!("inputs: {{x: {input}}}\nlayers:\n  - {layer}\n"))
}

#[test]
fn convolution_sizes() {
    let conv = |size: u32, rest: &str| {
        let layer = format!("Conv2d: {{in_channels: 1, out_channels: 2, kernel_size: {rest}}}");
        output(&format!("[batch, 1, {size}, {size}]"), &layer)
    };
    assert_eq!(conv(28, "5"), "[batch, 2, 24, 24]");
    assert_eq!(conv(28, "3, padding: 1, stride: 2"), "[batch, 2, 14, 14]");
    assert_eq!(conv(224, "7, padding: 3, stride: 2"), "[batch, 2, 112, 112]");
    assert_eq!(conv(10, "[3, 1], stride: [2, 3], padding: [0, 1]"), "[batch, 2, 4, 4]");
    assert_eq!(conv(10, "3, dilation: 4"), "[batch, 2, 2, 2]");
    assert_eq!(conv(10, "4, padding: same, dilation: 2"), "[batch, 2, 10, 10]");
    assert_eq!(conv(10, "4, padding: valid"), "[batch, 2, 7, 7]");
}

#[test]
fn convolutions_of_other_dimensions() {
    let conv = "in_channels: 2, out_channels: 4, kernel_size";
    assert_eq!(
        output("[batch, 2, 10]", &format!("Conv1d: {{{conv}: 3, stride: 2}}")),
        "[batch, 4, 4]"
    );
    assert_eq!(
        output("[batch, 2, seq]", &format!("Conv1d: {{{conv}: 3, padding: 1}}")),
        "[batch, 4, seq]"
    );
    assert_eq!(
        output("[batch, 2, 9, 9, 9]", &format!("Conv3d: {{{conv}: [1, 3, 5], stride: [2, 1, 1]}}")),
        "[batch, 4, 5, 7, 5]"
    );
    let up = format!("{conv}: 3, stride: 2, padding: 1, output_padding: 1");
    assert_eq!(
        output("[batch, 2, seq]", &format!("ConvTranspose1d: {{{up}}}")),
        "[batch, 4, seq*2]"
    );
    assert_eq!(
        output("[batch, 2, 7, h]", &format!("ConvTranspose2d: {{{up}}}")),
        "[batch, 4, 14, h*2]"
    );
    assert_eq!(
        output("[batch, 2, 5, 5, 5]", &format!("ConvTranspose3d: {{{conv}: 2}}")),
        "[batch, 4, 6, 6, 6]"
    );
}

#[test]
fn images_change_their_size() {
    assert_eq!(output("[batch, 3, h, 8]", "Upsample: {scale_factor: 2}"), "[batch, 3, h*2, 16]");
    assert_eq!(
        output("[batch, 3, 5, 8]", "Upsample: {scale_factor: [1.5, 0.3]}"),
        "[batch, 3, 7, 2]"
    );
    assert_eq!(
        output("[batch, 3, h, w]", "Upsample: {size: [4, 6], mode: bicubic}"),
        "[batch, 3, 4, 6]"
    );
    assert_eq!(
        output("[batch, 12, h, 3]", "PixelShuffle: {upscale_factor: 2}"),
        "[batch, 3, h*2, 6]"
    );
    assert_eq!(
        output("[batch, 3, 4, 6]", "PixelUnshuffle: {downscale_factor: 2}"),
        "[batch, 12, 2, 3]"
    );
    assert_eq!(output("[batch, seq, 4]", "Pad: {pad: [1, 2, 3, -1]}"), "[batch, seq + 2, 7]");
    assert_eq!(output("[batch, 3]", "Pad: {pad: [-3, 6]}"), "[batch, 6]");
    for (text, expected) in [("-.inf", f64::NEG_INFINITY), (".inf", f64::INFINITY)] {
        let graph = one("[batch, 3]", &format!("Pad: {{pad: [1, 0], value: {text}}}"));
        let LayerKind::Pad(pad) = &graph.layers()[0].kind else { panic!("no Pad") };
        assert_eq!(pad.value, expected);
    }
    for (input, layer, expected) in [
        ("[batch, 3]", "Pad: {pad: [-4, 6]}", "fewer elements than [-4, 6] removes"),
        (
            "{shape: [batch, 4, 8], dtype: int64}",
            "Pad: {pad: [1, 1], mode: reflect}",
            "expected a floating-point input",
        ),
        (
            "{shape: [batch, 4, 8], dtype: int64}",
            "Pad: {pad: [1, 1], value: .inf}",
            "expected a floating-point input",
        ),
        ("[batch, 3]", "Pad: {pad: [1, 1], value: .nan}", "a number, `.inf` or `-.inf`"),
        (
            "[batch, 1, 8, 8]",
            "MaxPool2d: {kernel_size: 2, stride: 1, padding: 2, dilation: 3}",
            "at most half of `kernel_size`",
        ),
    ] {
        let error = refused(&format!("inputs: {{x: {input}}}\nlayers:\n  - {layer}\n"));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn parts_of_symbolic_sizes() {
    let slice = |rest: &str| output("[batch, seq]", &format!("Slice: {{dim: 1, {rest}}}"));
    assert_eq!(slice("start: 1"), "[batch, seq - 1]");
    assert_eq!(slice("start: -3"), "[batch, 3]");
    assert_eq!(slice("end: -1"), "[batch, seq - 1]");
    assert_eq!(slice("start: 2, end: 7, step: 2"), "[batch, 3]");
    assert_eq!(slice("start: -4, end: -1"), "[batch, 3]");
    assert_eq!(slice("step: 2"), "[batch, ((seq + 1)//2)]");
    assert_eq!(output("[batch, seq, 4]", "Select: {dim: 1, index: -1}"), "[batch, 4]");
    assert_eq!(output("[batch, seq, 4]", "Mean: {dim: [1, -1]}"), "[batch]");
    assert_eq!(output("[batch, seq, 4]", "Sum: {dim: 1, keepdim: true}"), "[batch, 1, 4]");
    assert_eq!(output("[batch, seq, 4]", "Permute: {dims: [1, -1, 0]}"), "[seq, 4, batch]");
    assert_eq!(
        output("[batch, 12]", "Unflatten: {dim: 1, unflattened_size: [3, -1]}"),
        "[batch, 3, 4]"
    );
    assert_eq!(output("[batch, seq]", "Unsqueeze: {dim: -1}"), "[batch, seq, 1]");
    assert_eq!(output("[batch, 1, seq]", "Squeeze: {dim: 1}"), "[batch, seq]");
}

#[test]
fn elements_moved_and_repeated() {
    assert_eq!(output("[batch, 1, seq]", "Expand: {size: [-1, 4, -1]}"), "[batch, 4, seq]");
    assert_eq!(output("[batch, seq]", "Roll: {shifts: [1, -2], dims: [0, 1]}"), "[batch, seq]");
    assert_eq!(output("[batch, seq]", "Flip: {dims: [0, -1]}"), "[batch, seq]");
    let refused =
        |layer: &str| refused(&format!("inputs: {{x: [batch, 1, seq]}}\nlayers:\n  - {layer}\n"));
    let error = refused("Expand: {size: [-1, 4]}");
    assert!(error.ends_with("a size for each dimension of [batch, 1, seq], found [-1, 4]"));
    let error = refused("Expand: {size: [-1, 4, 5]}");
    assert!(error.ends_with("cannot expand seq to 5 in [batch, 1, seq]: it is not of size 1"));
    assert!(refused("Expand: {size: [-1, 0, -1]}").contains("expected a list of whole numbers"));
    let error = refused("Roll: {shifts: [1, 2], dims: 1}");
    assert!(error.ends_with("`shifts`: expected one number for each of [1]"), "{error}");
    assert!(refused("Roll: {shifts: 1, dims: 3}").ends_with("there is no dimension 3"));
    assert!(refused("Flip: {dims: [1, -2]}").contains("each dimension once in `dims`"));
}

#[test]
fn parameters_without_a_batch() {
    let layer = "Parameter: {shape: [3, 4], expand: false}";
    assert_eq!(output("[batch, 2]", layer), "[3, 4]");
    assert_eq!(params("[batch, 2]", layer), "value [3, 4]");
    let error = refused("inputs: {x: [batch, 2]}\nlayers:\n  - Parameter: {shape: [3, 4]}\n");
    assert!(error.contains("`shape`: expected sizes that begin with 1"), "{error}");
}

#[test]
fn a_number_may_be_added() {
    assert_eq!(output("[batch, 2]", "Add: {number: 1}"), "[batch, 2]");
    let error = refused("inputs: {x: [batch, 2]}\nlayers:\n  - Add: {}\n");
    assert!(error.contains("expected two inputs or more, found 1"), "{error}");
    let whole = "inputs: {x: {shape: [batch], dtype: int64}}\nlayers:\n  - Add: {number: 1}\n";
    assert!(refused(whole).ends_with("expected a floating-point input, found int64"));
}

#[test]
fn numbers_are_clamped_by_at_least_one_bound() {
    assert_eq!(output("[batch, 2]", "Clamp: {max: 0.5}"), "[batch, 2]");
    let refused = |layer: &str| refused(&format!("inputs: {{x: [batch]}}\nlayers:\n  - {layer}\n"));
    assert!(refused("Clamp").ends_with("`min`: expected a number here, or for `max`"));
    assert!(refused("Clamp: {min: 2, max: 1}").ends_with("a number not below min (2)"));
}

#[test]
fn rows_are_selected_by_numbers() {
    let select = |input: &str, index: &str, layer: &str| {
        let inputs = format!("{{x: {input}, i: {{shape: {index}, dtype: int64}}}}");
        let text = format!("inputs: {inputs}\nlayers:\n  - {layer}\n    in_variables: i\n");
        let graph = model(&text);
        graph.value(graph.outputs()[0]).ty.to_string()
    };
    assert_eq!(select("[n, 4]", "[batch, seq]", "Index:"), "[batch, seq, 4]");
    assert_eq!(select("[batch, 9, 4]", "[3]", "Index: {dim: 1}"), "[batch, 3, 4]");
    assert_eq!(select("[batch, 9]", "[3, 2]", "Index: {dim: -1}"), "[batch, 3, 2]");
    let error = refused(
        "inputs: {x: [batch, 9], i: [3]}\nlayers:\n  - Index: {dim: 1}\n    in_variables: i\n",
    );
    assert!(error.ends_with("expected an int64 index as the second input, found [3]"), "{error}");
}

#[test]
fn volumes_are_pooled() {
    let volume = "[batch, 2, 4, h, 6]";
    assert_eq!(output(volume, "MaxPool3d: {kernel_size: 2}"), "[batch, 2, 2, (h//2), 3]");
    assert_eq!(output(volume, "AvgPool3d: {kernel_size: [2, 1, 3]}"), "[batch, 2, 2, h, 2]");
    assert_eq!(output(volume, "AdaptiveAvgPool3d: {output_size: 1}"), "[batch, 2, 1, 1, 1]");
    assert_eq!(output(volume, "BatchNorm3d: {num_features: 2}"), volume);
}

#[test]
fn attention_without_projections() {
    let sdpa = |inputs: &str, arguments: &str, others: &str| {
        format!(
            "inputs: {{{inputs}}}\nlayers:\n  - ScaledDotProductAttention: {{{arguments}}}\n    \
             in_variables: [{others}]\n"
        )
    };
    let output = |inputs: &str, arguments: &str, others: &str| {
        let graph = model(&sdpa(inputs, arguments, others));
        graph.value(graph.outputs()[0]).ty.to_string()
    };
    let inputs = "q: [batch, 4, seq, 8], k: [batch, 4, mem, 8], v: [batch, 4, mem, 5], \
                  m: {shape: [batch, 1, seq, mem], dtype: bool}, a: [seq, mem], n: [batch, mem]";
    assert_eq!(output(inputs, "", "k, v"), "[batch, 4, seq, 5]");
    assert_eq!(output(inputs, "scale: 2", "k, v, m"), "[batch, 4, seq, 5]");
    assert_eq!(output(inputs, "", "k, v, a"), "[batch, 4, seq, 5]");
    let grouped = "q: [batch, 4, seq, 8], k: [batch, 2, mem, 8]";
    assert_eq!(output(grouped, "enable_gqa: true", "k, k"), "[batch, 4, seq, 8]");
    let error =
        |inputs: &str, arguments: &str, others: &str| refused(&sdpa(inputs, arguments, others));
    let shared = "q: [batch, 4, seq, 8], k: [batch, 1, mem, 8]";
    assert_eq!(output(shared, "", "k, k"), "[batch, 4, seq, 8]");
    assert!(error(grouped, "", "k, k").contains("or a key of one head (see `enable_gqa`)"));
    assert!(error(inputs, "", "v, v").contains("a query and a key of one size"));
    assert!(error(inputs, "", "k, q").contains("for the same heads and positions"));
    assert!(error(inputs, "", "k, v, n").contains("expected a mask that broadcasts to"));
    let both = error(inputs, "is_causal: true", "k, v, m");
    assert!(both.ends_with("expected no mask, because `is_causal` is one"), "{both}");
    assert!(error(inputs, "", "k").contains("expected as inputs 3 (query, key, value) or 4"));
}

#[test]
fn layers_with_several_outputs() {
    let outputs = |input: &str, layer: &str| {
        let graph = one(input, layer);
        let outputs = graph.outputs().iter().map(|value| graph.value(*value));
        outputs.map(|value| format!("{} {}", value.name, value.ty)).collect::<Vec<_>>()
    };
    assert_eq!(
        outputs("[batch, 7]", "Split: {split_size_or_sections: 3, dim: 1}"),
        ["0 [batch, 3]", "0.1 [batch, 3]", "0.2 [batch, 1]"]
    );
    assert_eq!(outputs("[batch, 6]", "Chunk: {chunks: 4, dim: 1}").len(), 3, "as in PyTorch");
    let gates = "inputs: {x: [batch, 4]}\nlayers:\n  - Linear: {in_features: 4, out_features: \
                 8}\n  - Chunk: {chunks: 2, dim: 1}\n    out_variables: [a, b]\n  - Mul:\n    \
                 in_variables: b\n";
    let graph = model(gates);
    assert_eq!(graph.value(graph.outputs()[0]).ty.to_string(), "[batch, 4]");
    assert!(graph.warnings().is_empty(), "{:?}", graph.warnings());
}

#[test]
fn joins_of_two() {
    let join = |inputs: &str, layer: &str| {
        let graph = model(&format!("inputs: {inputs}\nlayers:\n  - {layer}\n    in_variables: y"));
        graph.value(graph.outputs()[0]).ty.to_string()
    };
    assert_eq!(join("{x: [batch, seq, 4], y: [batch, 4, seq]}", "MatMul:"), "[batch, seq, seq]");
    assert_eq!(join("{x: [batch, h, seq, 4], y: [4, 2]}", "MatMul:"), "[batch, h, seq, 2]");
    assert_eq!(join("{x: [batch, 4], y: [4]}", "Sub:"), "[batch, 4]");
    let flag = "{shape: [batch, 4], dtype: bool}";
    let inputs = format!("inputs: {{x: {flag}, y: {flag}}}");
    let error = refused(&format!("{inputs}\nlayers:\n  - Sub:\n    in_variables: y"));
    assert!(error.contains("expected numbers, found bool"), "{error}");
    assert_eq!(join("{x: [batch, 4], y: [batch, 4]}", "Stack: {dim: 1}"), "[batch, 2, 4]");
    let masked =
        join("{x: [batch, 2, seq], y: {shape: [seq], dtype: bool}}", "MaskedFill: {value: -.inf}");
    assert_eq!(masked, "[batch, 2, seq]");
    let bilinear = "Bilinear: {in1_features: 3, in2_features: 4, out_features: 5}";
    assert_eq!(join("{x: [batch, 3], y: [batch, 4]}", bilinear), "[batch, 5]");
}

/// PyTorch's rule: rounded up, but the last window must start inside the image or its left padding.
#[test]
fn pool_sizes_rounded_up() {
    let pool = |size: u32, rest: &str| {
        let layer = format!("MaxPool2d: {{ceil_mode: true, kernel_size: {rest}}}");
        output(&format!("[batch, 1, {size}, {size}]"), &layer)
    };
    assert_eq!(pool(5, "2"), "[batch, 1, 3, 3]");
    assert_eq!(pool(6, "2"), "[batch, 1, 3, 3]");
    assert_eq!(pool(4, "1, stride: 3"), "[batch, 1, 2, 2]");
    // ceil(4 / 3) + 1 = 3, but the third window would start at 6.
    assert_eq!(pool(5, "1, stride: 3"), "[batch, 1, 2, 2]");
    // The third window would start at 6 = 4 + 1 + 1.
    assert_eq!(pool(4, "2, stride: 3, padding: 1"), "[batch, 1, 2, 2]");
    assert_eq!(pool(112, "3, stride: 2, padding: 1"), "[batch, 1, 57, 57]");
    assert_eq!(output("[batch, 3, 5, 7]", "AvgPool2d: {kernel_size: [2, 3]}"), "[batch, 3, 2, 2]");
}

/// The formula for symbols has the value of the formula for numbers, for every size and either
/// rounding.
#[test]
fn formulas_agree_with_numbers() {
    for ceil in ["false", "true"] {
        for (kernel, stride, padding) in
            [(1_u64, 1, 0), (1, 3, 0), (2, 2, 1), (3, 2, 1), (5, 3, 2), (3, 7, 0), (9, 3, 1)]
        {
            let layer = format!(
                "MaxPool2d: {{kernel_size: {kernel}, stride: {stride}, padding: {padding}, \
                 ceil_mode: {ceil}}}"
            );
            let symbolic = one("[batch, 1, height, 9]", &layer);
            let formula = &symbolic.value(symbolic.outputs()[0]).ty.dims()[2];
            // A window that is rounded up needs one place only.
            let rounded_up = if ceil == "true" { stride - 1 } else { 0 };
            let smallest = u64::max(1, kernel.saturating_sub(2 * padding + rounded_up));
            if smallest > 1 {
                let input = format!("inputs: {{x: [batch, 1, {}, 9]}}", smallest - 1);
                let error = refused(&format!("{input}\nlayers:\n  - {layer}\n"));
                assert!(error.contains("the kernel reaches over"), "{error}");
            }
            for height in smallest..kernel + 12 {
                let fixed = one(&format!("[batch, 1, {height}, 9]"), &layer);
                let expected = fixed.value(fixed.outputs()[0]).ty.dims()[2].as_fixed();
                let found = formula.eval(&Bindings::new().with("height", height));
                assert_eq!(found, expected, "{layer}, height {height}, {formula}");
                assert_eq!(
                    expected,
                    Some(windows(height, kernel, stride, padding, ceil == "true"))
                );
            }
        }
    }
}

/// PyTorch's `pooling_output_shape`, word for word.
fn windows(size: u64, kernel: u64, stride: u64, padding: u64, ceil: bool) -> u64 {
    let span = size + 2 * padding + if ceil { stride - 1 } else { 0 } - kernel;
    let windows = span / stride + 1;
    if ceil && (windows - 1) * stride >= size + padding {
        return windows - 1;
    }
    windows
}

#[test]
fn symbols_in_shapes() {
    assert_eq!(output("[batch, seq, 512]", "Flatten"), "[batch, seq*512]");
    assert_eq!(output("[batch, 8, 64]", "Flatten: {start_dim: 0}"), "[batch*512]");
    assert_eq!(output("[batch, seq, 512]", "Reshape: {shape: [-1, 512]}"), "[batch*seq, 512]");
    assert_eq!(output("[batch, seq, 512]", "Reshape: {shape: [-1, 8, 64]}"), "[batch*seq, 8, 64]");
    assert_eq!(output("[batch, 64]", "Reshape: {shape: [-1, 1, 8, 8]}"), "[batch, 1, 8, 8]");
    assert_eq!(output("[batch, seq, 4]", "Transpose: {dim0: 1, dim1: -1}"), "[batch, 4, seq]");
    assert_eq!(
        output(
            "[batch, 1, h, 8]",
            "Conv2d: {in_channels: 1, out_channels: 1, kernel_size: 3, stride: 2}"
        ),
        "[batch, 1, ((h + 1)//2) - 1, 3]"
    );
    assert_eq!(
        output("[batch, 1, h, w]", "AdaptiveAvgPool2d: {output_size: 4}"),
        "[batch, 1, 4, 4]"
    );
}

#[test]
fn joins_of_symbolic_sizes() {
    let join = |inputs: &str, layer: &str| {
        let graph = model(&format!("inputs: {inputs}\nlayers:\n  - {layer}:\n    in_variables: y"));
        graph.value(graph.outputs()[0]).ty.to_string()
    };
    assert_eq!(join("{x: [batch, seq, 4], y: [1, seq, 4]}", "Add"), "[batch, seq, 4]");
    assert_eq!(join("{x: [batch, seq, 4], y: [4]}", "Mul"), "[batch, seq, 4]");
    assert_eq!(join("{x: [batch, 1, 4], y: [batch, seq, 1]}", "Mul"), "[batch, seq, 4]");
    let concat = "merge: concat\n    dim: 1\n    in_variables: y";
    let graph = model(&format!(
        "inputs: {{x: [batch, a, 4], y: [batch, b, 4]}}\nlayers:\n  - ReLU:\n    {concat}"
    ));
    assert_eq!(graph.value(graph.outputs()[0]).ty.to_string(), "[batch, a + b, 4]");
}

#[test]
fn dtypes_flow() {
    let embedding = "Embedding: {num_embeddings: 9, embedding_dim: 4}";
    assert_eq!(output("{shape: [batch, seq], dtype: int64}", embedding), "[batch, seq, 4]");
    assert_eq!(output("{shape: [batch, 2], dtype: float64}", "Tanh"), "float64 [batch, 2]");
    assert_eq!(output("{shape: [batch, 2], dtype: bool}", "Identity"), "bool [batch, 2]");
    assert!(refused(
        "inputs: {x: [batch]}\nlayers:\n  - Embedding: {num_embeddings: 9, embedding_dim: 4}"
    )
    .ends_with("expected an int64 or int32 input, found float32"));
}

#[test]
fn encoder_layers_keep_their_inputs_type() {
    let encoder = "TransformerEncoderLayer: {d_model: 8, nhead: 2";
    assert_eq!(
        output("[batch, seq, 8]", &format!("{encoder}, batch_first: true}}")),
        "[batch, seq, 8]"
    );
    assert_eq!(output("[seq, 3, 8]", &format!("{encoder}}}")), "[seq, 3, 8]");
    let refused =
        |input: &str| refused(&format!("inputs: {{x: {input}}}\nlayers:\n  - {encoder}}}\n"));
    assert!(refused("[seq, 8]")
        .ends_with("expected an input [seq, batch, 8] (d_model), found [seq, 8]"));
    assert!(refused("[seq, batch, 9]").ends_with("found [seq, batch, 9]"));
}

#[test]
fn attention_keeps_its_querys_type() {
    let graph = |masks: &str, others: &str| {
        let inputs = "x: [batch, seq, 8], m: [batch, mem, 6], a: {shape: [seq, mem], dtype: \
                      bool}, p: {shape: [batch, mem], dtype: bool}";
        let layer = format!(
            "MultiheadAttention: {{embed_dim: 8, num_heads: 2, kdim: 6, vdim: 6, batch_first: \
             true{masks}}}"
        );
        model(&format!(
            "inputs: {{{inputs}}}\nlayers:\n  - {layer}\n    in_variables: [{others}]\n"
        ))
    };
    for (masks, others) in [
        ("", "m, m"),
        (", attn_mask: true", "m, m, a"),
        (", attn_mask: true, key_padding_mask: true", "m, m, a, p"),
    ] {
        let graph = graph(masks, others);
        assert_eq!(graph.value(graph.outputs()[0]).ty.to_string(), "[batch, seq, 8]");
    }
    assert_eq!(
        output("[batch, seq, 8]", "LlamaAttention: {hidden_size: 8, num_attention_heads: 2}"),
        "[batch, seq, 8]"
    );
    assert_eq!(
        output("[batch, 2, seq, 4]", "RotaryEmbedding: {head_dim: 4}"),
        "[batch, 2, seq, 4]"
    );
    assert_eq!(
        output("[batch, seq, 8]", "RotaryEmbedding: {head_dim: 4, num_heads: 2}"),
        "[batch, seq, 8]"
    );
    assert_eq!(output("[seq, batch, 8]", "PositionalEncoding: {d_model: 8}"), "[seq, batch, 8]");
    assert_eq!(
        output("[batch, 4, 6]", "LlamaMLP: {hidden_size: 6, intermediate_size: 9}"),
        "[batch, 4, 6]"
    );
}

#[test]
fn recurrent_layers_give_their_states() {
    let outputs = |input: &str, layer: &str| {
        let graph = one(input, layer);
        let types = graph.outputs().iter().map(|output| graph.value(*output).ty.to_string());
        types.collect::<Vec<_>>().join(" ")
    };
    let sizes = "input_size: 3, hidden_size: 4";
    assert_eq!(
        outputs("[seq, batch, 3]", &format!("RNN: {{{sizes}}}")),
        "[seq, batch, 4] [1, batch, 4]"
    );
    assert_eq!(
        outputs(
            "[batch, seq, 3]",
            &format!("GRU: {{{sizes}, num_layers: 3, bidirectional: true, batch_first: true}}")
        ),
        "[batch, seq, 8] [6, batch, 4]"
    );
    assert_eq!(
        outputs("[batch, 7, 3]", &format!("LSTM: {{{sizes}, batch_first: true}}")),
        "[batch, 7, 4] [1, batch, 4] [1, batch, 4]"
    );
    assert_eq!(
        params(
            "[seq, b, 3]",
            &format!("LSTM: {{{sizes}, num_layers: 2, bias: false, bidirectional: true}}")
        ),
        "weight_ih_l0 [16, 3], weight_hh_l0 [16, 4], weight_ih_l0_reverse [16, 3], \
         weight_hh_l0_reverse [16, 4], weight_ih_l1 [16, 8], weight_hh_l1 [16, 4], \
         weight_ih_l1_reverse [16, 8], weight_hh_l1_reverse [16, 4]"
    );
    assert_eq!(
        params("[seq, b, 3]", &format!("GRU: {{{sizes}}}")),
        "weight_ih_l0 [12, 3], weight_hh_l0 [12, 4], bias_ih_l0 [12], bias_hh_l0 [12]"
    );
}

/// The operations that each layer's documentation counts.
#[test]
fn costs_of_layers_of_two_inputs() {
    let flops = |inputs: &str, layer: &str, others: &str| {
        let text = format!("inputs: {{{inputs}}}\nlayers: [{{{layer}, in_variables: {others}}}]\n");
        let graph = model(&text);
        let bindings = Bindings::new().with("batch", 2);
        graph.cost(graph.layers()[0].id, &bindings).unwrap().flops
    };
    // One for each element of the output, which is as large as both inputs need.
    assert_eq!(flops("a: [batch, 3, 1], b: [3, 4]", "Div: {}", "[b]"), 2 * 3 * 4);
    assert_eq!(flops("a: [batch, 3, 1], b: [3, 4]", "Add: {}", "[b]"), 2 * 3 * 4);
    // For each of 5 queries and 7 keys of 3 heads: products of 4 and of 6, and 7 for the softmax.
    let inputs = "q: [batch, 3, 5, 4], k: [batch, 3, 7, 4], v: [batch, 3, 7, 6]";
    let attention = flops(inputs, "ScaledDotProductAttention: {}", "[k, v]");
    assert_eq!(attention, 2 * 3 * 5 * 7 * (2 * 4 + 2 * 6 + 7));
}

#[test]
fn costs_of_known_layers() {
    let cost = |input: &str, layer: &str| {
        let graph = one(input, layer);
        graph.cost(graph.layers()[0].id, &Bindings::new().with("batch", 2)).unwrap()
    };
    let linear = cost("[batch, 3, 4]", "Linear: {in_features: 4, out_features: 5}");
    assert_eq!(
        (linear.params, linear.flops, linear.activation_bytes),
        (25, 2 * 2 * 3 * 4 * 5, 2 * 3 * 5 * 4)
    );
    // ResNet's first layer: 118 million multiply-adds a sample.
    let conv = cost(
        "[batch, 3, 224, 224]",
        "Conv2d: {in_channels: 3, out_channels: 64, kernel_size: 7, stride: 2, padding: 3, bias: \
         false}",
    );
    assert_eq!((conv.params, conv.flops), (9408, 2 * 2 * 118_013_952));
    let up = "ConvTranspose2d: {in_channels: 4, out_channels: 6, kernel_size: 2, stride: 2, \
              groups: 2, bias: false}";
    let up = cost("[batch, 4, 5, 5]", up);
    assert_eq!((up.params, up.flops), (4 * 3 * 4, 2 * (2 * 4 * 25) * (3 * 4)));
    // 12 weights of d_model * d_model are 24 FLOPs a position (1.8 GFLOPs a layer of BERT-base at
    // 128 positions), attention 4 * seq * d_model (0.05); the rest is less than a hundredth.
    let encoder = "TransformerEncoderLayer: {d_model: 768, nhead: 12, dim_feedforward: 3072, \
                   batch_first: true}";
    let encoder = cost("[batch, 128, 768]", encoder);
    let products = 2 * 128 * (24 * 768 * 768 + 4 * 128 * 768);
    assert_eq!(encoder.params, 7_087_872);
    assert!(
        (products..products / 100 * 101).contains(&encoder.flops),
        "{} for {products}",
        encoder.flops
    );
    // Four projections of grouped heads, scores and values, three linear layers: of Llama's size
    // the rest is little.
    let grouped =
        "LlamaAttention: {hidden_size: 4096, num_attention_heads: 32, num_key_value_heads: 8}";
    let grouped = cost("[batch, 128, 4096]", grouped);
    assert_eq!(grouped.params, 2 * 4096 * (4096 + 1024));
    let products = 2 * 128 * (4 * 4096 * (4096 + 1024) + 4 * 128 * 4096);
    assert!(
        (products..products / 100 * 101).contains(&grouped.flops),
        "{} for {products}",
        grouped.flops
    );
    let mlp = cost("[batch, 128, 4096]", "LlamaMLP: {hidden_size: 4096, intermediate_size: 11008}");
    assert_eq!(mlp.params, 3 * 4096 * 11008);
    let products = 2 * 128 * 6 * 4096 * 11008;
    assert!((products..products / 100 * 101).contains(&mlp.flops), "{} for {products}", mlp.flops);
    let lstm = cost(
        "[batch, 10, 256]",
        "LSTM: {input_size: 256, hidden_size: 256, num_layers: 2, batch_first: true}",
    );
    assert_eq!(lstm.params, 2 * 4 * 256 * (256 + 256 + 2));
    let products = 2 * 10 * 2 * 2 * 4 * 256 * (256 + 256);
    assert!(
        (products..products / 100 * 101).contains(&lstm.flops),
        "{} for {products}",
        lstm.flops
    );
    let attention = cost(
        "[batch, 128, 768]",
        "MultiheadAttention: {embed_dim: 768, num_heads: 12, batch_first: true}",
    );
    assert_eq!(attention.params, 4 * 768 * 768 + 4 * 768);
    let graph = one("[batch, seq, 4]", "ReLU");
    assert_eq!(
        graph.cost(graph.layers()[0].id, &Bindings::new().with("batch", 2)),
        None,
        "seq is not bound"
    );
}

#[test]
fn real_sizes_bind_symbols() {
    let shape = Shape::new(vec![Dim::symbol("batch"), Dim::symbol("seq"), Dim::Fixed(4)]);
    let mut bindings = Bindings::new().with("seq", 7);
    assert_eq!(shape.match_sizes(&[32, 7, 4], &mut bindings), Ok(()));
    assert_eq!(bindings.get("batch"), Some(32));
    assert_eq!(
        shape.match_sizes(&[32, 8, 4], &mut bindings).unwrap_err(),
        "expected shape [batch, seq, 4], found [32, 8, 4]: seq is 7 here, not 8"
    );
    assert!(shape
        .match_sizes(&[32, 7], &mut bindings)
        .unwrap_err()
        .ends_with("2 dimensions instead of 3"));
}
