//! Operators of PyTorch by their names: beside tch's own, and refused.

use super::cuts::no_cut_shows;
use super::*;

/// A model of one layer. `layer` stands under `layers:`.
fn one(inputs: &str, layer: &str) -> String {
    format!("inputs: {{{inputs}}}\nlayers:\n  - {layer}\n")
}

/// Compares outputs, and gradients of the floating-point inputs, with those of tch.
fn same(yaml: &str, inputs: &[Tensor], computed: impl Fn(&[Tensor]) -> Tensor) {
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|input| input.copy().set_requires_grad(input.kind() == Kind::Float))
        .collect();
    let expected = computed(&leaves);
    let grad = normal("grad", &expected.size());
    let wanted: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
    let grads = tensor::grad::backward(&[&expected], &[&grad], &wanted).unwrap();
    for recompute in [Recompute::None, Recompute::Full] {
        let mut stage = whole(&graph(yaml), true);
        stage.layers[0].recompute = Some(recompute);
        let mut engine = build(stage).unwrap();
        let given = inputs.iter().map(Tensor::shallow_clone).collect();
        let output = engine.forward(&train(0), given).unwrap().remove(0);
        assert_eq!(output.size(), expected.size(), "{yaml}");
        assert!(output.allclose(&expected, 1e-6, 1e-7, false), "{yaml}: {output} {expected}");
        let found = engine.backward(key(0), vec![vec![grad.copy()]]).unwrap();
        let found: Vec<&Tensor> = found.iter().flatten().collect();
        assert_eq!(found.len(), grads.len(), "{yaml}");
        for (found, expected) in found.into_iter().zip(&grads) {
            let expected = expected.as_ref().unwrap();
            assert!(found.allclose(expected, 1e-5, 1e-6, false), "{yaml}: {found} {expected}");
        }
    }
}

#[test]
fn operators_and_their_gradients_are_those_of_tch() {
    let x = normal("x", &[5, 4]);
    let y = normal("y", &[5, 4]);
    let alone = |layer: &str, computed: &dyn Fn(&Tensor) -> Tensor| {
        same(&one("x: [batch, 4]", layer), &[x.copy()], |inputs| computed(&inputs[0]));
    };
    alone("Aten: {op: roll, args: {shifts: [1], dims: [1]}}", &|x| x.roll(1, 1));
    alone("Aten: {op: clamp_min, args: {min: 0.25}}", &|x| x.clamp_min(0.25));
    alone("Aten: {op: linalg_vector_norm, args: {ord: 3, dim: 1}, out: [batch]}", &|x| {
        x.norm_scalaropt_dim(3, 1, false)
    });
    alone("Aten: {op: cumsum, args: {dim: -1}}", &|x| x.cumsum(-1, None));
    alone("Aten: {op: softmax.int, args: {dim: 1}}", &|x| x.softmax(1, None));
    alone("Aten: {op: view, args: {size: [batch, 2, -1]}, out: [batch, 2, 2]}", &|x| {
        x.view([5, 2, 2])
    });
    alone("Aten: {op: relu}", &|x| x.relu());
    let two = |layer: &str, computed: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let yaml = one("x: [batch, 4], y: [batch, 4]", layer) + "    in_variables: [y]\n";
        same(&yaml, &[x.copy(), y.copy()], |inputs| computed(&inputs[0], &inputs[1]));
    };
    two("Aten: {op: div.Tensor}", &|x, y| x / y);
    two("Aten: {op: einsum, args: {equation: 'bi,bj->bij'}, out: [batch, 4, 4]}", &|x, y| {
        x.unsqueeze(2) * y.unsqueeze(1)
    });
    two("Aten: {op: cat, args: {dim: 1}, out: [batch, 8]}", &|x, y| Tensor::cat(&[x, y], 1));
    let yaml = one(
        "mask: {shape: [batch, 4], dtype: bool}, x: [batch, 4], y: [batch, 4]",
        "Aten: {op: where.self, out: [batch, 4]}",
    ) + "    in_variables: [x, y]\n";
    same(&yaml, &[x.gt(0.0), x.copy(), y.copy()], |inputs| {
        inputs[1].where_self(&inputs[0], &inputs[2])
    });
}

/// The positive part of a trained layer's output, by a mask.
#[test]
fn a_mask_of_something_trained_has_no_gradient() {
    let yaml = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [y]
  - Aten: {op: gt.Scalar, args: {other: 0.0}, out: {shape: [batch, 4], dtype: bool}}
  - Aten: {op: where.ScalarOther, args: {other: 0.0}, out: [batch, 4]}
    in_variables: [y]
";
    let x = normal("x", &[5, 4]);
    for recompute in [Recompute::None, Recompute::Full] {
        let mut stage = whole(&graph(yaml), true);
        stage.layers.iter_mut().for_each(|layer| layer.recompute = Some(recompute));
        let mut engine = build(stage).unwrap();
        let output = engine.forward(&train(0), vec![x.copy()]).unwrap().remove(0);
        let grad = normal("grad", &[5, 4]);
        let found = engine.backward(key(0), vec![vec![grad.copy()]]).unwrap().remove(0);
        let weight = engine.state().unwrap().into_iter().find(|(name, _)| name.ends_with("weight"));
        let through = output.gt(0.0).to_kind(Kind::Float) * grad;
        let expected = through.matmul(&weight.unwrap().1);
        assert!(found[0].allclose(&expected, 1e-5, 1e-6, false), "{} {expected}", found[0]);
    }
}

/// A mask of something trained blocks what it says, in one stage and in each cut.
#[test]
fn attention_takes_a_mask_of_something_trained() {
    let yaml = "
inputs: {x: [batch, 3, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [y]
  - Linear: {in_features: 4, out_features: 3}
  - Aten: {op: gt.Scalar, args: {other: 0.0}, out: {shape: [batch, 3, 3], dtype: bool}}
    out_variables: [mask]
  - ScaledDotProductAttention:
    input: y
    in_variables: [y, y, mask]
";
    let inputs = |name: &str, size| vec![normal(name, &[size, 3, 4])];
    let target = |name: &str, size| normal(&format!("{name} target"), &[size, 3, 4]);
    no_cut_shows(yaml, &LossSpec::MSELoss, inputs, target);

    let mut engine = engine(yaml);
    let x = normal("x", &[5, 3, 4]);
    let output = engine.forward(&train(0), vec![x.copy()]).unwrap().remove(0);
    let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
    let linear = |x: &Tensor, layer: u8| {
        x.linear(&state[&format!("{layer}.weight")], Some(&state[&format!("{layer}.bias")]))
    };
    let y = linear(&x, 0);
    let mask = linear(&y, 1).gt(0.0);
    let expected =
        Tensor::scaled_dot_product_attention(&y, &y, &y, Some(&mask), 0.0, false, None, false);
    assert!(output.allclose(&expected, 1e-5, 1e-6, false), "{output} {expected}");
}

#[test]
fn training_is_a_word() {
    let yaml = one(
        "x: [batch, 4]",
        "Aten: {op: linalg_vector_norm, args: {dim: [1], keepdim: \
                    training}, out: [batch, 1]}",
    );
    let mut engine = engine(&yaml);
    engine.forward(&train(0), vec![normal("x", &[5, 4])]).unwrap();
    let said = engine.forward(&eval(), vec![normal("x", &[5, 4])]).unwrap_err().to_string();
    assert!(said.contains("made float32 [5], the model file says float32 [batch, 1]"), "{said}");
}

#[test]
fn what_is_not_allowed_or_does_not_fit_is_refused_before_training() {
    let refused = |layer: &str, expected: &str| {
        let said = build(whole(&graph(&one("x: [batch, 4]", layer)), true)).unwrap_err();
        let said = said.to_string();
        assert!(said.starts_with("layer 0 (Aten), initialisation: "), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused("Aten: {op: relu_}", "the operator `relu_`: not allowed: it writes");
    refused("Aten: {op: rol}", "the operator `rol`: PyTorch has no operator of this name");
    refused("Aten: {op: as_strided}", "it reads memory by place");
    refused("Aten: {op: cumsum}", "missing argument `dim`: expected a whole number");
    refused("Aten: {op: cumsum, args: {dim: 0.5}}", "argument `dim`: expected a whole number");
    refused("Aten: {op: cumsum, args: {dim: one}}", "expected a whole number, found `one`");
    refused(
        "Aten: {op: cumsum, args: {axis: 0}}",
        "unknown argument `axis`: expected one of dim, dtype",
    );
    refused("Aten: {op: cumsum, args: {dim: 0, dtype: float}}", "expected a dtype as float32");
    refused("Aten: {op: cumsum, args: {self: 0}}", "argument `self` is a tensor");
    refused("Aten: {op: div.Tensor}", "its input 2, `other`, is missing");
    let yaml = one("x: [batch, 4], y: [batch, 4]", "Aten: {op: relu}") + "    in_variables: [y]\n";
    let said = build(whole(&graph(&yaml), true)).unwrap_err().to_string();
    assert!(said.contains("expected at most 1 inputs, found 2"), "{said}");
}

#[test]
fn outputs_are_held_against_the_model_file_before_memory_is_taken() {
    let refused = |layer: &str, expected: &str| {
        let mut engine = engine(&one("x: [batch, 4]", layer));
        let said = engine.forward(&train(0), vec![normal("x", &[5, 4])]).unwrap_err().to_string();
        assert!(said.contains("layer 0 (Aten), forward") && said.contains(expected), "{said}");
    };
    refused(
        "Aten: {op: repeat, args: {repeats: [1000, 1000]}, out: [batch, 4]}",
        "made float32 [5000, 4000], the model file says float32 [batch, 4]",
    );
    refused(
        "Aten: {op: repeat, args: {repeats: [1000000, 1000000]}, out: [batch, 4]}",
        "its outputs would take more than 64 GiB",
    );
    refused("Aten: {op: fft_fft}", "libtorch cannot tell the shapes of its outputs");
    refused("Aten: {op: cumsum, args: {dim: 7}}", "Dimension out of range");
    refused("Aten: {op: sum}", "declare the output in the model file under `out`");
}
