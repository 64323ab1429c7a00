//! Tests replicas that load weights, and that share out evaluation and prediction. All results are
//! those of one worker, to the bit.

use bossman::data::{Dataset, Source};
use bossman::{
    Batch, BossMan, BossManError, Host, Loss, Model, Optimizer, Predictions, Replicas,
    ScheduleKind, Score, Sharding, StateDict, Variables,
};
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// A model whose batch norm learns from its inputs.
const MODEL: &str = "
model: small
inputs: {x: [batch, 8]}
layers:
  - Linear: {in_features: 8, out_features: 16}
  - BatchNorm1d: {num_features: 16}
  - ReLU
  - Dropout: {p: 0.25}
  - Linear: {in_features: 16, out_features: 4}
";

/// Fails a test that takes longer than 240 s.
fn within_limit(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), test).await.unwrap() });
}

async fn boss(replicas: &[u16], sharding: Option<Sharding>) -> BossMan {
    let workers = replicas.iter().map(|n| usize::from(*n)).sum();
    // Some sums of norms depend on the number of threads.
    let alike = Host::new(workers).local(workers).port(0).threads(1).quiet().wait().await.unwrap();
    let mut boss = BossMan::builder(Model::from_yaml(MODEL).unwrap())
        .replicas(Replicas::Of(replicas.to_vec()))
        .shard(sharding)
        .schedule(ScheduleKind::GPipe)
        .loss(Loss::cross_entropy())
        .microbatches(6)
        .seed(3)
        .build(alike)
        .unwrap();
    boss.distribute_model().await.unwrap();
    boss
}

/// Runs forward, a loss computed here, backward, and the update.
async fn step_by_hand(boss: &mut BossMan) {
    let x = Tensor::linspace(-1.0, 1.0, 48, (Kind::Float, Device::Cpu)).view([6, 8]);
    let output = boss.forward(&x, Variables::new()).await.unwrap();
    output.square().mean(Kind::Float).backward();
    boss.backward(&output.grad()).await.unwrap();
    boss.optim_step().await.unwrap();
}

/// Makes samples that are the same in every run.
fn batch(number: i64, samples: i64) -> Batch {
    let x = (Tensor::arange(samples * 8, (Kind::Float, Device::Cpu)) * 0.37 + number)
        .sin()
        .view([samples, 8]);
    Batch::new(&x, &(Tensor::arange(samples, (Kind::Int64, Device::Cpu)) + number).remainder(4))
}

#[test]
fn what_replicas_share_out_is_what_one_worker_finds() {
    within_limit(async {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("samples.csv");
        let mut lines = String::new();
        for sample in 0..23 {
            let numbers: Vec<String> =
                (0..8).map(|n| (f64::from(sample * 8 + n) * 0.11).cos().to_string()).collect();
            writeln!(lines, "{}", numbers.join(",")).unwrap();
        }
        std::fs::write(&csv, lines).unwrap();
        let mut found: Vec<([u64; 2], Vec<u8>)> = Vec::new();
        let alone = [&[1][..], &[2], &[3], &[1, 2]].map(|replicas| (replicas, None));
        // Each worker has several stages, and keeps a part of them.
        let in_part =
            [&[2][..], &[3], &[1, 2]].map(|replicas| (replicas, Some(Sharding::Parameters)));
        for (replicas, sharding) in alone.into_iter().chain(in_part) {
            let mut boss = boss(replicas, sharding).await;
            boss.send_optimizer(Optimizer::sgd(0.1)).await.unwrap();
            for step in 0..3 {
                boss.train_step(&batch(step, 24)).await.unwrap();
            }
            step_by_hand(&mut boss).await;
            // The last batch of a round of three comes alone, and two sizes go together.
            let sizes = [5, 5, 5, 9, 1, 5, 2];
            let batches =
                || sizes.iter().zip(100..).map(|(samples, number)| batch(number, *samples));
            let score = Score::of(&mut boss, batches().map(Ok::<_, BossManError>)).await.unwrap();
            let (mut loss, mut counted) = (0.0, 0.0);
            for batch in batches() {
                let alone = boss.evaluate(&batch).await.unwrap();
                loss += f64::from(alone.loss) * alone.counted;
                counted += alone.counted;
            }
            assert_eq!(score.loss.to_bits(), f64::to_bits(loss / counted), "{replicas:?}");

            let to = folder.path().join(format!("{}.csv", found.len()));
            let data = Dataset::open_inputs(&Source::File(csv.clone()), boss.model().graph(), None)
                .unwrap();
            let predicted =
                Predictions::create(&to).unwrap().of(&mut boss, &data, 5).await.unwrap();
            assert_eq!(predicted.samples, 23);
            found.push((
                [score.loss.to_bits(), score.accuracy.unwrap().to_bits()],
                std::fs::read(to).unwrap(),
            ));
            boss.shutdown().await;
        }
        assert!(
            found.iter().all(|of| *of == found[0]),
            "{:?}",
            found.iter().map(|(of, _)| of).collect::<Vec<_>>()
        );
    });
}

#[test]
fn weights_that_are_loaded_reach_every_replica() {
    within_limit(async {
        let in_part = Some(Sharding::Parameters);
        for (replicas, sharding) in
            [(&[3][..], None), (&[3, 2], None), (&[3], in_part), (&[3, 2], in_part)]
        {
            let mut boss = boss(replicas, sharding).await;
            let mut other = StateDict::default();
            for (name, tensor) in boss.state_dict().await.unwrap().iter() {
                other.insert(name, &(tensor * 2 + 1).to_kind(tensor.kind()));
            }
            boss.load_state_dict(&other).await.unwrap();
            // This compares the replicas' copies.
            let loaded = boss.state_dict().await.unwrap();
            for (name, tensor) in loaded.iter() {
                assert!(tensor.equal(other.get(name).unwrap()), "{name} on {replicas:?}");
            }
            // Each replica computes with the loaded weights: the same batch goes to all of them.
            let mut scores = Vec::new();
            for count in [1, 3] {
                let batches = (0..count).map(|_| Ok::<_, BossManError>(batch(7, 8)));
                scores.push(Score::of(&mut boss, batches).await.unwrap());
            }
            assert_eq!(scores[0], scores[1], "{replicas:?}");

            let mut misshapen = StateDict::default();
            for (name, tensor) in loaded.iter() {
                misshapen.insert(
                    name,
                    &if name == "4.weight" { tensor.narrow(0, 0, 2) } else { tensor * 3 },
                );
            }
            let error = boss.load_state_dict(&misshapen).await.unwrap_err().to_string();
            assert!(error.contains("`4.weight`: expected"), "{error}");
            assert!(boss
                .state_dict()
                .await
                .unwrap()
                .iter()
                .all(|(name, t)| t.equal(loaded.get(name).unwrap())));
            boss.shutdown().await;
        }
    });
}
