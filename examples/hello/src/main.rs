//! Learns the sine with a small network that is cut across two workers.
//!
//! ```text
//! cargo run              starts two workers on this machine
//! cargo run -- --wait    waits for two workers on other machines
//! ```

use anyhow::Result;
use bossman::{Batch, BossMan, Host, Loss, Model, Optimizer, Variables};
use std::f64::consts::PI;
use tch::{Device, Kind, Reduction, Tensor};
use worker::Worker;

const MODEL: &str = include_str!("../model.yaml");

fn main() -> Result<()> {
    // `cargo run` builds this program only, so it is also the program of its local workers. In
    // those this line does not return.
    Worker::new().main_if_local();
    train()
}

/// Draws points between 0 and pi, and computes their sines.
fn get_batch(size: i64) -> (Tensor, Tensor) {
    let x = Tensor::rand([size, 1], (Kind::Float, Device::Cpu)) * PI;
    let y = x.sin();
    (x, y)
}

#[tokio::main]
async fn train() -> Result<()> {
    tch::manual_seed(0); // for the points; the weights have a seed of their own

    let host = Host::new(2);
    let host = if std::env::args().any(|argument| argument == "--wait") {
        host // prints the line that starts a worker on another machine
    } else {
        host.local(2).worker_program(std::env::current_exe()?)
    };
    let workers = host.wait().await?;

    // The model is cut into a stage for each worker. A batch passes through the stages in four
    // microbatches, so that both workers have something to do.
    let model = Model::from_yaml(MODEL)?;
    let builder = BossMan::builder(model).microbatches(4);
    let mut boss = builder.loss(Loss::MSELoss).build(workers)?;
    boss.distribute_model().await?;
    boss.send_optimizer(Optimizer::adam(1e-2)).await?;

    // Steps by hand: the loss is computed here, and can be any function of the prediction.
    for step in 1..=100 {
        let (x, y) = get_batch(32);
        let prediction = boss.forward(&x, Variables::new()).await?;
        let loss = prediction.mse_loss(&y, Reduction::Mean);
        loss.backward(); // as far as the prediction
        boss.backward(&prediction.grad()).await?; // from there through the stages
        boss.optim_step().await?;
        if step == 1 || step % 50 == 0 {
            println!("step {step} by hand: loss {:.6}", loss.double_value(&[]));
        }
    }

    // The same in one call. The last worker computes the loss, so that the outputs need not come
    // here, and backward passes begin before the last forward pass.
    for _ in 0..100 {
        let (x, y) = get_batch(32);
        let report = boss.train_step(&Batch::new(&x, &y)).await?;
        if report.step % 50 == 0 {
            println!("step {} in one call: loss {:.6}", report.step, report.loss);
        }
    }

    boss.eval(); // no gradients from here on
    let degrees = Tensor::from_slice(&[30f32, 90.0, 150.0]).view([-1, 1]);
    let radians = degrees * (PI / 180.0);
    let sines = boss.forward(&radians, Variables::new()).await?;
    let sines: Vec<f32> = sines.view([-1]).try_into()?;
    println!("the sines of 30, 90 and 150 degrees: {sines:.2?}");
    boss.shutdown().await;
    Ok(())
}
