//! Learns the sine with a small residual network cut across two workers.
//!
//! Each step is made by hand: forward, a loss of our own, backward, optimizer step.
//!
//! ```text
//! cargo run --release -p examples --bin sin               waits for two workers to join
//! cargo run --release -p examples --bin sin -- --local    starts two workers on this machine
//! ```

use anyhow::Result;
use bossman::{BossMan, Model, Optimizer, Variables};
use std::f64::consts::PI;
use tch::{Device, Kind, Reduction, Tensor};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/residual.yaml");

/// Draws points between 0 and pi, and computes their sines. These lie between 0 and 1, the range
/// that the model's last layer reaches.
fn get_batch(size: i64) -> (Tensor, Tensor) {
    let x = Tensor::rand([size, 1], (Kind::Float, Device::Cpu)) * PI;
    let y = x.sin();
    (x, y)
}

#[tokio::main]
async fn main() -> Result<()> {
    let local = std::env::args().any(|argument| argument == "--local");
    tch::manual_seed(0); // seeds the points; the weights have their own seed

    let model = Model::from_file(MODEL)?;
    let workers =
        if local { BossMan::setup_local(2).await? } else { BossMan::setup_host(2).await? };
    let mut boss = BossMan::new(workers, model)?;
    boss.distribute_model().await?;
    boss.send_optimizer(Optimizer::adam(3e-3)).await?;

    for step in 1..=400 {
        let (x, y) = get_batch(32);
        let prediction = boss.forward(&x, Variables::new()).await?;
        let loss = prediction.mse_loss(&y, Reduction::Mean);
        loss.backward();
        boss.backward(&prediction.grad()).await?;
        boss.optim_step().await?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.6}", loss.double_value(&[]));
        }
    }

    boss.eval();
    let degrees = Tensor::from_slice(&[30.0, 90.0, 150.0]).to_kind(Kind::Float).view([-1, 1]);
    let sines: Vec<f32> =
        boss.forward(&(degrees * (PI / 180.0)), Variables::new()).await?.view([-1]).try_into()?;
    println!("the sines of 30, 90 and 150 degrees: {sines:.2?}");
    boss.shutdown().await;
    Ok(())
}
