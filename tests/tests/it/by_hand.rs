//! Tests steps by hand and settings of whole steps on two local workers, as a program uses them.

use bossman::{
    Batch, BossMan, Builder, Cuts, Loss, LrDecay, LrSchedule, Model, Optimizer, StateDict,
    StepReport,
};
use bossman::{ScheduleKind, Variables, Warmup};
use std::future::Future;
use std::time::Duration;
use tch::{Device, Kind, Reduction, Tensor};

/// The losses and norms of each step as bits, and the resulting weights.
type Found = (Vec<(u32, Option<u64>)>, StateDict);

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

const MODEL: &str = "
model: small
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 6}
  - Tanh
  - Linear: {in_features: 6, out_features: 2}
  - Linear: {in_features: 2, out_features: 1}
";

fn builder() -> Builder {
    BossMan::builder(Model::from_yaml(MODEL).unwrap()).loss(Loss::MSELoss).seed(3).microbatches(2)
}

/// Starts a boss with this number of workers, with parameters and an optimizer.
async fn boss(builder: Builder, workers: usize) -> BossMan {
    let mut boss = builder.build(BossMan::setup_local(workers).await.unwrap()).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
    boss
}

/// Fails a test that takes longer than 120 s.
fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), test).await.unwrap() });
}

fn batch(number: usize, samples: i64) -> Batch {
    let x = x(number, samples);
    Batch::new(&x, &x.sum_dim_intlist(1, true, Kind::Float))
}

fn x(number: usize, samples: i64) -> Tensor {
    (Tensor::arange(samples * 3, (Kind::Float, Device::Cpu)) * 0.37 + number as f64)
        .sin()
        .reshape([samples, 3])
}

fn gradient(prediction: &Tensor) -> Tensor {
    prediction.square().mean(Kind::Float).backward();
    prediction.grad()
}

fn worst(left: &StateDict, right: &StateDict) -> f64 {
    let both = left
        .iter()
        .map(|(name, tensor)| (tensor - right.get(name).unwrap()).abs().max().double_value(&[]));
    both.fold(0.0, f64::max)
}

#[test]
fn batches_under_way_go_back_in_any_order() {
    within_limit(async {
        let mut states = Vec::new();
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut boss = boss(builder(), 2).await;
            let mut ids = Vec::new();
            for number in 0..3 {
                let (id, outputs) =
                    boss.forward_batch(&x(number, 4), Variables::new()).await.unwrap();
                ids.push((id, gradient(&outputs[0])));
            }
            for place in order {
                let (id, grad) = &ids[place];
                boss.backward_batch(*id, std::slice::from_ref(grad)).await.unwrap();
            }
            let twice =
                boss.backward_batch(ids[0].0, std::slice::from_ref(&ids[0].1)).await.unwrap_err();
            assert!(twice.to_string().contains("waits for no backward pass"), "{twice}");
            boss.optim_step().await.unwrap();
            states.push(boss.state_dict().await.unwrap());
            boss.shutdown().await;
        }
        // Sums in another order differ in their last bits.
        assert!(worst(&states[0], &states[1]) < 1e-6);
    });
}

#[test]
fn more_batches_than_allowed_are_an_error_that_says_what_to_do() {
    within_limit(async {
        let mut boss = boss(builder().in_flight(2), 2).await;
        let (first, _) = boss.forward_batch(&x(0, 4), Variables::new()).await.unwrap();
        let (second, outputs) = boss.forward_batch(&x(1, 4), Variables::new()).await.unwrap();
        let error = boss.forward_batch(&x(2, 4), Variables::new()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 batches wait for their backward pass and workers keep the activations of each: \
             call backward_batch() or discard_batch() for one, or allow more with \
             Builder::in_flight"
        );
        boss.discard_batch(first).await.unwrap();
        boss.forward_batch(&x(2, 4), Variables::new()).await.unwrap();
        boss.backward_batch(second, &[gradient(&outputs[0])]).await.unwrap();
        let error = boss
            .backward_batch(first, &[Tensor::ones([4, 1], (Kind::Float, Device::Cpu))])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("was forgotten"), "{error}");
        boss.shutdown().await;
    });
}

#[test]
fn more_may_be_under_way_where_that_is_asked_for() {
    within_limit(async {
        let mut boss = boss(builder().in_flight(12), 2).await;
        let mut ids = Vec::new();
        for number in 0..12 {
            ids.push(boss.forward_batch(&x(number, 4), Variables::new()).await.unwrap());
        }
        for (id, outputs) in ids.iter().rev() {
            boss.backward_batch(*id, &[gradient(&outputs[0])]).await.unwrap();
        }
        boss.optim_step().await.unwrap();
        boss.shutdown().await;
    });
}

#[test]
fn a_discarded_batch_leaves_no_gradients() {
    within_limit(async {
        let mut states = Vec::new();
        for forgotten in [false, true] {
            let mut boss = boss(builder(), 2).await;
            let (id, outputs) = boss.forward_batch(&x(0, 4), Variables::new()).await.unwrap();
            if forgotten {
                let (other, _) = boss.forward_batch(&x(1, 4), Variables::new()).await.unwrap();
                boss.discard_batch(other).await.unwrap();
            }
            boss.backward_batch(id, &[gradient(&outputs[0])]).await.unwrap();
            boss.optim_step().await.unwrap();
            states.push(boss.state_dict().await.unwrap());
            boss.shutdown().await;
        }
        assert_eq!(worst(&states[0], &states[1]), 0.0);
    });
}

#[test]
fn accumulated_steps_are_one_step_over_all_samples() {
    within_limit(async {
        let mut gathered = boss(builder().accumulate(3), 2).await;
        let mut reports = Vec::new();
        for (number, samples) in [(0, 6), (1, 4), (2, 2)] {
            reports.push(gathered.train_step(&batch(number, samples)).await.unwrap());
        }
        assert_eq!(
            reports.iter().map(|report| report.lr).collect::<Vec<_>>(),
            [None, None, Some(0.1)]
        );
        let xs = Tensor::cat(&[x(0, 6), x(1, 4), x(2, 2)], 0);
        let mut whole = boss(builder().microbatches(1), 1).await;
        let report = whole
            .train_step(&Batch::new(&xs, &xs.sum_dim_intlist(1, true, Kind::Float)))
            .await
            .unwrap();
        let mean = reports.iter().map(|r| f64::from(r.loss) * r.samples as f64).sum::<f64>() / 12.0;
        assert!((mean - f64::from(report.loss)).abs() < 1e-6, "{mean} {}", report.loss);
        let states = [gathered.state_dict().await.unwrap(), whole.state_dict().await.unwrap()];
        assert!(worst(&states[0], &states[1]) < 1e-6);
        gathered.shutdown().await;
        whole.shutdown().await;
    });
}

#[test]
fn the_norm_and_the_clipped_step_are_the_same_for_every_cut() {
    within_limit(async {
        let mut found: Vec<Found> = Vec::new();
        for cuts in [vec![], vec!["1"], vec!["3"], vec!["2", "3"]] {
            let cut = Cuts::At(cuts.iter().map(ToString::to_string).collect());
            let mut boss = boss(builder().clip_grad_norm(0.01).cuts(cut), cuts.len() + 1).await;
            let mut seen = Vec::new();
            for number in 0..3 {
                let StepReport { loss, grad_norm, .. } =
                    boss.train_step(&batch(number, 6)).await.unwrap();
                assert!(grad_norm.unwrap() > 0.01, "the limit does not bite");
                seen.push((loss.to_bits(), grad_norm.map(f64::to_bits)));
            }
            found.push((seen, boss.state_dict().await.unwrap()));
            boss.shutdown().await;
        }
        for (seen, state) in &found[1..] {
            assert_eq!(*seen, found[0].0);
            assert_eq!(worst(state, &found[0].1), 0.0);
        }
    });
}

#[test]
fn manual_gradients_are_clipped_too() {
    within_limit(async {
        let mut moved = Vec::new();
        for limit in [1e-3, 2e-3] {
            let mut boss = boss(builder().clip_grad_norm(limit), 2).await;
            let before = boss.state_dict().await.unwrap();
            let prediction = boss.forward(&x(0, 4), Variables::new()).await.unwrap();
            prediction.mse_loss(&Tensor::ones_like(&prediction), Reduction::Mean).backward();
            boss.backward(&prediction.grad()).await.unwrap();
            boss.optim_step().await.unwrap();
            let after = boss.state_dict().await.unwrap();
            let squares = before.iter().map(|(name, old)| {
                (old - after.get(name).unwrap()).square().sum(Kind::Double).double_value(&[])
            });
            // A step of SGD is the learning rate times the gradient.
            moved.push(squares.sum::<f64>().sqrt() / 0.1);
            boss.shutdown().await;
        }
        assert!((moved[0] - 1e-3).abs() < 1e-5 && (moved[1] - 2e-3).abs() < 1e-5, "{moved:?}");
    });
}

#[test]
fn the_learning_rate_follows_its_schedule_update_by_update() {
    within_limit(async {
        let warmup = Warmup { steps: 2, start_factor: 0.5 };
        let schedule = LrSchedule { warmup, decay: LrDecay::Step { step_size: 2, gamma: 0.1 } };
        let mut boss = boss(builder().lr_schedule(schedule).accumulate(2), 1).await;
        let mut rates = Vec::new();
        for number in 0..12 {
            rates.extend(boss.train_step(&batch(number, 4)).await.unwrap().lr);
        }
        boss.shutdown().await;
        let expected: Vec<f64> = (0..6).map(|update| 0.1 * schedule.factor(update)).collect();
        assert_eq!(rates, expected);
        assert!(rates[0] < rates[1] && rates[5] < rates[2], "{rates:?}");
    });
}

#[test]
fn accumulated_gradients_outlive_the_choice_of_a_schedule() {
    within_limit(async {
        let mut states = Vec::new();
        for schedule in [None, Some(ScheduleKind::OneFOneB)] {
            let mut boss = boss(builder().schedule(schedule), 2).await;
            let prediction = boss.forward(&x(0, 4), Variables::new()).await.unwrap();
            boss.backward(&gradient(&prediction)).await.unwrap();
            boss.train_step(&batch(1, 4)).await.unwrap();
            states.push(boss.state_dict().await.unwrap());
            boss.shutdown().await;
        }
        assert_eq!(worst(&states[0], &states[1]), 0.0);
    });
}

#[test]
fn a_limit_that_no_norm_can_have_is_refused() {
    within_limit(async {
        for limit in [-1.0, 0.0, f64::NAN] {
            let workers = BossMan::setup_local(1).await.unwrap();
            let error = builder().clip_grad_norm(limit).build(workers).err().unwrap().to_string();
            assert_eq!(error, format!("clip_grad_norm({limit}): expected a number above 0"));
        }
    });
}

#[test]
fn a_batch_goes_back_also_in_evaluation_mode() {
    within_limit(async {
        let mut boss = boss(builder(), 2).await;
        // More batches than may be in flight at a time.
        for number in 0..10 {
            let prediction = boss.forward(&x(number, 4), Variables::new()).await.unwrap();
            boss.eval();
            boss.backward(&gradient(&prediction)).await.unwrap();
            boss.train();
        }
        boss.optim_step().await.unwrap();
        boss.shutdown().await;
    });
}

#[test]
fn a_refused_step_leaves_the_accumulated_gradients() {
    within_limit(async {
        let mut states = Vec::new();
        for forgetful in [false, true] {
            let workers = BossMan::setup_local(2).await.unwrap();
            let mut boss = builder().accumulate(2).build(workers).unwrap();
            boss.distribute_model().await.unwrap();
            if !forgetful {
                boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
            }
            boss.train_step(&batch(0, 4)).await.unwrap();
            if forgetful {
                let error = boss.train_step(&batch(1, 4)).await.unwrap_err();
                assert!(error.to_string().contains("no optimizer"), "{error}");
                boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
            }
            boss.train_step(&batch(1, 4)).await.unwrap();
            states.push(boss.state_dict().await.unwrap());
            boss.shutdown().await;
        }
        assert!(worst(&states[0], &states[1]) == 0.0);
    });
}

#[test]
fn a_manual_update_uses_the_accumulated_gradients() {
    within_limit(async {
        let mut states = Vec::new();
        for accumulate in [1, 2] {
            let mut boss = boss(builder().accumulate(accumulate), 2).await;
            for number in 0..2 {
                boss.train_step(&batch(number, 4)).await.unwrap();
                if accumulate == 2 {
                    boss.optim_step().await.unwrap();
                }
            }
            states.push(boss.state_dict().await.unwrap());
            boss.shutdown().await;
        }
        assert!(worst(&states[0], &states[1]) == 0.0, "halving and doubling are exact");
    });
}

#[test]
fn a_failed_evaluation_does_not_hold_the_update_up() {
    // In each update, parameters that both stages use travel from one to the other.
    const TIED: &str = "
model: tied
inputs: {x: {shape: [batch, 3], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 5, embedding_dim: 4}
    name: embed
  - Linear: {in_features: 4, out_features: 4}
    name: middle
  - Linear: {in_features: 4, out_features: 5, bias: false}
    share: embed
";
    within_limit(async {
        let cuts = Cuts::At(vec!["middle".into()]);
        let builder = BossMan::builder(Model::from_yaml(TIED).unwrap()).cuts(cuts).seed(3);
        let mut boss = boss(builder, 2).await;
        let prediction = boss
            .forward(&Tensor::zeros([2, 3], (Kind::Int64, Device::Cpu)), Variables::new())
            .await
            .unwrap();
        boss.backward(&gradient(&prediction)).await.unwrap();
        boss.eval();
        let beyond = Tensor::full([2, 3], 7, (Kind::Int64, Device::Cpu));
        boss.forward(&beyond, Variables::new()).await.unwrap_err();
        boss.train();
        boss.optim_step().await.unwrap();
        boss.shutdown().await;
    });
}

/// What comes from local workers lies in memory that they share, and that is read-only here.
#[test]
fn tensors_of_a_state_can_be_written() {
    within_limit(async {
        let model = "inputs: {x: [batch, 3]}\nlayers:\n- Linear: {in_features: 3, out_features: \
                     4096}\n- Linear: {in_features: 4096, out_features: 1}\n";
        let builder = BossMan::builder(Model::from_yaml(model).unwrap()).loss(Loss::MSELoss);
        let mut boss = boss(builder, 1).await;
        let before = boss.digest().await.unwrap();
        for weights in [boss.state_dict().await.unwrap(), boss.checkpoint().await.unwrap().weights]
        {
            for (name, tensor) in weights.iter() {
                drop(tensor.shallow_clone().f_fill_(7).unwrap());
                assert!(weights.get(name).unwrap().eq(7).all().int64_value(&[]) == 1, "{name}");
            }
        }
        assert_eq!(boss.digest().await.unwrap(), before);
        boss.shutdown().await;
    });
}

#[test]
fn a_model_that_is_distributed_again_begins_from_nothing() {
    within_limit(async {
        let decay = LrDecay::Linear { total_steps: 2 };
        let schedule = LrSchedule { warmup: Warmup::default(), decay };
        let mut boss = boss(builder().lr_schedule(schedule), 2).await;
        let mut trials = Vec::new();
        for _ in 0..2 {
            let mut losses = Vec::new();
            for number in 0..4 {
                losses.push(boss.train_step(&batch(number, 4)).await.unwrap().loss.to_bits());
            }
            trials.push((losses, boss.digest().await.unwrap()));
            boss.distribute_model().await.unwrap();
            let error = boss.train_step(&batch(0, 4)).await.unwrap_err();
            assert!(error.to_string().contains("call send_optimizer() first"), "{error}");
            boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
        }
        assert_eq!(trials[0], trials[1]);
        boss.shutdown().await;
    });
}

#[test]
fn gradients_of_before_a_restore_are_void() {
    within_limit(async {
        let mut states = Vec::new();
        for has_waiting in [false, true] {
            let mut boss = boss(builder().accumulate(2), 2).await;
            let state = boss.checkpoint().await.unwrap();
            if has_waiting {
                boss.train_step(&batch(7, 4)).await.unwrap();
                drop(boss.forward(&x(8, 4), Variables::new()).await.unwrap());
            }
            boss.restore(&state).await.unwrap();
            for number in 0..2 {
                boss.train_step(&batch(number, 4)).await.unwrap();
            }
            states.push(boss.digest().await.unwrap());
            boss.shutdown().await;
        }
        assert_eq!(states[0], states[1]);
    });
}

/// Polls a call once and drops it.
async fn dropped<T>(call: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = call => panic!("a worker answered at once"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn a_batch_whose_outputs_nobody_got_is_discarded() {
    within_limit(async {
        let mut boss = boss(builder().in_flight(1), 2).await;
        dropped(boss.forward_batch(&x(0, 4), Variables::new())).await;
        let (id, outputs) = boss.forward_batch(&x(1, 4), Variables::new()).await.unwrap();
        boss.backward_batch(id, &[gradient(&outputs[0])]).await.unwrap();
        let output = boss.forward(&x(2, 4), Variables::new()).await.unwrap();
        dropped(boss.forward(&x(3, 4), Variables::new())).await;
        let error = boss.backward(&gradient(&output)).await.unwrap_err();
        assert!(error.to_string().contains("call forward() first"), "{error}");
        boss.optim_step().await.unwrap();
        boss.train_step(&batch(0, 4)).await.unwrap();
        boss.checkpoint().await.unwrap();
        boss.shutdown().await;
    });
}

#[test]
fn a_step_that_failed_is_not_counted() {
    within_limit(async {
        let mut boss = boss(builder(), 2).await;
        let broken = Batch::new(&(x(0, 4) * f64::NAN), &Tensor::ones([4, 1], FLOAT));
        let error = boss.train_step(&broken).await.unwrap_err();
        assert!(error.is_not_finite() && !error.workers_were_lost(), "{error}");
        assert_eq!(boss.train_step(&batch(0, 4)).await.unwrap().step, 1);
        assert_eq!(boss.checkpoint().await.unwrap().counters.step, 1);
        boss.shutdown().await;
    });
}
