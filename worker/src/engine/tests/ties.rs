//! Parameters that layers of several stages share, the norm of gradients, and updates.

use super::models::TEXT;
use super::*;
use pipeline::ids::StageId;
use pipeline::plan::{TiedCopy, TiedOwner};

/// Three uses of one weight, one frozen layer, parameters that only some of the users share.
const TIES: &str = "
model: ties
inputs: {x: [batch, 6]}
layers:
  - Linear: {in_features: 6, out_features: 6}
    name: owner
  - Tanh
  - Linear: {in_features: 6, out_features: 6, bias: false}
    name: second
    share: owner
  - Tanh
  - Linear: {in_features: 6, out_features: 6}
    name: third
    share: owner
  - Linear: {in_features: 6, out_features: 6}
    name: last
";

/// The stages of a model that is cut before each layer of `cuts`, with their tied parameters.
fn stages(graph: &LayerGraph, cuts: &[usize]) -> Vec<Engine> {
    let bounds: Vec<usize> =
        [0].iter().chain(cuts).copied().chain([graph.layers().len()]).collect();
    let home = |id: layerspec::LayerId| {
        StageId(bounds.windows(2).position(|b| (b[0]..b[1]).contains(&id.index())).unwrap() as u16)
    };
    let users = |owner: &layerspec::Layer, stage: StageId| {
        let users = graph
            .layers()
            .iter()
            .rev()
            .filter(|user| user.share == Some(owner.id) && home(user.id) == stage);
        users.cloned().collect::<Vec<_>>()
    };
    let count = bounds.len() as u16 - 1;
    let model = |stage: StageId| {
        let layers =
            graph.layers()[bounds[stage.0 as usize]..bounds[stage.0 as usize + 1]].to_vec();
        let first = layers[0].inputs[0];
        let foreign = graph
            .layers()
            .iter()
            .filter(|owner| home(owner.id) != stage && !users(owner, stage).is_empty());
        let tied_copies = foreign.map(|owner| TiedCopy {
            owner: owner.clone(),
            from: home(owner.id),
            users: users(owner, stage).iter().map(|user| user.id).collect(),
        });
        let tied_owners = layers.iter().map(|owner| TiedOwner {
            owner: owner.id,
            to: (0..count)
                .rev()
                .map(StageId)
                .filter(|other| *other != stage)
                .map(|other| (other, users(owner, other)))
                .filter(|(_, users)| !users.is_empty())
                .collect(),
        });
        StageConfig {
            inputs: vec![StageInput { value: first, needs_grad: stage.0 > 0, sum_here: true }],
            outputs: vec![layers[layers.len() - 1].outputs[0]],
            tied_copies: tied_copies.collect(),
            tied_owners: tied_owners.filter(|tied_owners| !tied_owners.to.is_empty()).collect(),
            buckets: Vec::new(),
            shard_id: None,
            shards_gradients: false,
            shards_parameters: false,
            layers,
            seed: 11,
            device: Device::Cpu,
        }
    };
    (0..count).map(|stage| build(model(StageId(stage))).unwrap()).collect()
}

/// Runs one step of two microbatches. Returns the sums of squares of all gradients.
fn step(
    engines: &mut [Engine],
    number: u64,
    update: &Update,
    input: fn(&str) -> Tensor,
) -> Vec<(u32, u32, f64)> {
    for index in 0..2 {
        let pass = Pass {
            key: key(index),
            step: number,
            mode: Mode::Train,
            defer_statistics: false,
            check_finite: false,
        };
        let mut value = input(&format!("{number} {index}"));
        for engine in engines.iter_mut() {
            value = engine.forward(&pass, vec![value]).unwrap().remove(0);
        }
        let mut grads = vec![normal(&format!("g {number} {index}"), &value.size())];
        for engine in engines.iter_mut().rev() {
            grads = engine.backward(key(index), vec![grads]).unwrap().remove(0);
        }
    }
    let sent = |result: TensorsByStage| {
        result
            .into_iter()
            .map(|(to, tensors)| (to, tensors.iter().map(Tensor::copy).collect::<Vec<_>>()))
    };
    let mut to_owner: HashMap<StageId, TensorsByStage> = HashMap::new();
    for (stage, engine) in engines.iter_mut().enumerate().rev() {
        for (owner, tensors) in sent(engine.tied_grads().unwrap()) {
            to_owner.entry(owner).or_default().push((StageId(stage as u16), tensors));
        }
    }
    let mut squares = Vec::new();
    for (stage, engine) in engines.iter_mut().enumerate() {
        let tied = to_owner.remove(&StageId(stage as u16)).unwrap_or_default();
        let found = engine.grad_norm(tied).unwrap().read().unwrap();
        squares.extend(found.into_iter().map(|square| (square.layer.0, square.number, square.sum)));
    }
    let mut to_users: HashMap<StageId, TensorsByStage> = HashMap::new();
    for (stage, engine) in engines.iter_mut().enumerate() {
        for (user, tensors) in
            sent(engine.optim_step(update, Vec::new(), HealthCheck::Off).unwrap().owned_tied_values)
        {
            to_users.entry(user).or_default().push((StageId(stage as u16), tensors));
        }
    }
    for (stage, engine) in engines.iter_mut().enumerate() {
        engine.update_tied(to_users.remove(&StageId(stage as u16)).unwrap_or_default()).unwrap();
        assert!(engine.gradients().unwrap().iter().all(|(_, gradient)| gradient.is_none()));
    }
    squares
}

fn no_cut_shows(yaml: &str, input: fn(&str) -> Tensor) {
    let graph = graph(yaml);
    let run = |cuts: &[usize]| {
        let mut engines = stages(&graph, cuts);
        engines.iter_mut().for_each(|engine| engine.set_optimizer(OptimizerSpec::adam(1.0)));
        let update = Update { lr: 1e-2, scale: 0.5, clip: 0.75, skip: false };
        let squares: Vec<_> =
            (0..3).flat_map(|number| step(&mut engines, number, &update, input)).collect();
        let state: Vec<_> = engines.iter().flat_map(|engine| engine.state().unwrap()).collect();
        (squares, state)
    };
    let (squares, state) = run(&[]);
    assert!(squares.iter().all(|(_, _, square)| *square > 0.0));
    let layers = graph.layers().len();
    for first in 1..layers {
        for cuts in (first + 1..layers).map(|second| vec![first, second]).chain([vec![first]]) {
            let cut = run(&cuts);
            assert_eq!(cut.0, squares, "norms, cut at {cuts:?}");
            assert_same(&cut.1, &state, &format!("cut at {cuts:?}"));
        }
    }
}

#[test]
fn no_cut_shows_between_layers_that_share() {
    no_cut_shows(TIES, |name| normal(name, &[4, 6]));
    no_cut_shows(TEXT, |name| {
        (normal(name, &[3, 6]).abs() * 5.0).to_kind(Kind::Int64).clamp(0, 12)
    });
}

#[test]
fn a_tied_copy_loads_the_owners_names_and_reports_nothing() {
    let mut engines = stages(&graph(TEXT), &[4]);
    let borrower = &mut engines[1];
    assert!(borrower
        .state()
        .unwrap()
        .iter()
        .all(|(name, _)| !name.contains("embedding") && !name.contains("head")));
    assert!(
        borrower.has_tensor("embedding.weight")
            && borrower.has_tensor("head.weight")
            && !borrower.has_tensor("2.weight")
    );
    let mut state = borrower.state().unwrap();
    state.push(("embedding.weight".into(), Tensor::ones([13, 8], (Kind::Float, Device::Cpu))));
    borrower.load_state(state).unwrap();
    assert_eq!(borrower.params.params().all[0].tensor.mean(Kind::Float).double_value(&[]), 1.0);
}

#[test]
fn copies_start_as_the_owners_parameter() {
    let engines = stages(&graph(TEXT), &[4]);
    let owner = engines[0].state().unwrap().remove(0);
    assert_eq!(owner.0, "embedding.weight");
    assert!(engines[1].params.params().all[0].tensor.equal(&owner.1));
}

#[test]
fn tensors_that_are_not_what_is_shared_are_refused() {
    let mut engines = stages(&graph(TEXT), &[4]);
    engines[0].set_optimizer(OptimizerSpec::sgd(0.1));
    let tensor = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let from = StageId(1);
    for wrong in [vec![], vec![tensor(&[2, 2])], vec![tensor(&[13, 8]), tensor(&[13, 8])]] {
        let error = engines[0].grad_norm(vec![(from, wrong)]).unwrap_err();
        assert_eq!(error, EngineError::PeerData(PeerDataError::Tied { stage: from }));
        engines[0].zero_grad();
    }
    engines[0].grad_norm(vec![(from, vec![tensor(&[0])])]).unwrap();
    let values = engines[0]
        .optim_step(
            &Update { lr: 0.1, scale: 1.0, clip: 1.0, skip: false },
            Vec::new(),
            HealthCheck::Off,
        )
        .unwrap();
    let values = values.owned_tied_values;
    assert_eq!(values[0].0, from);
    let error = engines[1].update_tied(vec![(StageId(0), vec![tensor(&[1])])]).unwrap_err();
    assert_eq!(error, EngineError::PeerData(PeerDataError::Tied { stage: StageId(0) }));
    engines[1].update_tied(vec![(StageId(0), values.into_iter().next().unwrap().1)]).unwrap();
}

#[test]
fn scale_and_clip_multiply_gradients_and_the_rate_is_the_updates() {
    let weights = |update: Update| {
        let mut engine = engine(TIES);
        engine.set_optimizer(OptimizerSpec::sgd(123.0));
        let before = engine.state().unwrap().remove(0).1;
        let output = engine.forward(&train(0), vec![normal("x", &[4, 6])]).unwrap().remove(0);
        engine.backward(key(0), vec![vec![output.ones_like()]]).unwrap();
        engine.optim_step(&update, Vec::new(), HealthCheck::Off).unwrap();
        before - engine.state().unwrap().remove(0).1
    };
    let plain = weights(Update { lr: 0.1, scale: 1.0, clip: 1.0, skip: false });
    let scaled = weights(Update { lr: 0.2, scale: 0.5, clip: 0.25, skip: false });
    assert!(scaled.allclose(&(plain / 4.0), 1e-4, 1e-7, false));
}
