//! The models of law 1, with a loss, an optimizer and data.

use crate::{BATCH, STEPS};
use bossman::{Loss, Model, Optimizer, StateDict};
use pipeline::optimizer::AdamArgs;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use tensor::random::Key;

/// A model and what it is trained with.
pub struct Case {
    /// The model's name.
    pub name: &'static str,
    /// The model.
    pub model: Model,
    /// How its output is judged.
    pub loss: Loss,
    /// How its parameters change.
    pub optimizer: Optimizer,
    /// What parameters and dropout are drawn from.
    pub seed: u64,
    /// Every sample's input.
    x: Tensor,
    /// Every sample's target.
    target: Tensor,
}

const DECAYING: AdamArgs = AdamArgs { lr: 3e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };

impl Case {
    /// Where the model is.
    pub fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/models/{name}.yaml"))
    }

    /// One skip connection, wide layers.
    pub fn residual() -> Self {
        let x = uniform("x", &[1], 0.0, std::f64::consts::PI);
        let target = x.sin();
        Self::new("residual", Loss::MSELoss, Optimizer::adam(3e-3), x, target)
    }

    /// A value with three users.
    pub fn branchy() -> Self {
        let loss = Loss::CrossEntropyLoss { label_smoothing: 0.1 };
        Self::new("branchy", loss, Optimizer::AdamW(DECAYING), uniform("x", &[8], -1.0, 1.0), classes(4))
    }

    /// A value that goes from the first layers to the last, and dropout.
    pub fn skip() -> Self {
        let optimizer = Optimizer::SGD { lr: 0.05, momentum: 0.9, dampening: 0.0, weight_decay: 1e-3, nesterov: true };
        let (x, target) = (uniform("x", &[4], -1.0, 1.0), uniform("target", &[1], 0.0, 1.0));
        Self::new("skip", Loss::MSELoss, optimizer, x, target)
    }

    /// Convolutions, batch norm, pooling.
    pub fn convnet() -> Self {
        Self::new(
            "convnet",
            Loss::cross_entropy(),
            Optimizer::adam(1e-3),
            uniform("x", &[1, 8, 8], 0.0, 1.0),
            classes(10),
        )
    }

    fn new(name: &'static str, loss: Loss, optimizer: Optimizer, x: Tensor, target: Tensor) -> Self {
        let model = Model::from_file(Self::file(name)).unwrap();
        Case { name, model, loss, optimizer, seed: 7, x, target }
    }

    /// The input and target of a step, counted from 0.
    pub fn batch(&self, step: usize) -> (Tensor, Tensor) {
        let part = |all: &Tensor| all.narrow(0, step as i64 * BATCH, BATCH);
        (part(&self.x), part(&self.target))
    }

    /// All samples as a file for `bossman train`.
    pub fn save_data(&self, path: &Path) {
        let mut data = StateDict::default();
        data.insert("x", &self.x);
        data.insert("target", &self.target);
        data.save(path).unwrap();
    }
}

fn uniform(name: &str, sample: &[i64], low: f64, high: f64) -> Tensor {
    let shape = [&[STEPS as i64 * BATCH], sample].concat();
    let mut stream = Key::new(1).text(name).stream(Device::Cpu).unwrap();
    stream.uniform(&shape, Kind::Float, low, high).unwrap()
}

fn classes(count: i64) -> Tensor {
    uniform("target", &[], 0.0, count as f64).to_kind(Kind::Int64)
}
