//! The choice of a schedule: the predictions for a fleet, and the chosen candidate.

use layerspec::{Bindings, LayerGraph};
use pipeline::auto::{choose, Candidate, Choice, SearchSpace};
use pipeline::ids::WorkerId;
use pipeline::schedule::{Ending, Link, Placement};
use pipeline::task::LayerTimes;
use pipeline::{Cuts, Fleet, OptimizerSpec, Plan, ScheduleKind};
use testkit::assert_golden;

/// Eight equal layers.
fn graph() -> LayerGraph {
    let text = format!(
        "inputs: {{x: [batch, 64]}}\nlayers:\n{}",
        "  - Linear: {in_features: 64, out_features: 64}\n".repeat(8)
    );
    LayerGraph::from_yaml(&text, "model.yaml").expect("a good model")
}

fn space() -> SearchSpace {
    SearchSpace {
        chunks: None,
        worker_groups: Vec::new(),
        reduction: pipeline::message::Reduction::default(),
        cuts: Cuts::Auto,
        microbatches: 8,
        sizes: Bindings::new().with("batch", 4),
        target_bytes: Some(1024),
        ending: Ending::Step,
        optimizer: OptimizerSpec::adam(0.001),
        kinds: Vec::new(),
    }
}

/// Every layer takes a millisecond forward and each half of backward.
fn fleet(workers: usize) -> Fleet {
    let ms = 1_000_000;
    let times = LayerTimes {
        forward: ms,
        backward: 2 * ms,
        backward_input: ms,
        backward_weight: ms,
        optim_step: ms / 10,
        saved_bytes: 10 << 20,
        saved_bytes_between: 10 << 20,
        ..LayerTimes::default()
    };
    Fleet { times: vec![vec![times; 8]; workers], memory: vec![None; workers], ..Fleet::default() }
}

fn chosen(fleet: &Fleet, space: &SearchSpace) -> Choice {
    choose(&graph(), fleet, space).expect("something fits")
}

fn of(candidates: &[Candidate], kind: ScheduleKind) -> &Candidate {
    candidates.iter().find(|c| c.kind == kind).unwrap_or_else(|| panic!("{kind} was tried"))
}

#[test]
fn everything_that_fits_is_tried_and_the_fastest_comes_first() {
    let choice = chosen(&fleet(2), &space());
    assert_golden!("candidates.txt", &choice.to_string());
    assert!(choice.candidates.is_sorted_by_key(|c| c.step_time));
    for (_, kind) in ScheduleKind::NAMES {
        of(&choice.candidates, kind);
    }
    assert!(
        of(&choice.candidates, ScheduleKind::ZbH1).step_time
            < of(&choice.candidates, ScheduleKind::OneFOneB).step_time
    );
    // Only the allowed kinds.
    let space = SearchSpace { kinds: vec![ScheduleKind::GPipe], ..space() };
    let one = chosen(&fleet(2), &space).candidates;
    assert_eq!(one.iter().map(|c| c.kind).collect::<Vec<_>>(), [ScheduleKind::GPipe]);
}

#[test]
fn named_cuts_leave_the_placements_that_they_fit() {
    let at = |names: &[&str]| Cuts::At(names.iter().map(|n| n.to_string()).collect());
    let placements = |cuts: Cuts| {
        let choice = chosen(&fleet(2), &SearchSpace { cuts, ..space() });
        choice.candidates.into_iter().map(|c| c.placement).collect::<Vec<_>>()
    };
    assert!(placements(at(&["4"])).iter().all(|p| *p == Placement::Plain));
    assert!(placements(at(&["2", "4", "6"])).iter().all(|p| p.chunks() == 2));
    // Three stages on each worker, and with one worker eight.
    let six = chosen(&fleet(2), &SearchSpace { cuts: at(&["1", "2", "4", "5", "6"]), ..space() });
    let kinds: Vec<_> = six.candidates.iter().map(|c| (c.kind, c.placement.chunks())).collect();
    assert!(kinds.contains(&(ScheduleKind::Ready, 3)), "{kinds:?}");
    assert!(kinds.contains(&(ScheduleKind::Interleaved, 3)), "{kinds:?}");
    let eight = at(&["1", "2", "3", "4", "5", "6", "7"]);
    let eight = chosen(&fleet(1), &SearchSpace { cuts: eight, ..space() });
    assert!(eight.candidates.iter().any(|c| c.kind == ScheduleKind::Interleaved));
    let table = chosen(&fleet(2), &SearchSpace { cuts: at(&["4"]), ..space() }).to_string();
    assert!(
        table.contains(
            "zb-v         two stages a worker, down and up again   the cuts make 2 stages but"
        ),
        "{table}"
    );
    let nothing = choose(&graph(), &fleet(2), &SearchSpace { cuts: at(&["2", "4"]), ..space() });
    let error = nothing.expect_err("three stages on two workers").to_string();
    let expected = "the cuts make 3 stages but a pipeline of 2 workers with one stage a worker \
                    takes 2; name 1 layers, or none to have them chosen";
    assert_eq!(error, expected);
}

#[test]
fn a_number_of_stages_on_a_worker_is_the_only_one_tried() {
    let placements = |kind, chunks| {
        let kinds = vec![kind];
        let space = SearchSpace { chunks: Some(chunks), kinds, ..space() };
        chosen(&fleet(2), &space).candidates.into_iter().map(|c| c.placement).collect::<Vec<_>>()
    };
    for kind in [ScheduleKind::GPipe, ScheduleKind::Interleaved, ScheduleKind::Ready] {
        assert_eq!(placements(kind, 3), [Placement::Interleaved { chunks: 3 }], "{kind}");
    }
    assert_eq!(placements(ScheduleKind::Ready, 1), [Placement::Plain]);
}

#[test]
fn slow_links_ask_for_more_in_flight() {
    let mut far = fleet(4);
    far.link = Link::measured(10_000_000, 100_000_000);
    let choice = chosen(&far, &space());
    let ready = of(&choice.candidates, ScheduleKind::Ready);
    assert_eq!(choice.candidates[0].kind, ScheduleKind::Ready, "{choice}");
    assert!(ready.step_time < of(&choice.candidates, ScheduleKind::OneFOneB).step_time);
}

#[test]
fn what_outgrows_memory_is_not_taken() {
    let mut small = fleet(2);
    // Four layers a worker: 40 MiB a microbatch.
    small.memory = vec![Some(130 << 20); 2];
    let choice = chosen(&small, &space());
    let refused =
        |kind| of(&choice.candidates, kind).refused.as_ref().map(|error| error.to_string());
    let error = refused(ScheduleKind::GPipe).expect("it holds all microbatches");
    assert!(error.starts_with("worker 0 needs 321 MiB of memory and has 130 MiB"), "{error}");
    assert_eq!(refused(ScheduleKind::OneFOneB), None);
    assert_eq!(refused(ScheduleKind::Ready), None, "it is told what room there is");
    assert!(choice.candidates.is_sorted_by_key(|c| c.refused.is_some()));
}

#[test]
fn a_slow_worker_gets_fewer_layers() {
    let mut uneven = fleet(2);
    for time in &mut uneven.times[0] {
        (time.forward, time.backward) = (3 * time.forward, 3 * time.backward);
    }
    let choice = chosen(&uneven, &space());
    let plan = &of(&choice.candidates, ScheduleKind::OneFOneB).plan;
    assert_eq!(plan.stages_of(WorkerId(0))[0].layers.len(), 2);
}

#[test]
fn without_measurements_flops_tell() {
    let sizes = Bindings::new().with("batch", 4);
    let fleet = Fleet::estimated(&graph(), 2, &sizes, 1e9);
    let choice = chosen(&fleet, &space());
    assert!(choice
        .candidates
        .iter()
        .all(|c| c.step_time > 0 && c.bubble.iter().all(|b| (0.0..1.0).contains(b))));
    // 8 parameters matrices with bias: value, gradient, two copies of state. The prediction and its
    // gradient.
    let bytes = of(&choice.candidates, ScheduleKind::OneFOneB);
    let parameters = (64 * 64 + 64) * 4 * 4 * 4;
    let held = |microbatches: u64| microbatches * 4 * 4 * 64 * 4;
    let prediction = 4 * 64 * 4;
    assert_eq!(bytes.peak_bytes, [parameters + held(2), parameters + held(1) + 2 * prediction]);
}

#[test]
fn over_a_slow_line_a_worker_has_one_stage() {
    let line = Link { latency: 20_000_000, per_byte: 80.0 };
    let mut fleet = fleet(2);
    fleet.links = [((WorkerId(0), WorkerId(1)), line), ((WorkerId(1), WorkerId(0)), line)].into();
    fleet.boss_links = [(WorkerId(1), line)].into();
    let choice = chosen(&fleet, &space());
    assert_eq!(choice.best(|_| true).map(|c| c.placement), Some(Placement::Plain), "{choice}");
}

/// A microbatch of the input has 1,024 bytes, and its targets here 100.
#[test]
fn the_boss_sends_inputs_to_the_first_stage_and_targets_to_the_last() {
    let from_boss = |workers: usize| {
        let plan = Plan::new(&graph(), &Cuts::Auto, workers, Placement::Plain).expect("a good cut");
        let costs = fleet(workers).costs(&graph(), &plan, &space().sizes, Some(100));
        costs.from_boss.into_iter().map(|(stage, bytes)| (stage.0, bytes)).collect::<Vec<_>>()
    };
    assert_eq!(from_boss(3), [(0, 1024), (2, 100)]);
    assert_eq!(from_boss(1), [(0, 1124)]);
}

/// Four layers of 10 MiB each would take 80 MiB: the first worker holds two microbatches.
#[test]
fn a_cut_leaves_room_for_activations() {
    let mut small = fleet(2);
    small.memory = vec![Some(70 << 20); 2];
    let choice = chosen(&small, &space());
    let taken = of(&choice.candidates, ScheduleKind::OneFOneB);
    let layers = |worker| taken.plan.stages_of(WorkerId(worker))[0].layers.len();
    assert_eq!((&taken.refused, layers(0), layers(1)), (&None, 3, 5));
}

/// The prediction of a large vocabulary, and its gradient, are with the last layer.
#[test]
fn a_cut_leaves_room_for_the_prediction() {
    let text = "inputs: {x: [batch, 64]}\nlayers:\n  - {name: block, repeat: 7, layers: [Linear: \
                {in_features: 64, out_features: 64}]}\n  - Linear: {in_features: 64, out_features: \
                1048576, bias: false}\n";
    let graph = LayerGraph::from_yaml(text, "model.yaml").expect("a good model");
    let mut fleet = fleet(2);
    // The last layer takes 512 MiB with its gradient, and each prediction 16 MiB.
    fleet.memory = vec![Some(200 << 20), Some(560 << 20)];
    let mib = |n: u64| n << 20;
    let space = SearchSpace { optimizer: OptimizerSpec::sgd(0.1), ..space() };
    let choice = choose(&graph, &fleet, &space).expect("something fits");
    let taken = of(&choice.candidates, ScheduleKind::OneFOneB);
    let [first, last] = taken.peak_bytes[..] else { panic!("{:?}", taken.peak_bytes) };
    assert!(taken.refused.is_none() && first <= mib(200) && last <= mib(560), "{choice}");
    assert!(last > mib(512 + 2 * 16), "the prediction and its gradient count");
}

#[test]
fn of_equally_fast_ones_the_one_that_takes_the_least_memory_is_taken() {
    let choice = chosen(&fleet(2), &space());
    let taken = choice.best(|_| true).expect("something fits");
    let memory = |c: &Candidate| c.peak_bytes.iter().max().copied();
    let as_fast =
        choice.candidates.iter().filter(|c| c.step_time == choice.candidates[0].step_time);
    assert_eq!(memory(taken), as_fast.map(memory).min().flatten());
    assert!(choice
        .best(|c| c.kind == ScheduleKind::GPipe)
        .is_some_and(|c| c.kind == ScheduleKind::GPipe));
    assert!(choice.best(|_| false).is_none());
}

/// A table that two layers share. `Fleet::bytes` counts a gradient for each use.
#[test]
fn shared_parameters_have_a_gradient_for_each_use_and_frozen_ones_have_none() {
    let table = 4 * 1000 * 16;
    let bytes = |frozen: bool, cuts: Cuts, workers: usize| -> Vec<u64> {
        let freeze = if frozen { "    freeze: true\n" } else { "" };
        let text = format!(
            "inputs: {{x: {{shape: [batch], dtype: int64}}}}\nlayers:\n  - Embedding: \
             {{num_embeddings: 1000, embedding_dim: 16}}\n    name: embed\n{freeze}  - Linear: \
             {{in_features: 16, out_features: 1000, bias: false}}\n    name: head\n    share: \
             embed\n"
        );
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let plan = Plan::new(&graph, &cuts, workers, Placement::Plain).expect("a plan");
        let sizes = Bindings::new().with("batch", 4);
        let fleet = Fleet::estimated(&graph, workers, &sizes, 1e9);
        let stages = fleet.bytes(&graph, &plan, &sizes, &OptimizerSpec::adam(0.001));
        stages.iter().map(|stage| stage.fixed / table).collect()
    };
    let cut = || Cuts::At(vec!["head".into()]);
    // Value, two moments, and two gradients.
    assert_eq!(bytes(false, Cuts::Auto, 1), [5]);
    assert_eq!(bytes(false, cut(), 2), [4, 2]);
    assert_eq!(bytes(true, Cuts::Auto, 1), [1]);
    assert_eq!(bytes(true, cut(), 2), [1, 1]);
}
