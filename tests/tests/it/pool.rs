//! Tests a pool of real processes that join, leave and are killed. The weights are those of a quiet
//! run, to the bit.

use bossman::{Batch, BossMan, Builder, Host, Replicas};
use std::collections::BTreeMap;
use std::time::Duration;
use tests::programs::{free_port, TestFolder};
use tests::{Case, STEPS};

/// The time limit of steps until something happens; far longer than they take.
const PATIENCE: Duration = Duration::from_secs(600);

fn builder(case: &Case) -> Builder {
    let builder = BossMan::builder(case.model.clone())
        .microbatches(4)
        .loss(case.loss.clone())
        .seed(case.seed);
    builder.replicas(Replicas::Each(1))
}

/// Returns a batch of the case. The batches repeat.
fn batch(case: &Case, step: usize) -> Batch {
    let (x, target) = case.batch(step % STEPS);
    Batch::new(&x, &target)
}

/// Steps until `workers` workers take part. Returns the number of all steps so far.
async fn step_until(boss: &mut BossMan, case: &Case, from: usize, workers: usize) -> usize {
    let mut step = from;
    let stepping = async {
        while boss.plan().stage_placement.members().len() != workers {
            let report = boss.train_step(&batch(case, step)).await.unwrap();
            step += 1;
            assert_eq!(report.step, step as u64, "no step is lost or done twice");
        }
    };
    tokio::time::timeout(PATIENCE, stepping)
        .await
        .unwrap_or_else(|_| panic!("never {workers} workers"));
    step
}

async fn weights(boss: &mut BossMan) -> BTreeMap<String, Vec<f32>> {
    let state = boss.state_dict().await.unwrap();
    let flat = |tensor: &tch::Tensor| {
        Vec::<f32>::try_from(tensor.flatten(0, -1).to_kind(tch::Kind::Float)).unwrap()
    };
    state.iter().map(|(name, tensor)| (name.to_string(), flat(tensor))).collect()
}

#[tokio::test]
async fn workers_that_join_and_are_killed_leave_the_weights_of_a_quiet_run() {
    let place = TestFolder::new();
    // The model has dropout, and batch norms whose running statistics depend on the order of
    // microbatches.
    let case = Case::convnet();
    let port = free_port().to_string();
    let first = place.worker(&port, &[]);
    let host = Host::new(1).port(port.parse().unwrap()).config_dir(place.file("config"));
    let workers = host.open_to_joins().quiet().wait().await.unwrap();
    let mut boss = builder(&case).build(workers).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(case.optimizer).await.unwrap();
    boss.open_pool().await.unwrap();

    let mut second = place.worker(&port, &[]);
    let mut steps = step_until(&mut boss, &case, 0, 2).await;
    first.signal("KILL");
    steps = step_until(&mut boss, &case, steps, 1).await;
    let third = place.worker(&port, &[]);
    let fourth = place.worker(&port, &["--transport", "quic"]);
    steps = step_until(&mut boss, &case, steps, 3).await;
    third.signal("TERM");
    fourth.signal("KILL");
    steps = step_until(&mut boss, &case, steps, 1).await;
    second.line("here ").await; // its own line: steps, samples, share
    let after_pool = weights(&mut boss).await;
    boss.shutdown().await;

    let mut quiet = builder(&case)
        .build(Host::new(1).local(1).threads(1).quiet().wait().await.unwrap())
        .unwrap();
    quiet.distribute_model().await.unwrap();
    quiet.send_optimizer(case.optimizer).await.unwrap();
    for step in 0..steps {
        quiet.train_step(&batch(&case, step)).await.unwrap();
    }
    let expected = weights(&mut quiet).await;
    quiet.shutdown().await;
    assert_eq!(after_pool.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, expected) in &expected {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(
            bits(&after_pool[name]) == bits(expected),
            "{name} differs from the quiet run after {steps} steps"
        );
    }
}
