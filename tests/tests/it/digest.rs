//! Tests the digest of the training state: equal for every cut, number of workers, replicas and
//! shards, and equal to that of the stored state.

use bossman::{Batch, BossMan, Host, Loss, Model, Optimizer, Replicas, Sharding, StateDigest};
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use tests::sample::sampled;

const MODEL: &str = "
model: small
inputs: {x: [batch, 8]}
layers:
  - Linear: {in_features: 8, out_features: 8}
    name: first
  - BatchNorm1d: {num_features: 8}
  - Tanh
  - Linear: {in_features: 8, out_features: 64}
  - Linear: {in_features: 64, out_features: 8}
  - Linear: {in_features: 8, out_features: 8}
    share: first
";

/// Its weights, and halves of them, are larger than a slice.
const WIDE: &str = "
model: wide
inputs: {x: [batch, 8]}
layers:
  - Linear: {in_features: 8, out_features: 300000}
  - Tanh
  - Linear: {in_features: 300000, out_features: 8}
";

async fn boss(workers: usize, replicas: Vec<u16>, shard: Option<Sharding>) -> BossMan {
    boss_of(MODEL, workers, replicas, shard).await
}

async fn boss_of(
    model: &str,
    workers: usize,
    replicas: Vec<u16>,
    shard: Option<Sharding>,
) -> BossMan {
    let builder = BossMan::builder(Model::from_yaml(model).unwrap()).loss(Loss::MSELoss);
    let builder = builder.seed(5).microbatches(4).replicas(Replicas::Of(replicas)).shard(shard);
    // Sums depend on the number of threads.
    let alike = Host::new(workers).local(workers).port(0).threads(1).quiet().wait().await.unwrap();
    let mut boss = builder.build(alike).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::adamw(0.01)).await.unwrap();
    boss
}

fn batch(number: u32) -> Batch {
    let x = (Tensor::arange(16 * 8, (Kind::Float, Device::Cpu)) * 0.37 + f64::from(number)).sin();
    let x = x.reshape([16, 8]);
    Batch::new(&x, &(&x * 0.5))
}

/// The digests before training and after each of two steps. Each equals that of the tensors.
async fn digests(mut boss: BossMan) -> Vec<StateDigest> {
    let mut digests = Vec::new();
    for number in 0..3 {
        if number > 0 {
            boss.train_step(&batch(number)).await.unwrap();
        }
        let digest = boss.digest().await.unwrap();
        assert_eq!(digest, boss.checkpoint().await.unwrap().digest().unwrap());
        digests.push(digest);
    }
    boss.shutdown().await;
    digests
}

#[tokio::test]
async fn a_digest_does_not_show_the_cut() {
    let test = async {
        let expected = digests(boss(1, vec![1], None).await).await;
        assert!(expected[0] != expected[1] && expected[1] != expected[2], "{expected:?}");
        let ways = [
            (2, vec![1, 1], None),
            (2, vec![2], None),
            (2, vec![2], Some(Sharding::Optimizer)),
            (3, vec![3], Some(Sharding::Parameters)),
            (3, vec![1, 2], Some(Sharding::Gradients)),
        ];
        for (workers, replicas, shard) in sampled(ways, 2) {
            let what = format!("{replicas:?} {shard:?}");
            assert_eq!(digests(boss(workers, replicas, shard).await).await, expected, "{what}");
        }
    };
    tokio::time::timeout(Duration::from_secs(120), test).await.unwrap();
}

#[tokio::test]
async fn slices_make_the_state_of_a_large_model() {
    let test = async {
        for (workers, replicas, shard) in
            [(2, vec![1, 1], None), (2, vec![2], Some(Sharding::Optimizer))]
        {
            let mut boss = boss_of(WIDE, workers, replicas, shard).await;
            boss.train_step(&batch(1)).await.unwrap();
            // Workers hash whole tensors. Checkpoints are made of slices.
            let digest = boss.digest().await.unwrap();
            assert_eq!(digest, boss.checkpoint().await.unwrap().digest().unwrap());
            let weights = boss.state_dict().await.unwrap();
            assert_eq!(weights.get("0.weight").unwrap().size(), [300_000, 8]);
            boss.shutdown().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), test).await.unwrap();
}
