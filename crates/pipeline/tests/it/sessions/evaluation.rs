//! The assignment of whole batches in evaluation.

use layerspec::LayerGraph;
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::{Speed, WorkerGroups};
use pipeline::schedule::Action;
use pipeline::{Cuts, Placement, Plan};

/// Three layers. The middle one is a norm with running statistics, and with the options in `norm`.
fn plan(norm: &str, replicas: &[u16]) -> Plan {
    let text = format!(
        "inputs: {{x: [batch, 4]}}\nlayers:\n  - Linear: {{in_features: 4, out_features: 4}}\n  - \
         BatchNorm1d: {{num_features: 4}}\n{norm}  - Linear: {{in_features: 4, out_features: 4}}\n"
    );
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    let cuts =
        Cuts::At(["1", "2"].iter().take(replicas.len() - 1).map(|name| name.to_string()).collect());
    Plan::new(&graph, &cuts, WorkerGroups::of(replicas), Placement::Plain).expect("a good cut")
}

/// The batches that each worker takes through each of its stages.
fn taken(plan: &Plan, batches: u32) -> Vec<Vec<(u16, u32)>> {
    let microbatch_assignment = plan.assign_batches(batches, |_, _| Speed::from(1));
    assert!(microbatch_assignment.fits(&plan.stage_placement));
    let of = |action: &Action| match *action {
        Action::Forward { stage: StageId(stage), microbatch } => Some((stage, microbatch)),
        _ => None,
    };
    let lists = plan.forwards(&microbatch_assignment, batches);
    lists
        .iter()
        .map(|list| list.iter().map(|action| of(action).expect("a forward pass")).collect())
        .collect()
}

#[test]
fn replicas_share_batches_and_stages_have_several_at_once() {
    let alone = plan("", &[3]);
    assert_eq!(alone.batches_at_once(), 3);
    assert_eq!(taken(&alone, 3), [[(0, 0)], [(0, 1)], [(0, 2)]]);
    assert_eq!(taken(&alone, 2), [vec![(0, 0)], vec![(0, 1)], vec![]]);
    let uneven = plan("", &[1, 2, 1]);
    assert_eq!(uneven.batches_at_once(), 2 * 3 * 4);
    assert_eq!(
        taken(&uneven, 2),
        [vec![(0, 0), (0, 1)], vec![(1, 0)], vec![(2, 0), (2, 1)], vec![(1, 1)]]
    );
    let without = plan("", &[1, 1, 1]);
    assert_eq!(
        (without.batches_at_once(), taken(&without, 1)),
        (3 * 4, vec![vec![(0, 0)], vec![(1, 0)], vec![(2, 0)]])
    );
}

/// They exchange their statistics, so all replicas have the same.
#[test]
fn replicas_of_a_frozen_norm_share_batches_too() {
    let frozen = plan("    freeze: true\n", &[2, 3, 1]);
    assert_eq!(frozen.batches_at_once(), 3 * 3 * 4);
    let layout = frozen.layout();
    assert!(!layout.is_trained(StageId(1)) && layout.is_reduced(StageId(1)));
    assert_eq!(taken(&frozen, 3), taken(&plan("", &[2, 3, 1]), 3));
}

#[test]
fn who_is_slow_is_left_out() {
    let alone = plan("", &[3]);
    let speed = |_, worker: WorkerId| Speed::from(if worker.0 == 1 { 100 } else { 10 });
    let microbatch_assignment = alone.assign_batches(3, speed);
    let takers = [0, 1, 2].map(|batch| {
        microbatch_assignment.worker(&alone.stage_placement, StageId(0), batch).expect("a worker").0
    });
    assert!(!takers.contains(&1) && takers.contains(&0) && takers.contains(&2), "{takers:?}");
}

#[test]
fn the_most_that_a_worker_receives_is_shared_by_the_replicas_of_its_stage() {
    let plan = plan("", &[1, 3, 2]);
    let [_, second, third] = &plan.stages[..] else { panic!("three stages") };
    let between = [second, third].map(|stage| stage.inputs[0].value);
    let received = |bytes: [u64; 2]| {
        plan.received(|value| {
            let at = between.iter().position(|other| *other == value);
            bytes[at.expect("the model's input does not travel between stages")]
        })
    };
    assert_eq!(received([900, 400]), 300);
    assert_eq!(received([900, 700]), 350);
}
