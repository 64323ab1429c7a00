//! Invalid calls return an error, and the engine continues to work.

use super::models::RESIDUAL;
use super::*;
use layerspec::{LayerId, ValueId};

/// Runs one plain step, and returns its loss.
fn step(engine: &mut Engine) -> f32 {
    let prediction = engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap().remove(0);
    let loss =
        engine.loss(key(0), &mse(&prediction, &normal("y", &[4, 2]), 1.0), Mode::Train).unwrap();
    engine.backward(key(0), vec![vec![]]).unwrap();
    loss.numbers().unwrap()[0] as f32
}

#[test]
fn a_wrong_shape_names_the_layer_and_leaves_the_engine_working() {
    let mut engine = engine(RESIDUAL);
    let loss = step(&mut engine);
    engine.zero_grad();
    let error = engine.forward(&train(0), vec![normal("x", &[4, 5])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer 0 (Linear), forward: libtorch: mat1 and mat2 shapes cannot be multiplied (4x5 and \
         3x17)"
    );
    engine.discard(1);
    assert_eq!((engine.pending_microbatches(), step(&mut engine)), (0, loss));
}

#[test]
fn a_layer_in_the_middle_is_named() {
    let mut engine = engine(
        "
model: words
inputs: {ids: {shape: [batch], dtype: int64}}
layers:
  - Identity
  - Embedding: {num_embeddings: 3, embedding_dim: 2}
    name: words
",
    );
    let ids = Tensor::from_slice(&[0i64, 7]);
    let error = engine.forward(&train(0), vec![ids]).unwrap_err();
    let EngineError::Layer { layer, kind, phase, .. } = &error else { panic!("{error}") };
    assert_eq!((layer.as_str(), *kind, *phase), ("words", "Embedding", LayerPhase::Forward));
    assert!(
        error.to_string().ends_with("id 7, but `num_embeddings` is 3: ids are 0 to 2"),
        "{error}"
    );
    let negative = engine.forward(&train(0), vec![Tensor::from_slice(&[-1i64, 2])]).unwrap_err();
    assert!(negative.to_string().contains("id -1, but"), "{negative}");
}

/// The size of a table that is a parameter is known before the layer runs.
#[test]
fn an_index_outside_its_dimension_is_refused() {
    let mut engine = engine(
        "
model: rows
inputs: {ids: {shape: [batch], dtype: int64}}
layers:
  - Parameter: {shape: [2, 3], expand: false}
    out_variables: [table]
  - Flip: {dims: 0}
    input: ids
    out_variables: [flipped]
  - Index: {dim: -1}
    input: table
    in_variables: [flipped]
  - Index: {dim: -1}
    in_variables: [flipped]
",
    );
    let mut run = |ids: &[i64]| engine.forward(&train(0), vec![Tensor::from_slice(ids)]);
    let error = run(&[0, 3]).unwrap_err().to_string();
    assert!(error.ends_with("id 3, but the dimension is 3: ids are 0 to 2"), "{error}");
    let negative = run(&[-1]).unwrap_err().to_string();
    assert!(negative.contains("id -1, but"), "{negative}");
    // The second index looks into a result, whose size libtorch checks.
    let late = run(&[2]).unwrap_err().to_string();
    assert!(late.contains("out of") && late.contains("(Index)"), "{late}");
}

#[test]
fn a_gradient_of_another_shape_is_refused() {
    let mut engine = engine(RESIDUAL);
    engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap();
    let error = engine.backward(key(0), vec![vec![normal("g", &[4, 1])]]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the gradient of output 0 has shape [4, 1], but the output has [4, 2]"
    );
    engine.discard(1);
    step(&mut engine);
}

#[test]
fn targets_that_do_not_fit_are_refused() {
    let mut engine = engine(RESIDUAL);
    let prediction = engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap().remove(0);
    let mut fail = |loss: &LossSpec, target: &Tensor| {
        let task = LossInputs { output: 0, prediction: &prediction, target, loss, weight: 1.0 };
        let error = engine.loss(key(0), &task, Mode::Train).unwrap_err().to_string();
        assert_eq!(engine.loss(key(0), &task, Mode::Eval).unwrap_err().to_string(), error);
        error
    };
    let error = fail(&LossSpec::MSELoss, &normal("y", &[4, 1]));
    assert_eq!(
        error,
        "MSELoss: expected a target like the output: the output is float32 [4, 2], the target \
         float32 [4, 1]"
    );
    fail(&LossSpec::MSELoss, &normal("y", &[4, 2]).to_kind(Kind::Double));

    let classes = &LossSpec::cross_entropy();
    for wrong in [&[0i64, 1][..], &[0, 1, 1], &[0, 1, 1, 0, 1]] {
        let error = fail(classes, &Tensor::from_slice(wrong));
        assert!(
            error.starts_with("CrossEntropyLoss: expected logits [N, C, ...] and a target"),
            "{error}"
        );
    }
    fail(classes, &normal("y", &[4]));
    for outside in [2i64, -1, i64::MAX, i64::MIN] {
        let error = fail(classes, &Tensor::from_slice(&[0i64, 1, outside, 1]));
        let expected =
            format!("CrossEntropyLoss: the target: class {outside}, but the output has 2 (0 to 1)");
        assert_eq!(error, expected);
        let smooth =
            &LossSpec::CrossEntropyLoss { classes: Classes::default(), label_smoothing: 0.1 };
        let error = fail(smooth, &Tensor::from_slice(&[0i64, 1, outside, 1]));
        assert_eq!(error, expected);
    }
    engine.discard(1);
    step(&mut engine);
}

#[test]
fn calls_out_of_turn_are_refused() {
    let mut engine = engine(RESIDUAL);
    assert_eq!(
        optim_step(&mut engine, 0.1).unwrap_err(),
        EngineError::Sequence(SequenceError::NoOptimizer)
    );
    let input = || normal("x", &[4, 3]);
    assert!(matches!(
        engine.forward(&train(0), vec![]),
        Err(EngineError::Sequence(SequenceError::CountMismatch { expected: 1, got: 0, .. }))
    ));
    assert!(matches!(
        engine.backward(key(0), vec![vec![]]),
        Err(EngineError::Sequence(SequenceError::UnknownMicrobatch { .. }))
    ));
    let prediction = engine.forward(&train(0), vec![input()]).unwrap().remove(0);
    assert!(matches!(
        engine.forward(&train(0), vec![input()]),
        Err(EngineError::Sequence(SequenceError::AlreadyForwarded { .. }))
    ));
    assert!(matches!(
        engine.backward(key(0), vec![]),
        Err(EngineError::Sequence(SequenceError::CountMismatch { expected: 1, got: 0, .. }))
    ));
    engine.backward(key(0), vec![vec![]]).unwrap();
    let target = normal("y", &[4, 2]);
    assert!(matches!(
        engine.backward_weight(key(0)),
        Err(EngineError::Sequence(SequenceError::NoBackwardInput { .. }))
    ));
    let late = engine.loss(key(0), &mse(&prediction, &target, 1.0), Mode::Train);
    assert!(matches!(late, Err(EngineError::Sequence(SequenceError::UnknownMicrobatch { .. }))));
}

#[test]
fn discarding_a_batch_forgets_it_alone() {
    let mut engine = engine(RESIDUAL);
    step(&mut engine);
    let other = Pass { key: MicrobatchKey { batch: 2, index: 0 }, ..train(0) };
    engine.forward(&train(1), vec![normal("x", &[4, 3])]).unwrap();
    engine.forward(&other, vec![normal("x", &[4, 3])]).unwrap();
    engine.discard(1);
    assert_eq!(engine.pending_microbatches(), 1);
    assert!(engine.gradients().unwrap().iter().all(|(_, grad)| grad.is_some()));
    engine.zero_grad();
    assert!(engine.gradients().unwrap().iter().all(|(_, grad)| grad.is_none()));
    engine.backward(other.key, vec![vec![normal("g", &[4, 2])]]).unwrap();
}

#[test]
fn a_weight_changed_between_forward_and_backward_is_an_error() {
    let mut engine = engine(RESIDUAL);
    engine.set_optimizer(OptimizerSpec::sgd(0.1));
    step(&mut engine);
    engine.forward(&train(1), vec![normal("x", &[4, 3])]).unwrap();
    optim_step(&mut engine, 0.1).unwrap();
    let error = engine.backward(key(1), vec![vec![normal("g", &[4, 2])]]).unwrap_err();
    assert_eq!(error, EngineError::Sequence(SequenceError::ParametersChanged { key: key(1) }));
}

#[test]
fn a_stage_that_does_not_hang_together_is_not_built() {
    let model = || whole(&graph(RESIDUAL), false);
    let mut no_input = model();
    no_input.inputs.clear();
    let error = build(no_input).unwrap_err();
    assert_eq!(
        error,
        EngineError::Plan(PlanError::MissingValue { value: ValueId(0), by: "layer 0".into() })
    );

    let mut no_output = model();
    no_output.outputs.push(ValueId(99));
    assert!(matches!(
        build(no_output),
        Err(EngineError::Plan(PlanError::MissingValue { value: ValueId(99), .. }))
    ));

    let mut elsewhere = model();
    elsewhere.layers[4].share = Some(LayerId(77));
    let error = build(elsewhere).unwrap_err();
    assert_eq!(
        error,
        EngineError::Plan(PlanError::UnknownOwner { layer: "4".into(), owner: LayerId(77) })
    );
    assert!(error.to_string().contains("nor copied from another"));

    let mut itself = model();
    itself.layers[4].share = Some(LayerId(4));
    assert!(matches!(build(itself), Err(EngineError::Plan(PlanError::UnknownOwner { .. }))));

    let mut too_few = model();
    too_few.layers[0].inputs.clear();
    let error = build(too_few).unwrap().forward(&eval(), vec![normal("x", &[4, 3])]).unwrap_err();
    assert!(error.to_string().contains("expected one input, got 0"), "{error}");
}
