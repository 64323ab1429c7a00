//! The result of an evaluation, and how much of it is held at once.

use tch::Tensor;

/// The most bytes at the boss of batches that are evaluated together, for any number of replicas.
pub(crate) const MAX_EVALUATION_BYTES: u64 = 256 << 20;

/// Whether the outputs of a model travel to the boss.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Outputs {
    Fetch,
    /// In place of the first one comes the likeliest class of each target, unless another stage
    /// needs the output.
    Likeliest,
    Discard,
}

/// The result of [`crate::BossMan::evaluate`].
#[derive(Debug)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f32,
    /// The weight of the mean: the number of samples, or the sum of the class weights of targets if
    /// some are ignored or weighted.
    pub counted: f64,
    /// The model's outputs in their order, on the CPU.
    pub outputs: Vec<Tensor>,
}
