//! The models of law 1, with a loss, an optimizer and data.

use crate::device::device;
use crate::{BATCH, STEPS};
use bossman::{Classes, Loss, Model, Optimizer, StateDict};
use pipeline::message::Reduction;
use pipeline::optimizer::AdamArgs;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use tensor::random::Key;

/// A model and its training.
pub struct Case {
    /// The model's name.
    pub name: &'static str,
    /// The model.
    pub model: Model,
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The seed of parameters and dropout.
    pub seed: u64,
    /// The other settings of a step.
    pub steps: Steps,
    /// Every sample's input.
    x: Tensor,
    /// Every sample's target.
    target: Tensor,
}

/// The settings of a training step, beside forward and backward.
#[derive(Copy, Clone)]
pub struct Steps {
    /// The number of samples of each step, in turn.
    pub samples: &'static [i64],
    /// The sequence length of each step, in turn. Empty if samples are not sequences.
    pub lengths: &'static [i64],
    /// The number of steps whose gradients one update uses.
    pub accumulate: usize,
    /// The limit of the gradients' norm.
    pub max_norm: Option<f64>,
    /// The order in which the gradients of microbatches are summed.
    pub reduction: Reduction,
}

impl Default for Steps {
    fn default() -> Self {
        Steps {
            samples: &[BATCH],
            lengths: &[],
            accumulate: 1,
            max_norm: None,
            reduction: Reduction::Sequential,
        }
    }
}

impl Steps {
    /// Returns whether an update follows this step, counted from 0.
    pub fn update(&self, step: usize) -> bool {
        (step + 1).is_multiple_of(self.accumulate)
    }

    /// Returns the divisor of a step's losses: the number of samples of an update, if all its steps
    /// were as large as the first.
    pub fn divisor(&self, step: usize) -> f64 {
        let first = step - step % self.accumulate;
        self.samples_of(first) as f64 * self.accumulate as f64
    }

    /// Returns the factor of the gradients in the update after a step. It makes them the mean over
    /// all samples.
    pub fn scale(&self, step: usize) -> f64 {
        let first = step - step % self.accumulate;
        self.divisor(step) / (first..=step).map(|step| self.samples_of(step)).sum::<i64>() as f64
    }

    fn samples_of(&self, step: usize) -> i64 {
        self.samples[step % self.samples.len()]
    }
}

/// The length of the longest sequence.
const LENGTH: i64 = 8;

const DECAYING: AdamArgs = AdamArgs { lr: 3e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };

impl Case {
    /// Returns the path of a model file: an example, or a narrower one that trains faster.
    pub fn file(name: &str) -> PathBuf {
        let folder = if name == "narrow_residual" { "models" } else { "../examples/models" };
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{folder}/{name}.yaml"))
    }

    /// A model with one skip connection and wide layers.
    pub fn residual() -> Self {
        Self::sine("residual")
    }

    /// The same model with narrower layers, which trains faster.
    pub fn narrow_residual() -> Self {
        Self::sine("narrow_residual")
    }

    fn sine(name: &'static str) -> Self {
        let x = uniform("x", &[1], 0.0, std::f64::consts::PI);
        let target = x.sin();
        Self::new(name, Loss::MSELoss, Optimizer::adam(3e-3), x, target)
    }

    /// A model in which one value has three users.
    pub fn branchy() -> Self {
        let loss = Loss::CrossEntropyLoss { classes: Classes::default(), label_smoothing: 0.1 };
        Self::new(
            "branchy",
            loss,
            Optimizer::AdamW(DECAYING),
            uniform("x", &[8], -1.0, 1.0),
            classes(4),
        )
    }

    /// A model with dropout, and a value that goes from the first layers to the last.
    pub fn skip() -> Self {
        let optimizer = Optimizer::SGD {
            lr: 0.05,
            momentum: 0.9,
            dampening: 0.0,
            weight_decay: 1e-3,
            nesterov: true,
        };
        let (x, target) = (uniform("x", &[4], -1.0, 1.0), uniform("target", &[1], 0.0, 1.0));
        Self::new("skip", Loss::MSELoss, optimizer, x, target)
    }

    /// The same with all targets times this factor.
    #[must_use]
    pub fn with_targets_times(mut self, factor: f64) -> Self {
        self.target *= factor;
        self
    }

    /// A model with convolutions, batch norm and pooling.
    pub fn convnet() -> Self {
        Self::new(
            "convnet",
            Loss::cross_entropy(),
            Optimizer::adam(1e-3),
            uniform("x", &[1, 8, 8], 0.0, 1.0),
            classes(10),
        )
    }

    /// A model whose first layer's weight is also the last layer's.
    pub fn tied() -> Self {
        let target = uniform("target", &[LENGTH, 32], -1.0, 1.0);
        let x = uniform("x", &[LENGTH], 0.0, 32.0).to_kind(Kind::Int64);
        Case {
            steps: Steps { lengths: &[LENGTH], ..Steps::default() },
            ..Self::new("tied", Loss::MSELoss, Optimizer::adam(3e-3), x, target)
        }
    }

    /// Sets other steps.
    #[must_use]
    pub fn with(self, steps: Steps) -> Self {
        Case { steps, ..self }
    }

    /// Sets another optimizer.
    #[must_use]
    pub fn optimized_by(self, optimizer: Optimizer) -> Self {
        Case { optimizer, ..self }
    }

    /// Replaces a part of the model's text.
    #[must_use]
    pub fn changed(self, from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(Self::file(self.name)).unwrap();
        assert!(text.contains(from), "{from} is not in {}", self.name);
        Case { model: Model::from_yaml(&text.replace(from, to)).unwrap(), ..self }
    }

    fn new(
        name: &'static str,
        loss: Loss,
        optimizer: Optimizer,
        x: Tensor,
        target: Tensor,
    ) -> Self {
        let model = Model::from_file(Self::file(name)).unwrap();
        Case { name, model, loss, optimizer, seed: 7, steps: Steps::default(), x, target }
    }

    /// Returns the input and target of a step, counted from 0.
    pub fn batch(&self, step: usize) -> (Tensor, Tensor) {
        let lengths = self.steps.lengths;
        let part = |all: &Tensor| {
            let samples = all.narrow(0, step as i64 * BATCH, self.steps.samples_of(step));
            match lengths {
                [] => samples,
                lengths => samples.narrow(1, 0, lengths[step % lengths.len()]).contiguous(),
            }
        };
        (part(&self.x), part(&self.target))
    }

    /// Saves all samples as a file for `bossman train`.
    pub fn save_data(&self, path: &Path) {
        let mut data = StateDict::default();
        data.insert("x", &self.x);
        data.insert("target", &self.target);
        data.save(path).unwrap();
    }
}

fn uniform(name: &str, sample: &[i64], low: f64, high: f64) -> Tensor {
    // Before libtorch first looks for GPUs, because it remembers the answer.
    device();
    let shape = [&[STEPS as i64 * BATCH], sample].concat();
    let mut stream = Key::new(1).text(name).stream(Device::Cpu).unwrap();
    stream.uniform(&shape, Kind::Float, low, high).unwrap()
}

fn classes(count: i64) -> Tensor {
    uniform("target", &[], 0.0, count as f64).to_kind(Kind::Int64)
}
