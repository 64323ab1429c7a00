//! Compares every kind of layer with its formula, written with other operations in f64: values, and
//! the gradients of inputs and parameters.

use super::*;
use layerspec::Bindings;

/// Inputs and parameters of one layer, in f64.
struct Given {
    inputs: Vec<Tensor>,
    params: HashMap<String, Tensor>,
}

impl Given {
    fn x(&self) -> &Tensor {
        &self.inputs[0]
    }

    fn param(&self, name: &str) -> &Tensor {
        &self.params[name]
    }
}

/// Checks a layer against its formula. Each input is a shape without the batch.
fn check(layer: &str, inputs: &[&[i64]], formula: impl Fn(&Given) -> Tensor) {
    let names: Vec<String> = (0..inputs.len()).map(|port| format!("x{port}")).collect();
    let shapes: Vec<String> = names
        .iter()
        .zip(inputs)
        .map(|(name, shape)| format!("{name}: {:?}", shape).replacen('[', "[batch, ", 1))
        .collect();
    let others = names[1..].join(", ");
    let yaml = format!(
        "model: m\ninputs: {{{}}}\nlayers:\n  - {layer}\n    name: it\n    input: x0\n    \
         in_variables: [{others}]\n",
        shapes.join(", "),
    );
    let graph = graph(&yaml.replace("    in_variables: []\n", ""));
    let shape = |port: usize| [&[3], inputs[port]].concat();
    let given = (0..inputs.len()).map(|port| normal(&names[port], &shape(port))).collect();
    compare(&graph, given, &[], formula);
}

fn compare(
    graph: &LayerGraph,
    given: Vec<Tensor>,
    zeroed: &[i64],
    formula: impl Fn(&Given) -> Tensor,
) {
    let mut engine = build(whole(graph, true)).unwrap();
    let output = engine
        .forward(&train(0), given.iter().map(Tensor::shallow_clone).collect())
        .unwrap()
        .remove(0);
    let bindings = Bindings::new().with("batch", 3);
    let shape = graph
        .value(graph.outputs()[0])
        .ty
        .shape
        .dims()
        .iter()
        .map(|dim| dim.eval(&bindings).unwrap() as i64);
    assert_eq!(output.size(), shape.collect::<Vec<_>>(), "the shape that the spec foretells");
    let grad = normal("grad", &output.size());
    let input_grads = engine.backward(key(0), vec![vec![grad.copy()]]).unwrap();

    let double = |tensor: &Tensor| match tensor.kind() {
        Kind::Float => tensor.to_kind(Kind::Double).detach().set_requires_grad(true),
        _ => tensor.shallow_clone(),
    };
    let params = engine.params.params().all.iter();
    let params =
        params.map(|param| (param.name.replacen("it.", "", 1), double(&param.tensor))).collect();
    let plain = Given { inputs: given.iter().map(double).collect(), params };
    let expected = formula(&plain);
    assert_close(&output, &expected, "output");
    (expected * grad.to_kind(Kind::Double)).sum(Kind::Double).backward();
    for (port, input) in plain.inputs.iter().enumerate().filter(|(_, input)| input.requires_grad())
    {
        assert_close(&input_grads[port][0], &input.grad(), "input gradient");
    }
    for (name, grad) in copies(engine.gradients()) {
        let expected = plain.params[&name.replacen("it.", "", 1)].grad();
        for &row in zeroed {
            let _ = expected.select(0, row).zero_();
        }
        assert_close(&grad, &expected, &name);
    }
}

fn assert_close(ours: &Tensor, expected: &Tensor, what: &str) {
    let ours = ours.to_kind(Kind::Double);
    assert_eq!(ours.size(), expected.size(), "{what}");
    let worst = (&ours - expected).abs().max().double_value(&[]);
    assert!(ours.allclose(expected, 1e-4, 1e-5, false), "{what}: {worst}");
}

/// The patches that a window sees: `[batch, channels, places of the kernel, windows]`.
fn patches(x: &Tensor, kernel: i64, stride: i64, padding: i64, dilation: i64, fill: f64) -> Tensor {
    let padded = x.pad([padding, padding, padding, padding], "constant", fill);
    let size = padded.size();
    let columns = padded.im2col([kernel, kernel], [dilation, dilation], [0, 0], [stride, stride]);
    columns.reshape([size[0], size[1], kernel * kernel, -1])
}

fn image(windows: Tensor, height: i64) -> Tensor {
    let size = windows.size();
    windows.reshape([size[0], size[1], height, -1])
}

#[test]
fn linear() {
    check("Linear: {in_features: 4, out_features: 5}", &[&[4]], |given| {
        given.x().matmul(&given.param("weight").transpose(0, 1)) + given.param("bias")
    });
    check("Linear: {in_features: 4, out_features: 5, bias: false}", &[&[2, 4]], |given| {
        given.x().matmul(&given.param("weight").transpose(0, 1))
    });
}

#[test]
fn activations() {
    let sigmoid = |x: &Tensor| ((-x).exp() + 1.0).reciprocal();
    check("ReLU: {}", &[&[9]], |given| given.x() * given.x().gt(0.0));
    check("SiLU: {}", &[&[9]], |given| given.x() * sigmoid(given.x()));
    check("Sigmoid: {}", &[&[9]], |given| sigmoid(given.x()));
    check("Tanh: {}", &[&[9]], |given| sigmoid(&(given.x() * 2.0)) * 2.0 - 1.0);
    check("Identity: {}", &[&[9]], |given| given.x() * 1.0);
    check("GELU: {}", &[&[9]], |given| given.x() * 0.5 * ((given.x() / 2f64.sqrt()).erf() + 1.0));
    check("GELU: {approximate: tanh}", &[&[9]], |given| {
        let x = given.x();
        let inner = (x + x.pow_tensor_scalar(3) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
        x * 0.5 * (inner.tanh() + 1.0)
    });
}

#[test]
fn softmaxes() {
    let softmax = |x: &Tensor, dim: i64| x.exp() / x.exp().sum_dim_intlist(dim, true, Kind::Double);
    check("Softmax: {dim: -1}", &[&[4, 5]], |given| softmax(given.x(), 2));
    check("Softmax: {dim: 1}", &[&[4, 5]], |given| softmax(given.x(), 1));
    check("LogSoftmax: {dim: 2}", &[&[4, 5]], |given| softmax(given.x(), 2).log());
}

#[test]
fn layer_norm() {
    let norm = |x: &Tensor, dims: &[i64], eps: f64| {
        let mean = x.mean_dim(dims, true, Kind::Double);
        let var = (x - &mean).square().mean_dim(dims, true, Kind::Double);
        (x - mean) / (var + eps).sqrt()
    };
    check("LayerNorm: {normalized_shape: 6}", &[&[4, 6]], |given| {
        norm(given.x(), &[-1], 1e-5) * given.param("weight") + given.param("bias")
    });
    check("LayerNorm: {normalized_shape: [4, 6], eps: 0.1, bias: false}", &[&[4, 6]], |given| {
        norm(given.x(), &[-2, -1], 0.1) * given.param("weight")
    });
    check("LayerNorm: {normalized_shape: 6, elementwise_affine: false}", &[&[6]], |given| {
        norm(given.x(), &[-1], 1e-5)
    });
}

#[test]
fn embedding() {
    for (arguments, zeroed) in
        [("", vec![]), (", padding_idx: 2", vec![2]), (", padding_idx: -1", vec![4])]
    {
        let graph = graph(&format!(
            "model: m
inputs: {{ids: {{shape: [batch, 4], dtype: int64}}}}
layers:
  - Embedding: {{num_embeddings: 5, embedding_dim: 3{arguments}}}
    name: it
"
        ));
        let ids = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 4, 2, 2, 0, 1, 1, 1]).reshape([3, 4]);
        compare(&graph, vec![ids], &zeroed, |given| {
            given.param("weight").index_select(0, &given.x().flatten(0, -1)).reshape([3, 4, 3])
        });
        let engine = build(whole(&graph, true)).unwrap();
        for &row in &zeroed {
            assert_eq!(
                engine.state().unwrap()[0]
                    .1
                    .select(0, row)
                    .abs()
                    .sum(Kind::Float)
                    .double_value(&[]),
                0.0
            );
        }
    }
}

#[test]
fn conv2d() {
    /// A square kernel over square images.
    fn conv(
        given: &Given,
        [kernel, stride, padding, dilation]: [i64; 4],
        groups: i64,
        height: i64,
    ) -> Tensor {
        let (x, weight) = (given.x(), given.param("weight"));
        let windows = patches(x, kernel, stride, padding, dilation, 0.0);
        let outputs = windows
            .chunk(groups, 1)
            .into_iter()
            .zip(weight.chunk(groups, 0))
            .map(|(windows, weight)| weight.flatten(1, -1).matmul(&windows.flatten(1, 2)));
        let output = image(Tensor::cat(&outputs.collect::<Vec<_>>(), 1), height);
        match given.params.get("bias") {
            Some(bias) => output + bias.view([1, -1, 1, 1]),
            None => output,
        }
    }
    check("Conv2d: {in_channels: 2, out_channels: 4, kernel_size: 3}", &[&[2, 6, 6]], |given| {
        conv(given, [3, 1, 0, 1], 1, 4)
    });
    check(
        "Conv2d: {in_channels: 2, out_channels: 4, kernel_size: 3, stride: 2, padding: 2, \
         dilation: 2, groups: 2, bias: false}",
        &[&[2, 7, 7]],
        |given| conv(given, [3, 2, 2, 2], 2, 4),
    );
    check(
        "Conv2d: {in_channels: 1, out_channels: 2, kernel_size: 3, padding: same}",
        &[&[1, 5, 5]],
        |given| conv(given, [3, 1, 1, 1], 1, 5),
    );
    check(
        "Conv2d: {in_channels: 1, out_channels: 2, kernel_size: 3, padding: valid}",
        &[&[1, 5, 5]],
        |given| conv(given, [3, 1, 0, 1], 1, 3),
    );
}

#[test]
fn batch_norm_2d() {
    check("BatchNorm2d: {num_features: 2, eps: 0.01}", &[&[2, 3, 3]], |given| {
        let x = given.x();
        let mean = x.mean_dim(&[0i64, 2, 3][..], true, Kind::Double);
        let var = (x - &mean).square().mean_dim(&[0i64, 2, 3][..], true, Kind::Double);
        let per_channel = |name| given.param(name).view([1, -1, 1, 1]);
        (x - mean) / (var + 0.01).sqrt() * per_channel("weight") + per_channel("bias")
    });
}

/// No maximum is one of its elements.
#[test]
fn a_pool_sees_nothing_of_an_infinite_padding() {
    let yaml = "model: m\ninputs: {x0: [batch, 2, 5, 5]}\nlayers:\n  - Pad: {pad: [1, 1, 1, 1], \
                value: -.inf}\n  - MaxPool2d: {kernel_size: 3, stride: 2}\n";
    compare(&graph(yaml), vec![normal("x0", &[3, 2, 5, 5])], &[], |given| {
        image(patches(given.x(), 3, 2, 1, 1, f64::NEG_INFINITY).amax(2, false), 3)
    });
}

#[test]
fn pools() {
    let max = |windows: Tensor| windows.amax(2, false);
    let mean = |windows: Tensor| windows.mean_dim(2, false, Kind::Double);
    check("MaxPool2d: {kernel_size: 2}", &[&[2, 6, 6]], |given| {
        image(max(patches(given.x(), 2, 2, 0, 1, 0.0)), 3)
    });
    check(
        "MaxPool2d: {kernel_size: 3, stride: 1, padding: 1, dilation: 2}",
        &[&[2, 6, 6]],
        |given| image(max(patches(given.x(), 3, 1, 1, 2, f64::NEG_INFINITY)), 4),
    );
    check("MaxPool2d: {kernel_size: 2, ceil_mode: true}", &[&[2, 5, 5]], |given| {
        let padded = given.x().pad([0, 1, 0, 1], "constant", f64::NEG_INFINITY);
        image(max(patches(&padded, 2, 2, 0, 1, 0.0)), 3)
    });
    check("AvgPool2d: {kernel_size: 2}", &[&[2, 6, 6]], |given| {
        image(mean(patches(given.x(), 2, 2, 0, 1, 0.0)), 3)
    });
    check("AvgPool2d: {kernel_size: 3, stride: 1, padding: 1}", &[&[2, 4, 4]], |given| {
        image(mean(patches(given.x(), 3, 1, 1, 1, 0.0)), 4)
    });
    check(
        "AvgPool2d: {kernel_size: 3, stride: 1, padding: 1, count_include_pad: false}",
        &[&[2, 4, 4]],
        |given| {
            let sums = patches(given.x(), 3, 1, 1, 1, 0.0).sum_dim_intlist(2, false, Kind::Double);
            let counts = patches(&given.x().ones_like().detach(), 3, 1, 1, 1, 0.0).sum_dim_intlist(
                2,
                false,
                Kind::Double,
            );
            image(sums / counts, 4)
        },
    );
    check("AvgPool2d: {kernel_size: 2, divisor_override: 3}", &[&[2, 6, 6]], |given| {
        image(patches(given.x(), 2, 2, 0, 1, 0.0).sum_dim_intlist(2, false, Kind::Double) / 3.0, 3)
    });
    check("AdaptiveAvgPool2d: {output_size: [2, 1]}", &[&[2, 5, 4]], |given| {
        let rows = [given.x().narrow(2, 0, 3), given.x().narrow(2, 2, 3)];
        Tensor::cat(&rows.map(|rows| rows.mean_dim(&[2i64, 3][..], true, Kind::Double)), 2)
    });
}

#[test]
fn shapes() {
    check("Flatten: {}", &[&[2, 3, 4]], |given| given.x().view([3, 24]));
    check("Flatten: {start_dim: 0, end_dim: 1}", &[&[2, 3]], |given| given.x().view([6, 3]));
    check("Reshape: {shape: [-1, 4, 3]}", &[&[2, 6]], |given| given.x().view([3, 4, 3]));
    check("Transpose: {dim0: 1, dim1: -1}", &[&[2, 3, 4]], |given| given.x().permute([0, 3, 2, 1]));
}

#[test]
fn joins() {
    check("Add: {}", &[&[2, 4], &[2, 4], &[1, 4]], |given| {
        &given.inputs[2] + &given.inputs[1] + &given.inputs[0]
    });
    check("Mul: {}", &[&[2, 4], &[2, 1]], |given| &given.inputs[1] * &given.inputs[0]);
    check("Concat: {dim: -1}", &[&[2, 4], &[2, 1], &[2, 3]], |given| {
        let [a, b, c] = &given.inputs[..] else { panic!() };
        let wide = |x: &Tensor, left: i64, right: i64| x.pad([left, right], "constant", 0.0);
        wide(a, 0, 4) + wide(b, 4, 3) + wide(c, 5, 0)
    });
}
