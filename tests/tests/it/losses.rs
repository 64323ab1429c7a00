//! Tests every loss as a program uses it. Over uneven microbatches and two workers, it equals
//! libtorch's loss over the whole batch.

use bossman::{Batch, BossMan, ClassDim, Classes, Loss, Model, Optimizer, StateDict, Variables};
use std::future::Future;
use std::time::Duration;
use tch::{Device, Kind, Reduction, Tensor};

const SAMPLES: i64 = 7;
const CLASSES: i64 = 5;
/// The class that is ignored. All targets of the first microbatch but one have it.
const IGNORED: i64 = 2;

/// Makes a model whose head turns logits into the input of the loss.
fn model(head: &str) -> Model {
    let text = format!(
        "
inputs: {{x: [batch, 3]}}
layers:
  - Linear: {{in_features: 3, out_features: 6}}
  - Tanh
  - Linear: {{in_features: 6, out_features: {CLASSES}}}
  - {head}
"
    );
    Model::from_yaml(&text).unwrap()
}

fn x() -> Tensor {
    (Tensor::arange(SAMPLES * 3, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape([SAMPLES, 3])
}

fn classes() -> Tensor {
    Tensor::from_slice(&[IGNORED, IGNORED, 4, 1, IGNORED, 0, 3])
}

fn shares() -> Tensor {
    (Tensor::arange(SAMPLES * CLASSES, (Kind::Float, Device::Cpu)) * 1.7)
        .sin()
        .reshape([SAMPLES, CLASSES])
        .softmax(-1, Kind::Float)
}

/// A loss, its output layer, its target, and libtorch's value.
type Case = (Loss, &'static str, Tensor, fn(&Tensor, &Tensor) -> Tensor);

fn weights() -> Vec<f64> {
    vec![0.5, 1.0, 3.0, 2.0, 0.25]
}

fn row() -> Tensor {
    Tensor::from_slice(&weights()).to_kind(Kind::Float)
}

fn cases() -> Vec<Case> {
    let some = |weight: Vec<f64>| Classes { weight, ignore_index: IGNORED, ..Classes::default() };
    let last = |weight: Vec<f64>| Classes { class_dim: ClassDim::Last, ..some(weight) };
    vec![
        (Loss::MSELoss, "Identity", shares(), |y, t| y.mse_loss(t, Reduction::Mean)),
        (Loss::L1Loss, "Identity", shares(), |y, t| y.l1_loss(t, Reduction::Mean)),
        (Loss::SmoothL1Loss { beta: 0.3 }, "Identity", shares(), |y, t| {
            y.smooth_l1_loss(t, Reduction::Mean, 0.3)
        }),
        (Loss::HuberLoss { delta: 0.3 }, "Identity", shares(), |y, t| {
            y.huber_loss(t, Reduction::Mean, 0.3)
        }),
        (Loss::cross_entropy(), "Identity", classes(), |y, t| y.cross_entropy_for_logits(t)),
        (
            Loss::CrossEntropyLoss { classes: some(Vec::new()), label_smoothing: 0.1 },
            "Identity",
            classes(),
            |y, t| y.cross_entropy_loss::<Tensor>(t, None, Reduction::Mean, IGNORED, 0.1),
        ),
        (
            Loss::CrossEntropyLoss { classes: some(weights()), label_smoothing: 0.0 },
            "Identity",
            classes(),
            |y, t| y.cross_entropy_loss(t, Some(row()), Reduction::Mean, IGNORED, 0.0),
        ),
        (
            Loss::CrossEntropyLoss { classes: last(weights()), label_smoothing: 0.1 },
            "Unflatten: {dim: 1, unflattened_size: [1, 5]}",
            classes().view([SAMPLES, 1]),
            |y, t| {
                let (y, weight) = (y.transpose(1, 2), Some(row()));
                y.cross_entropy_loss(t, weight, Reduction::Mean, IGNORED, 0.1)
            },
        ),
        (Loss::NLLLoss { classes: some(weights()) }, "LogSoftmax: {dim: -1}", classes(), |y, t| {
            y.nll_loss_nd(t, Some(row()), Reduction::Mean, IGNORED)
        }),
        (Loss::BCELoss, "Sigmoid", shares(), |y, t| {
            y.binary_cross_entropy::<Tensor>(t, None, Reduction::Mean)
        }),
        (Loss::BCEWithLogitsLoss { pos_weight: weights() }, "Identity", shares(), |y, t| {
            y.binary_cross_entropy_with_logits(t, None, Some(row()), Reduction::Mean)
        }),
        (
            Loss::KLDivLoss { log_target: false, batchmean: false },
            "LogSoftmax: {dim: -1}",
            shares(),
            |y, t| y.kl_div(t, Reduction::Mean, false),
        ),
        (
            Loss::KLDivLoss { log_target: true, batchmean: true },
            "LogSoftmax: {dim: -1}",
            shares().log(),
            |y, t| y.kl_div(t, Reduction::Sum, true) / SAMPLES,
        ),
    ]
}

/// Returns the losses of two steps, libtorch's loss before each, and the resulting weights.
async fn train(case: &Case, workers: usize, microbatches: u32) -> (Vec<f32>, Vec<f32>, StateDict) {
    let (loss, head, target, of_libtorch) = case;
    let builder = BossMan::builder(model(head)).loss(loss.clone()).microbatches(microbatches);
    let mut boss = builder.build(BossMan::setup_local(workers).await.unwrap()).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::sgd(0.5)).await.unwrap();
    let (mut expected, mut losses) = (Vec::new(), Vec::new());
    let batch = Batch::new(&x(), target);
    for _ in 0..2 {
        boss.eval();
        let output = boss.forward(&x(), Variables::new()).await.unwrap();
        boss.train();
        expected.push(of_libtorch(&output, target).double_value(&[]) as f32);
        let evaluated = boss.evaluate(&batch).await.unwrap();
        assert!((evaluated.loss - expected[expected.len() - 1]).abs() < 1e-6, "{loss}");
        losses.push(boss.train_step(&batch).await.unwrap().loss);
    }
    let state = boss.state_dict().await.unwrap();
    boss.shutdown().await;
    (losses, expected, state)
}

fn worst(left: &StateDict, right: &StateDict) -> f64 {
    let both = left
        .iter()
        .map(|(name, tensor)| (tensor - right.get(name).unwrap()).abs().max().double_value(&[]));
    both.fold(0.0, f64::max)
}

/// Fails a test that takes longer than 240 s.
fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), test).await.unwrap() });
}

#[test]
fn every_loss_is_libtorchs_over_the_whole_batch_however_it_is_cut() {
    within_limit(async {
        for case in cases() {
            let name = &case.0;
            let (whole, expected, state) = train(&case, 1, 1).await;
            let (cut, _, state_of_cut) = train(&case, 2, 3).await;
            for (losses, what) in [(&whole, "whole"), (&cut, "cut")] {
                for (loss, expected) in losses.iter().zip(&expected) {
                    assert!(
                        (loss - expected).abs() < 2e-6,
                        "{name}, {what}: {loss}, expected {expected}"
                    );
                }
            }
            assert!(worst(&state, &state_of_cut) < 2e-6, "{name}");
            assert_ne!(whole[0].to_bits(), whole[1].to_bits(), "{name} does not train");
        }
    });
}

/// Fine-tuning has such batches: a prompt that fills its sequence leaves nothing to learn.
#[test]
fn a_step_without_a_target_that_counts_changes_nothing() {
    within_limit(async {
        let loss = Loss::CrossEntropyLoss {
            classes: Classes { ignore_index: IGNORED, ..Classes::default() },
            label_smoothing: 0.0,
        };
        let ignored = Batch::new(&x(), &Tensor::full_like(&classes(), IGNORED));
        let counted = Batch::new(&x(), &classes());
        let mut found = Vec::new();
        for (accumulate, batches) in [
            (1, vec![&counted, &counted]),
            (1, vec![&ignored, &counted, &ignored, &counted]),
            (2, vec![&counted, &counted]),
            (2, vec![&ignored, &ignored, &counted, &counted]),
        ] {
            let builder = BossMan::builder(model("Identity")).loss(loss.clone()).microbatches(2);
            let builder = builder.accumulate(accumulate);
            let mut boss = builder.build(BossMan::setup_local(2).await.unwrap()).unwrap();
            boss.distribute_model().await.unwrap();
            boss.send_optimizer(Optimizer::adam(0.1)).await.unwrap();
            let mut losses = Vec::new();
            for (batch, step) in batches.into_iter().zip(1..) {
                let report = boss.train_step(batch).await.unwrap();
                assert_eq!(report.step, step);
                losses.extend((!report.loss.is_nan()).then_some(report.loss));
            }
            assert_eq!(losses.len(), 2);
            found.push((losses, boss.state_dict().await.unwrap()));
            boss.shutdown().await;
        }
        for pair in found.chunks(2) {
            assert_eq!(pair[0].0, pair[1].0);
            assert_eq!(worst(&pair[0].1, &pair[1].1), 0.0);
        }
    });
}
