//! Law 1 beyond the plain step: weights that stages share, clipped gradients, accumulated steps,
//! recomputed activations, frozen layers, batches of changing size. See `law_1.rs`.

use pipeline::ScheduleKind;
use tests::sample::sampled;
use tests::{
    cuts, one_process, train, Case, Connectivity, InMemoryCluster, SocketCluster, Steps,
    MICROBATCHES,
};

/// The number of tested cuts into each number of stages.
const CUTS: usize = 3;

/// Tests some cuts into 2, 3 and 4 stages in memory, with every placement and kind of schedule. The
/// numbers of microbatches take turns. One cut also runs over real connections.
fn no_cut_shows(case: &Case) {
    tensor::threads::set_count(1);
    let expected = MICROBATCHES.map(|microbatches| one_process(case, microbatches));
    let mut ways = Vec::new();
    for stages in 2..=4 {
        let cuts = cuts::into_stages(case.model.graph(), stages);
        for starts in cuts.iter().step_by(cuts.len().div_ceil(CUTS)) {
            for (placement, plan) in cuts::plans(&case.model, starts) {
                let way = |kind: &ScheduleKind| (starts.clone(), plan.clone(), *kind);
                ways.extend(cuts::kinds(placement).iter().map(way));
            }
        }
    }
    let mut number = 0;
    // 5 divides no number of kinds, so that each has its turn in a sample.
    for (starts, plan, kind) in sampled(ways, 5) {
        let turn = number as usize % MICROBATCHES.len();
        let mut cluster = InMemoryCluster::new(plan.clone(), case.seed, number);
        let training = train(case, &plan, kind, MICROBATCHES[turn], &mut cluster);
        let what =
            format!("{} cut at {starts:?}, {kind}, {} microbatches", case.name, MICROBATCHES[turn]);
        expected[turn].assert_same(&training, &what);
        number += 1;
    }
    let (placement, plan) =
        cuts::plans(&case.model, &cuts::into_stages(case.model.graph(), 2)[0]).pop().unwrap();
    for kind in cuts::kinds(placement) {
        let mut cluster = SocketCluster::new(plan.clone(), case.seed, Connectivity::SharedMemory);
        let training = train(case, &plan, *kind, MICROBATCHES[1], &mut cluster);
        expected[1].assert_same(&training, &format!("{} over sockets, {kind}", case.name));
    }
    println!("{:8} {number} runs in memory, equal to one process", case.name);
}

/// A limit so small that every step is clipped.
const SMALL: Option<f64> = Some(1e-3);

#[test]
fn with_a_weight_tied_across_stages() {
    no_cut_shows(&Case::tied());
}

#[test]
fn with_a_tied_weight_clipping_and_accumulated_steps_of_changing_size() {
    let steps = Steps {
        samples: &[32, 20, 9],
        lengths: &[8, 5],
        accumulate: 3,
        max_norm: SMALL,
        ..Steps::default()
    };
    no_cut_shows(&Case::tied().with(steps));
}

#[test]
fn with_gradients_whose_norm_is_limited() {
    let limited = Case::narrow_residual().with(Steps { max_norm: SMALL, ..Steps::default() });
    let (with, without) = (one_process(&limited, 4), one_process(&Case::narrow_residual(), 4));
    assert!(with != without, "the limit does not bite");
    no_cut_shows(&limited);
    no_cut_shows(&Case::convnet().with(Steps { max_norm: SMALL, ..Steps::default() }));
}

#[test]
fn with_gradients_accumulated_over_uneven_steps() {
    no_cut_shows(&Case::skip().with(Steps {
        samples: &[32, 17, 30],
        accumulate: 3,
        ..Steps::default()
    }));
}

#[test]
fn with_batches_and_sequences_of_changing_size() {
    no_cut_shows(&Case::tied().with(Steps {
        samples: &[32, 5, 31, 16],
        lengths: &[3, 8, 1],
        ..Steps::default()
    }));
    no_cut_shows(&Case::convnet().with(Steps { samples: &[7, 32], ..Steps::default() }));
}

#[test]
fn with_recomputed_activations() {
    for how in ["full", "selective"] {
        let again = Case::skip().changed("repeat: 3", &format!("repeat: 3\n    recompute: {how}"));
        no_cut_shows(&again);
        let [plain, again] = [Case::skip(), again].map(|case| one_process(&case, 5));
        plain.assert_same(&again, &how);
        no_cut_shows(
            &Case::convnet()
                .changed("  - BatchNorm2d:", &format!("  - recompute: {how}\n    BatchNorm2d:")),
        );
    }
}

#[test]
fn with_a_frozen_layer() {
    let frozen = Case::narrow_residual()
        .changed("    out_variables: [res_1]", "    freeze: true\n    out_variables: [res_1]");
    assert!(
        one_process(&frozen, 4) != one_process(&Case::narrow_residual(), 4),
        "nothing is frozen"
    );
    no_cut_shows(&frozen);
    no_cut_shows(&Case::tied().changed("    name: up", "    name: up\n    freeze: true"));
}
