//! What the compute thread is asked to do, and what it answers.
//!
//! Generic over the tensor: a session fills in slot numbers, the driver replaces them by bytes.

use crate::ids::{MicrobatchKey, StageId};
use crate::loss::LossSpec;
use crate::message::Mode;
use crate::optimizer::OptimizerSpec;
use crate::plan::StageSpec;

/// One piece of work for the compute thread, which runs them in the order given.
#[derive(Clone, PartialEq, Debug)]
pub enum Task<T> {
    /// Make these stages, with parameters initialised from the seed.
    Build {
        /// The stages of this worker.
        stages: Vec<StageSpec>,
        /// The run's seed.
        seed: u64,
    },
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// One microbatch through one stage.
    Forward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// The training step, which random draws depend on.
        step: u64,
        /// Whether backward will follow.
        mode: Mode,
        /// A tensor for each of the stage's inputs, in order.
        inputs: Vec<T>,
        /// Which of the stage's outputs to hand back, ascending.
        export: Vec<usize>,
        /// The loss, on the stage that computes it.
        loss: Option<LossTask<T>>,
    },
    /// The gradients of one microbatch through one stage.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// For each of the stage's outputs its gradients from outside, in the order in which they are summed.
        grads: Vec<Vec<T>>,
    },
    /// Apply the gradients of one stage to its parameters and clear them.
    OptimStep {
        /// Which stage.
        stage: StageId,
    },
    /// Forget what is kept of a batch for backward.
    Discard {
        /// Which batch.
        batch: u64,
        /// Forget all gradients too: the step is void.
        gradients: bool,
    },
    /// Hand out parameters and buffers.
    Snapshot,
    /// Replace parameters and buffers.
    Load {
        /// Tensors by name.
        tensors: Vec<(String, T)>,
    },
}

/// The loss that follows a forward pass.
#[derive(Clone, PartialEq, Debug)]
pub struct LossTask<T> {
    /// Which of the stage's outputs it is computed on.
    pub output: usize,
    /// The function.
    pub spec: LossSpec,
    /// The microbatch's share of the batch's samples.
    pub weight: f64,
    /// What the output should have been.
    pub target: T,
}

/// What a [`Task`] leaves.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<T> {
    /// Done, with nothing to hand back.
    Done,
    /// After [`Task::Forward`].
    Forward {
        /// The exported outputs, in the order asked for.
        outputs: Vec<T>,
        /// The weighted loss, where one was asked for.
        loss: Option<f32>,
    },
    /// After [`Task::Backward`].
    Backward {
        /// For each of the stage's inputs its gradients: none where it needs none, one where they are
        /// summed here, else one a use.
        grads: Vec<Vec<T>>,
    },
    /// After [`Task::Snapshot`].
    State {
        /// Tensors by name.
        tensors: Vec<(String, T)>,
    },
}

impl<T> Task<T> {
    /// The same task over other tensors; the first that cannot be replaced ends it.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Task<U>, E> {
        Ok(match self {
            Task::Build { stages, seed } => Task::Build { stages, seed },
            Task::SetOptimizer(spec) => Task::SetOptimizer(spec),
            Task::Forward { stage, key, step, mode, inputs, export, loss } => Task::Forward {
                stage,
                key,
                step,
                mode,
                inputs: inputs.into_iter().map(&mut f).collect::<Result<_, E>>()?,
                export,
                loss: match loss {
                    Some(LossTask { output, spec, weight, target }) => {
                        Some(LossTask { output, spec, weight, target: f(target)? })
                    }
                    None => None,
                },
            },
            Task::Backward { stage, key, grads } => Task::Backward { stage, key, grads: nested(grads, f)? },
            Task::OptimStep { stage } => Task::OptimStep { stage },
            Task::Discard { batch, gradients } => Task::Discard { batch, gradients },
            Task::Snapshot => Task::Snapshot,
            Task::Load { tensors } => Task::Load { tensors: named(tensors, f)? },
        })
    }
}

impl<T> Outcome<T> {
    /// The same outcome over other tensors.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Outcome<U> {
        let sure = |t| Ok::<U, std::convert::Infallible>(f(t));
        let Ok(outcome) = self.try_map(sure);
        outcome
    }

    /// The same outcome over other tensors; the first that cannot be replaced ends it.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Outcome<U>, E> {
        Ok(match self {
            Outcome::Done => Outcome::Done,
            Outcome::Forward { outputs, loss } => {
                Outcome::Forward { outputs: outputs.into_iter().map(&mut f).collect::<Result<_, E>>()?, loss }
            }
            Outcome::Backward { grads } => Outcome::Backward { grads: nested(grads, f)? },
            Outcome::State { tensors } => Outcome::State { tensors: named(tensors, f)? },
        })
    }

    /// Every tensor in it, for letting go of a result that nobody wants any more.
    pub fn into_tensors(self) -> Vec<T> {
        match self {
            Outcome::Done => Vec::new(),
            Outcome::Forward { outputs, .. } => outputs,
            Outcome::Backward { grads } => grads.into_iter().flatten().collect(),
            Outcome::State { tensors } => tensors.into_iter().map(|(_, t)| t).collect(),
        }
    }
}

fn nested<T, U, E>(lists: Vec<Vec<T>>, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<Vec<U>>, E> {
    lists.into_iter().map(|list| list.into_iter().map(&mut f).collect()).collect()
}

fn named<T, U, E>(tensors: Vec<(String, T)>, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<(String, U)>, E> {
    tensors.into_iter().map(|(name, t)| Ok((name, f(t)?))).collect()
}
