//! The rule, the arguments, and calls beside tch's own.

use super::*;
use tch::{Device, Kind, Reduction};
use testkit::Random;

fn numbers(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape(shape)
}

fn refusal(name: &str) -> String {
    Operator::find(name).unwrap_err().to_string()
}

/// Values by the names of arguments.
fn values<'a>(
    operator: &Operator,
    given: Vec<(&str, Value<'a>)>,
) -> Result<Vec<(usize, Value<'a>)>, String> {
    given
        .into_iter()
        .map(|(name, value)| {
            let place = operator.arguments().iter().position(|argument| argument.name == name);
            Ok((place.ok_or_else(|| format!("no argument {name}"))?, value))
        })
        .collect()
}

fn call(name: &str, given: Vec<(&str, Value<'_>)>) -> Result<Vec<Tensor>, TensorError> {
    let operator = Operator::find(name)?;
    let values = values(&operator, given).unwrap();
    let outline = operator.outline(&values)?;
    let made = operator.call(&values)?;
    if let Some(outline) = outline {
        let found: Vec<Outline> =
            made.iter().map(|tensor| (dtype_of(tensor).unwrap(), tensor.size())).collect();
        assert_eq!(outline, found, "{name}");
    }
    Ok(made)
}

#[test]
fn functions_of_tensors_are_allowed() {
    for name in [
        "roll",
        "where.self",
        "clamp_min",
        "linalg_vector_norm",
        "einsum",
        "cumsum",
        "div.Tensor",
        "softmax.int",
        "cat",
        "stack",
        "var_mean.correction",
        "std.dim",
        "expand",
        "repeat",
        "flip",
        "tril",
        "triu",
        "amax",
        "logsumexp",
        "gather",
        "scatter_add",
        "index_select",
        "topk",
        "sort",
        "pow.Tensor_Scalar",
        "relu",
        "gelu",
        "layer_norm",
        "view",
        "reshape",
        "permute",
        "unfold",
        "pad",
        "grid_sampler",
        "cosine_similarity",
        "to.dtype",
        "matmul",
        "bmm",
        "baddbmm",
        "addcmul.",
        "nan_to_num",
        "masked_fill.Scalar",
        "split.Tensor",
        "unbind.int",
        "max.dim",
        "atan2",
        "lerp.Tensor",
        "diff",
        "linalg_solve",
        "full_like",
    ] {
        let name = name.trim_end_matches('.');
        if let Err(error) = Operator::find(name) {
            panic!("{error}");
        }
    }
}

#[test]
fn what_is_no_function_of_its_tensors_is_refused_with_the_reason() {
    for (name, reason) in [
        ("relu_", "writes to its arguments"),
        ("add_.Tensor", "writes to its arguments"),
        ("add.out", "writes to its arguments"),
        ("fill_.Scalar", "writes to its arguments"),
        ("as_strided", "memory"),
        ("as_strided_copy", "memory"),
        ("as_strided_scatter", "memory"),
        ("new_empty_strided", "memory"),
        ("slice_inverse", "memory"),
        ("view.dtype", "memory"),
        ("from_file", "memory"),
        ("set.source_Tensor", "memory"),
        ("resize", "memory"),
        ("unsafe_split.Tensor", "memory"),
        ("_softmax", "inside"),
        ("_unsafe_view", "inside"),
        ("native_group_norm", "inside"),
        ("convolution_backward", "autograd"),
        ("empty_like", "lies in memory"),
        ("new_empty", "lies in memory"),
        ("multilabel_margin_loss", "does not check"),
        ("fractional_max_pool2d", "does not check"),
        ("where", "decide the shapes"),
        ("batch_norm", "running statistics"),
        ("instance_norm", "running statistics"),
        ("to_sparse", "format"),
        ("quantize_per_tensor", "format"),
        ("fake_quantize_per_tensor_affine", "format"),
        ("mkldnn_convolution", "format"),
        ("cudnn_convolution", "device"),
        ("miopen_convolution", "device"),
        ("lu_solve", "does not check"),
        ("linalg_lu_solve", "does not check"),
        ("linalg_ldl_solve", "does not check"),
        ("ctc_loss.IntList", "does not check"),
        ("special_hermite_polynomial_h.n_scalar", "how long"),
        ("mvlgamma", "how long"),
        ("tensor_split.sections", "how long"),
        ("dropout", "random"),
        ("bernoulli", "random"),
        ("multinomial", "random"),
        ("rand_like", "random"),
        ("rrelu", "random"),
        ("normal.Tensor_Tensor", "random"),
        ("nonzero", "decide the shapes"),
        ("masked_select", "decide the shapes"),
        ("unique_dim", "decide the shapes"),
        ("item", "not tensors alone"),
        ("is_nonzero", "not tensors alone"),
        ("size.int", "not tensors alone"),
        ("record_stream", ""),
        ("equal", ""),
        ("zeros", "takes no tensor"),
        ("arange", "takes no tensor"),
        ("to.device", "nothing can be given for its argument `device`"),
        ("index.Tensor", "decide the shapes"),
        ("sum.dim_DimnameList", "named dimensions"),
    ] {
        let said = refusal(name);
        assert!(said.starts_with(&format!("the operator `{name}`: not allowed: ")), "{said}");
        assert!(said.contains(reason) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn an_operator_that_is_none_is_refused_with_its_neighbours() {
    assert!(refusal("div").contains("but div"), "{}", refusal("div"));
    for name in ["", ".", "rol", "roll.nothing", "roll\0", "aten::roll", "ä"] {
        refusal(name);
    }
}

#[test]
fn calls_give_what_tch_does() {
    let (x, y) = (numbers(&[3, 4]), numbers(&[4, 3]).cos());
    let condition = x.gt(0.0);
    let one = |made: Result<Vec<Tensor>, TensorError>| {
        let mut made = made.unwrap();
        assert_eq!(made.len(), 1);
        made.remove(0)
    };
    let this = |more: Vec<(&'static str, Value<'static>)>| {
        let mut given: Vec<(&'static str, Value<'_>)> = vec![("self", Value::Tensor(&x))];
        given.extend(more);
        given
    };
    let same = |made: Tensor, expected: Tensor, what: &str| {
        assert_eq!(made.kind(), expected.kind(), "{what}");
        assert!(made.equal(&expected), "{what}: {made} {expected}");
    };
    let ints = |list: &[i64]| Value::Ints(list.to_vec());
    let made = call("roll", this(vec![("shifts", ints(&[1, 2])), ("dims", ints(&[0, 1]))]));
    same(one(made), x.roll([1, 2], [0, 1]), "roll");
    let made = call("clamp_min", this(vec![("min", Value::Float(0.25))]));
    same(one(made), x.clamp_min(0.25), "clamp_min");
    let made = call("cumsum", this(vec![("dim", Value::Int(-1))]));
    same(one(made), x.cumsum(-1, None), "cumsum");
    let made =
        call("cumsum", this(vec![("dim", Value::Int(0)), ("dtype", Value::Dtype(DType::Float64))]));
    same(one(made), x.cumsum(0, Kind::Double), "cumsum in float64");
    let made = call("softmax.int", this(vec![("dim", Value::Int(1))]));
    same(one(made), x.softmax(1, None), "softmax");
    let given =
        vec![("ord", Value::Int(3)), ("dim", Value::Int(1)), ("keepdim", Value::Bool(true))];
    let made = call("linalg_vector_norm", this(given));
    let (made, expected) = (one(made), x.norm_scalaropt_dim(3, 1, true));
    assert!(made.size() == expected.size() && made.allclose(&expected, 1e-6, 0.0, false));
    let made = call("expand", this(vec![("size", ints(&[2, 3, 4]))]));
    same(one(made), x.expand([2, 3, 4], false), "expand");
    let made = call("sum.dim_IntList", this(vec![("dim", ints(&[0, 1]))]));
    same(one(made), x.sum_dim_intlist(vec![0i64, 1], false, None), "sum");
    let made = call(
        "where.self",
        vec![
            ("condition", Value::Tensor(&condition)),
            ("self", Value::Tensor(&x)),
            ("other", Value::Tensor(&x)),
        ],
    );
    same(one(made), x.copy(), "where");
    let given = vec![
        ("equation", Value::Text("ij,jk->ik".into())),
        ("tensors", Value::Tensors(vec![&x, &y])),
    ];
    same(one(call("einsum", given)), Tensor::einsum("ij,jk->ik", &[&x, &y], None::<i64>), "einsum");
    let given = vec![("tensors", Value::Tensors(vec![&x, &x])), ("dim", Value::Int(1))];
    same(one(call("cat", given)), Tensor::cat(&[&x, &x], 1), "cat");
    let other = &x + 0.7;
    let made = call(
        "div.Tensor_mode",
        vec![
            ("self", Value::Tensor(&x)),
            ("other", Value::Tensor(&other)),
            ("rounding_mode", Value::Text("floor".into())),
        ],
    );
    same(one(made), x.divide_tensor_mode(&other, "floor"), "div");
    let made = call(
        "mse_loss",
        vec![
            ("self", Value::Tensor(&x)),
            ("target", Value::Tensor(&y.reshape([3, 4]))),
            ("reduction", Value::Int(2)),
        ],
    );
    same(one(made), x.mse_loss(&y.reshape([3, 4]), Reduction::Sum), "mse_loss");
    let picture = numbers(&[1, 2, 6, 6]);
    let given = vec![("self", Value::Tensor(&picture)), ("kernel_size", Value::Int(2))];
    let expected = picture.avg_pool2d([2, 2], [2, 2], [0, 0], false, true, None::<i64>);
    same(one(call("avg_pool2d", given)), expected, "avg_pool2d with one number for two");
    let made = call("max.dim", this(vec![("dim", Value::Int(1))])).unwrap();
    let (largest, places) = x.max_dim(1, false);
    assert!(made[0].equal(&largest) && made[1].equal(&places), "two outputs");
    let made = call("unbind.int", this(Vec::new())).unwrap();
    assert_eq!(made.len(), 3, "a list of outputs");
}

#[test]
fn autograd_knows_the_calls() {
    let x = numbers(&[3, 4]).set_requires_grad(true);
    let operator = Operator::find("roll").unwrap();
    let given =
        vec![("self", Value::Tensor(&x)), ("shifts", Value::Int(1)), ("dims", Value::Int(0))];
    let given = values(&operator, given).unwrap();
    let made = operator.call(&given).unwrap().remove(0);
    let grad = numbers(&[3, 4]);
    let grads = crate::grad::backward(&[&made], &[&grad], &[&x]).unwrap();
    assert!(grads[0].as_ref().unwrap().equal(&grad.roll([-1], [0])));
}

#[test]
fn wrong_arguments_are_errors() {
    let x = numbers(&[3, 4]);
    let refused = |name: &str, given: Vec<(&str, Value<'_>)>, expected: &str| {
        let said = call(name, given).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        assert!(said.starts_with(&format!("the operator `{name}`: ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let this = || ("self", Value::Tensor(&x));
    refused("roll", vec![this()], "missing argument `shifts`: expected whole numbers");
    refused("roll", vec![("shifts", Value::Int(1))], "missing argument `self`");
    let text = || Value::Text("one".into());
    refused("roll", vec![this(), ("shifts", text())], "argument `shifts`: expected whole numbers");
    refused("cumsum", vec![this(), ("dim", Value::Float(1.0))], "`dim`: expected a whole number");
    refused("cumsum", vec![this(), ("dim", Value::Int(2))], "Dimension out of range");
    refused("cumsum", vec![("self", Value::Int(1)), ("dim", Value::Int(0))], "a tensor");
    refused("roll", vec![this(), ("shifts", Value::Int(i64::MIN))], "is too large");
    refused("roll", vec![this(), ("shifts", Value::Ints(vec![1; 1025]))], "at most 1024 elements");
    let long = Value::Text("a".repeat(257));
    refused("einsum", vec![("equation", long)], "at most 256 bytes");
    let much = Value::Ints(vec![1 << 20, 1 << 20, 3, 4]);
    refused("expand", vec![this(), ("size", much)], "would take more than 64 GiB");
    let picture = numbers(&[1, 2, 6, 6]);
    let given = || ("self", Value::Tensor(&picture));
    let three = Value::Ints(vec![2, 2, 2]);
    refused("avg_pool2d", vec![given(), ("kernel_size", three)], "expected 2 whole numbers");
    let video = numbers(&[1, 2, 3, 3]);
    let none = Value::Ints(Vec::new());
    let given = vec![("self", Value::Tensor(&video)), ("padding", none)];
    refused("reflection_pad3d", given, "expected 6 whole numbers");
    let operator = Operator::find("roll").unwrap();
    let said = operator.call(&[(99, Value::Int(1))]).unwrap_err().to_string();
    assert!(said.contains("has no argument 99"), "{said}");
}

/// Sizes and numbers of any kind give a result or an error.
#[test]
fn random_arguments_never_end_the_process() {
    crate::threads::set_count(1);
    const NAMES: [&str; 42] = [
        "roll",
        "where.self",
        "clamp",
        "linalg_vector_norm",
        "einsum",
        "cumsum",
        "div.Tensor_mode",
        "softmax.int",
        "cat",
        "stack",
        "var.correction",
        "expand",
        "repeat",
        "flip",
        "tril",
        "amax",
        "gather",
        "scatter_add",
        "index_select",
        "topk",
        "sort",
        "pow.Tensor_Scalar",
        "layer_norm",
        "view",
        "permute",
        "unfold",
        "im2col",
        "col2im",
        "pad",
        "grid_sampler",
        "matmul",
        "split.Tensor",
        "unbind.int",
        "diff",
        "linalg_matrix_power",
        "reflection_pad2d",
        "avg_pool2d",
        "upsample_bilinear2d",
        "constant_pad_nd",
        "slice.Tensor",
        "diagonal",
        "cosine_similarity",
    ];
    let mut rng = Random::new(20);
    let mut done = 0;
    for _ in 0..4000 {
        let operator = Operator::find(NAMES[rng.below(NAMES.len() as u64) as usize]).unwrap();
        let tensors: Vec<Tensor> = (0..4).map(|_| random_tensor(&mut rng)).collect();
        let mut given = Vec::new();
        for (place, argument) in operator.arguments().iter().enumerate() {
            if argument.required || rng.chance(50) {
                given.extend(random_value(&mut rng, argument.kind, &tensors).map(|it| (place, it)));
            }
        }
        let Ok(outline) = operator.outline(&given) else { continue };
        let elements = |shape: &Vec<i64>| shape.iter().product::<i64>();
        let large =
            |outline: Vec<Outline>| outline.iter().any(|(_, shape)| elements(shape) > 1 << 20);
        if !outline.is_some_and(large) {
            done += usize::from(operator.call(&given).is_ok());
        }
    }
    assert!(done > 200, "{done} calls were right");
}

/// `call` compares their shapes with what is told before.
#[test]
fn patches_of_images_are_foretold() {
    let mut rng = Random::new(21);
    let mut done = 0;
    for _ in 0..300 {
        let mut sizes = |least: i64, most: u64| {
            (0..2).map(|_| least + rng.below(most) as i64).collect::<Vec<i64>>()
        };
        let (size, kernel, stride) = (sizes(1, 9), sizes(1, 3), sizes(1, 3));
        let (padding, dilation) = (sizes(0, 3), sizes(1, 2));
        let with = |given| {
            let ints = |name, of: &Vec<i64>| (name, Value::Ints(of.clone()));
            let mut all: Vec<(&str, Value<'_>)> = given;
            all.extend([
                ints("kernel_size", &kernel),
                ints("dilation", &dilation),
                ints("padding", &padding),
                ints("stride", &stride),
            ]);
            all
        };
        let images = numbers(&[2, 3, size[0], size[1]]);
        let Ok(made) = call("im2col", with(vec![("self", Value::Tensor(&images))])) else {
            continue;
        };
        let columns = Value::Tensor(&made[0]);
        let larger = vec![size[0] + 9 * stride[0], size[1]];
        let given = vec![("self", Value::Tensor(&made[0])), ("output_size", Value::Ints(larger))];
        let error = call("col2im", with(given)).unwrap_err().to_string();
        assert!(error.contains("patches of whole kernels"), "{error}");
        let given = vec![("self", columns), ("output_size", Value::Ints(size.clone()))];
        assert_eq!(call("col2im", with(given)).unwrap()[0].size(), images.size());
        done += 1;
    }
    assert!(done > 150, "{done} were large enough");
    let image = numbers(&[3, 8, 8]);
    let huge = vec![
        ("self", Value::Tensor(&image)),
        ("kernel_size", Value::Ints(vec![1, 1])),
        ("dilation", Value::Ints(vec![1, 1])),
        ("padding", Value::Ints(vec![1 << 20, 1 << 20])),
        ("stride", Value::Ints(vec![1, 1])),
    ];
    let error = call("im2col", huge).unwrap_err().to_string();
    assert!(error.contains("more than"), "{error}");
}

fn random_tensor(rng: &mut Random) -> Tensor {
    let rank = rng.below(5);
    let shape: Vec<i64> = (0..rank).map(|_| rng.below(5) as i64).collect();
    let made = numbers(&shape) * 4.0;
    let kind = *rng.pick(&[Kind::Float, Kind::Float, Kind::Double, Kind::Int64, Kind::Bool]);
    made.to_kind(kind)
}

fn random_int(rng: &mut Random) -> i64 {
    match rng.chance(10) {
        true => *rng.pick(&[i64::MIN, i64::MAX, 1 << 40, -(1 << 40), 100_000, -100_000]),
        false => rng.below(7) as i64 - 2,
    }
}

fn random_float(rng: &mut Random) -> f64 {
    match rng.chance(15) {
        true => *rng.pick(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e300, 0.0]),
        false => rng.below(4000) as f64 / 1000.0 - 1.0,
    }
}

/// A value of the right type, or now and then of another.
fn random_value<'a>(
    rng: &mut Random,
    kind: ArgumentKind,
    tensors: &'a [Tensor],
) -> Option<Value<'a>> {
    const KINDS: [ArgumentKind; 4] =
        [ArgumentKind::Int, ArgumentKind::Ints, ArgumentKind::Text, ArgumentKind::Tensor];
    let kind = if rng.chance(3) { *rng.pick(&KINDS) } else { kind };
    let count = rng.below(5);
    Some(match kind {
        ArgumentKind::Other => return None,
        ArgumentKind::Tensor => Value::Tensor(rng.pick(tensors)),
        ArgumentKind::Tensors => Value::Tensors((0..count).map(|_| rng.pick(tensors)).collect()),
        ArgumentKind::Int => Value::Int(random_int(rng)),
        ArgumentKind::Float => Value::Float(random_float(rng)),
        ArgumentKind::Bool => Value::Bool(rng.chance(50)),
        ArgumentKind::Number if rng.chance(50) => Value::Int(random_int(rng)),
        ArgumentKind::Number => Value::Float(random_float(rng)),
        ArgumentKind::Text => {
            let texts = ["mean", "ij,jk->ik", "...i,i", "constant", "reflect", "floor", "", "\0"];
            Value::Text((*rng.pick(&texts)).to_owned())
        }
        ArgumentKind::Ints if rng.chance(25) => Value::Int(random_int(rng)),
        ArgumentKind::Ints => Value::Ints((0..count).map(|_| random_int(rng)).collect()),
        ArgumentKind::Floats => Value::Floats((0..count).map(|_| random_float(rng)).collect()),
        ArgumentKind::Bools => Value::Bools((0..count).map(|_| rng.chance(50)).collect()),
        ArgumentKind::Dtype => Value::Dtype(*rng.pick(&DType::ALL)),
    })
}
