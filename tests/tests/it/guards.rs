//! Tests that training that only looks alive is reported with the layer, or ends before it does
//! harm.

use bossman::{
    Batch, BossMan, Builder, Guards, Loss, Model, NonFinite, Optimizer, Replicas, Sharding,
    StateDict, Variables,
};
use link::LinkError;
use std::future::Future;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use tests::faulty::{run_faulty_worker, Fault};
use tests::programs::TestFolder;
use tests::Case;

const SAMPLES: i64 = 8;
const NAN: f64 = f64::NAN;

/// Makes a model with dropout, which must repeat when a step is examined, and with statistics,
/// which must not learn from broken numbers.
fn builder() -> Builder {
    let text = "
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 6}
    name: first
    out_variables: [a]
  - Mul:
    in_variables: [a]
    name: square
  - BatchNorm1d: {num_features: 6}
  - Dropout: {p: 0.2}
  - Linear: {in_features: 6, out_features: 6}
    name: second
  - GELU
  - Linear: {in_features: 6, out_features: 1}
    name: third
";
    BossMan::builder(Model::from_yaml(text).unwrap()).loss(Loss::MSELoss).microbatches(4)
}

async fn started(builder: Builder, workers: usize) -> BossMan {
    let mut boss = builder.build(BossMan::setup_local(workers).await.unwrap()).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::adam(0.01)).await.unwrap();
    boss
}

/// Returns the samples of a step. One of their numbers is `broken`, if given.
fn x(step: i64, broken: Option<f64>) -> Tensor {
    let x = (Tensor::arange(SAMPLES * 3, (Kind::Float, Device::Cpu)) * 0.37 + step)
        .sin()
        .reshape([SAMPLES, 3]);
    if let Some(number) = broken {
        // The number is in the third microbatch.
        let _ = x.get(5).get(1).fill_(number);
    }
    x
}

fn batch(step: i64, broken: Option<f64>) -> Batch {
    let y = x(step, None).sum_dim_intlist([1i64].as_slice(), true, Kind::Float);
    Batch::new(&x(step, broken), &y)
}

fn same(left: &StateDict, right: &StateDict) -> bool {
    left.iter().all(|(name, tensor)| right.get(name).is_some_and(|other| tensor == other))
}

/// Fails a test that takes longer than 240 s.
fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), test).await.unwrap() });
}

#[test]
fn a_step_with_broken_numbers_names_where_they_began_and_changes_nothing() {
    within_limit(async {
        let (replicas, parameters) = (Replicas::Each(2), Sharding::Parameters);
        for (builder, workers) in [
            (builder(), 1),
            (builder(), 3),
            (builder().replicas(replicas.clone()), 4),
            (builder().replicas(replicas).shard(parameters), 2),
        ] {
            let mut boss = started(builder, workers).await;
            boss.train_step(&batch(1, None)).await.unwrap();
            let before = boss.state_dict().await.unwrap();
            // The data has broken numbers.
            let error = boss.train_step(&batch(2, Some(NAN))).await.unwrap_err().to_string();
            for part in [
                "step 2: the loss is NaN; it began here: ",
                "layer first (Linear), forward, microbatch 2: its input has NaN",
                "nonfinite: skip",
            ] {
                assert!(error.contains(part), "{error}");
            }
            // A layer makes broken numbers.
            let error = boss.train_step(&batch(3, Some(1e38))).await.unwrap_err().to_string();
            assert!(
                error.contains(
                    "layer square (Mul), forward, microbatch 2: its output has infinities; \
                     its input is finite"
                ),
                "{error}"
            );
            assert!(same(&before, &boss.state_dict().await.unwrap()));
            // The weights have broken numbers.
            let mut broken = boss.state_dict().await.unwrap();
            let weight = broken.get("second.weight").unwrap().copy();
            let _ = weight.get(2).get(3).fill_(f64::INFINITY);
            broken.insert("second.weight", &weight);
            boss.load_state_dict(&broken).await.unwrap();
            let error = boss.train_step(&batch(4, None)).await.unwrap_err().to_string();
            assert!(
                error.contains("layer second (Linear)")
                    && error.contains("`second.weight` has infinities; an earlier step made it so"),
                "{error}"
            );
            // With whole weights it trains again.
            boss.load_state_dict(&before).await.unwrap();
            boss.send_optimizer(Optimizer::adam(0.01)).await.unwrap();
            assert!(boss.train_step(&batch(5, None)).await.unwrap().loss.is_finite());
            assert!(!same(&before, &boss.state_dict().await.unwrap()));
            boss.shutdown().await;
        }
    });
}

#[test]
fn a_loss_that_alone_is_too_large_is_told_as_that() {
    within_limit(async {
        let mut boss = started(builder(), 2).await;
        let y = Tensor::full([SAMPLES, 1], 1e38, (Kind::Float, Device::Cpu));
        let error = boss.train_step(&Batch::new(&x(1, None), &y)).await.unwrap_err().to_string();
        assert!(
            error.contains("the loss is inf, but the output and the target are finite"),
            "{error}"
        );
        boss.shutdown().await;
    });
}

#[test]
fn a_broken_target_is_told_as_that() {
    within_limit(async {
        let mut boss = started(builder(), 2).await;
        let y = Tensor::ones([SAMPLES, 1], (Kind::Float, Device::Cpu));
        let _ = y.get(7).fill_(NAN);
        let error = boss.train_step(&Batch::new(&x(1, None), &y)).await.unwrap_err().to_string();
        let expected = "microbatch 3: the loss is NaN: the target has numbers that are not finite";
        assert!(error.contains(expected), "{error}");
        boss.shutdown().await;
    });
}

#[test]
fn gradients_that_are_broken_though_the_loss_is_not_change_nothing_where_their_norm_is_known() {
    within_limit(async {
        let mut boss = started(builder().clip_grad_norm(1.0), 2).await;
        let before = boss.state_dict().await.unwrap();
        // Train by hand, so that the caller chooses the gradient.
        let output = boss.forward(&x(1, None), Variables::new()).await.unwrap();
        boss.backward(&output.full_like(f64::INFINITY)).await.unwrap();
        let error = boss.optim_step().await.unwrap_err().to_string();
        assert!(
            error.contains(
                "the gradients are no finite numbers though the loss is; the step changed no \
                 weights"
            ),
            "{error}"
        );
        assert!(same(&before, &boss.state_dict().await.unwrap()));
        boss.shutdown().await;
    });
}

#[test]
fn steps_with_broken_numbers_are_skipped_where_that_is_asked_for_and_not_for_ever() {
    within_limit(async {
        let guards = Guards { nonfinite: NonFinite::Skip, ..Guards::default() };
        for (builder, workers) in
            [(builder(), 2), (builder().replicas(Replicas::Each(2)).shard(Sharding::Optimizer), 2)]
        {
            let mut boss = started(builder.guards(guards), workers).await;
            let report = boss.train_step(&batch(1, None)).await.unwrap();
            assert!(report.lr.is_some());
            let before = boss.state_dict().await.unwrap();
            let report = boss.train_step(&batch(2, Some(NAN))).await.unwrap();
            assert!(report.loss.is_nan() && report.lr.is_none());
            assert!(same(&before, &boss.state_dict().await.unwrap()));
            assert!(boss.train_step(&batch(3, None)).await.unwrap().lr.is_some());
            assert!(!same(&before, &boss.state_dict().await.unwrap()));
            for step in 4..13 {
                boss.train_step(&batch(step, Some(NAN))).await.unwrap();
            }
            let error = boss.train_step(&batch(13, Some(NAN))).await.unwrap_err().to_string();
            assert!(
                error.starts_with(
                    "step 13: the gradients of 10 steps in a row were no finite numbers"
                ),
                "{error}"
            );
            boss.shutdown().await;
        }
    });
}

#[test]
fn a_skipped_update_restores_the_running_statistics_of_all_accumulated_steps() {
    within_limit(async {
        let guards = Guards { nonfinite: NonFinite::Skip, ..Guards::default() };
        for builder in [builder(), builder().replicas(Replicas::Each(2))] {
            let mut boss = started(builder.guards(guards).accumulate(3), 2).await;
            for step in 1..=3 {
                boss.train_step(&batch(step, None)).await.unwrap();
            }
            let before = boss.state_dict().await.unwrap();
            for (step, broken) in [(4, Some(NAN)), (5, None), (6, None)] {
                assert!(boss.train_step(&batch(step, broken)).await.unwrap().lr.is_none());
            }
            assert!(same(&before, &boss.state_dict().await.unwrap()));
            for step in 7..=9 {
                boss.train_step(&batch(step, None)).await.unwrap();
            }
            assert!(!same(&before, &boss.state_dict().await.unwrap()));
            boss.shutdown().await;
        }
    });
}

#[tokio::test]
async fn layers_that_learn_nothing_and_a_loss_of_guessing_are_warned_of_by_name() {
    let model = "
model: half-dead
inputs: {x: [batch, 64]}
layers:
  - Linear: {in_features: 64, out_features: 32}
    name: dead
  - Threshold: {threshold: 1000.0, value: 0.0}
  - Linear: {in_features: 32, out_features: 10}
    name: last
";
    let place = TestFolder::new();
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let digits =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits-train.csv.gz");
    std::fs::copy(digits, place.file("digits.csv.gz")).unwrap();
    let run = "model: model.yaml\ndata: {train: digits.csv.gz}\nloss: \
               CrossEntropyLoss\nbatch_size: 100\nsteps: 25\n";
    for (more, expected) in [
        // The learning rate is so small that no weight changes.
        (
            "optimizer: {SGD: {lr: 1.0e-30}}\nguards: {layers_every: 5, chance_after: 20}\n",
            vec![
                "warning: step 5: all gradients of layer dead (Linear) are 0, so nothing is \
                 learned there",
                "warning: step 5: the weights of layer last (Linear) have not changed though \
                 there are gradients: the learning rate (1.0e-30)",
                "warning: step 20: the loss (2.3",
            ],
        ),
        (
            "optimizer: {SGD: {lr: 0.1}}\nguards: {chance_after: 0}\n",
            vec!["warning: step 10: all gradients of layer dead (Linear)"],
        ),
        ("optimizer: {SGD: {lr: 0.1}}\nguards: {layers_every: 0, chance_after: 0}\n", vec![]),
    ] {
        std::fs::write(place.file("run.yaml"), format!("{run}{more}")).unwrap();
        let run = place.file("run.yaml");
        let boss = place
            .start("bossman", &["train", run.to_str().unwrap(), "--local", "2", "--threads", "1"]);
        let ended = boss.end_within(Duration::from_secs(120)).await.expect_success();
        let said: Vec<_> =
            ended.errors.iter().filter(|line| line.starts_with("warning: step")).collect();
        assert_eq!(said.len(), expected.len(), "{said:#?}");
        for (said, expected) in said.iter().zip(expected) {
            assert!(said.starts_with(expected), "{said}, expected {expected}");
        }
    }
}

/// Tests a machine that computes wrongly without an error.
#[tokio::test]
async fn replicas_that_differ_end_the_run_with_the_names_of_both_and_of_the_parameter() {
    let place = TestFolder::new();
    let run = place.run_file(&Case::branchy(), 200, "microbatches: 4\nreplicas: 2");
    // Weights for a folder would be compared after each epoch, before the 100th step.
    let (boss, at) = place.boss(&run, 2, &["--no-run-folder"]).await;
    let _other = place.worker(&at.port, &[]);
    let (_over, ends) = mpsc::channel();
    let left = run_faulty_worker(&at, (Fault::Miscounts, 0), ends).await;
    assert!(matches!(left, LinkError::Lost { .. }), "{left}");
    let line = boss.end().await.error_line();
    assert!(
        line.contains(
            "`head.bias` of stage 0 is not the same on worker 1 as on worker 0 after 100 optimizer"
        ),
        "{line}"
    );
}
