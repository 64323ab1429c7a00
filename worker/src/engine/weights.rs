//! The second half of the backward pass: the gradients of the parameters, and what they are added to.

use super::branch::Along;
use super::call::Purpose;
use super::error::{in_layer, Doing, EngineError};
use super::gradient::{Gradient, Gradients};
use super::leaves::Leaves;
use super::stage::Pass;
use super::Engine;
use pipeline::ids::MicrobatchKey;
use tch::Tensor;

/// What is kept of a microbatch between the halves of its backward pass.
#[derive(Debug)]
pub(super) struct Halfway {
    pub(super) pass: Pass,
    pub(super) version: u64,
    /// In the order in which the first half left them.
    pub(super) rests: Vec<Rest>,
}

/// What one op needs for the gradients of its parameters.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) layer: usize,
    pub(super) node: usize,
    pub(super) tensors: Vec<Tensor>,
}

/// What the gradients of parameters are added to.
pub(super) enum Sums<'a> {
    /// Those of the microbatches before.
    InTurn(&'a mut [Vec<Gradient>]),
    /// Those of this microbatch, which go into trees.
    Along(Leaves<'a>),
}

impl Engine {
    /// The second half: adds the microbatch's gradients of the parameters to those of earlier calls. For sums that do
    /// not depend on the schedule, call it for microbatches in ascending order.
    pub fn backward_weight(&mut self, key: MicrobatchKey) -> Result<(), EngineError> {
        self.second_half(key, None)
    }

    /// The same along a tree, for which microbatches may come in any order.
    pub fn backward_weight_along(&mut self, key: MicrobatchKey, along: Along<'_>) -> Result<(), EngineError> {
        self.second_half(key, Some(along))
    }

    fn second_half(&mut self, key: MicrobatchKey, along: Option<Along<'_>>) -> Result<(), EngineError> {
        let halfway = self.halfway.remove(&key).ok_or(EngineError::NoFirstHalf { key })?;
        self.check_version(key, halfway.version)?;
        self.summing(key, along, |engine, sums| {
            halfway.rests.into_iter().try_for_each(|rest| engine.weight_half(rest, &halfway.pass, sums))
        })
    }

    /// Lends out what the parameters' gradients are added to.
    pub(super) fn summing<T>(
        &mut self,
        key: MicrobatchKey,
        along: Option<Along<'_>>,
        work: impl FnOnce(&Engine, &mut Sums<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let Some(mut along) = along else {
            let mut gradients = std::mem::take(&mut self.gradients);
            let result = tch::no_grad(|| work(self, &mut Sums::InTurn(&mut gradients)));
            self.gradients = gradients;
            return result;
        };
        if along.branch.tells {
            self.hand_out_statistics(key.batch, &mut along)?;
        }
        let mut trees = std::mem::take(&mut self.trees);
        let result = tch::no_grad(|| {
            let along = Along { hand_out: &mut *along.hand_out, ..along };
            let mut sums = Sums::Along(trees.pass(key, along)?);
            let result = work(self, &mut sums)?;
            sums.done_with(0)?;
            Ok(result)
        });
        self.trees = trees;
        result
    }

    pub(super) fn weight_half(&self, rest: Rest, pass: &Pass, sums: &mut Sums<'_>) -> Result<(), EngineError> {
        let node = &self.layers[rest.layer].nodes[rest.node];
        let call = self.call(rest.layer, node, pass, Purpose::Backward);
        let mut gradients = Gradients::new(node, sums.of_layer(rest.layer)?);
        let done = node.op.backward_weight(&call, rest.tensors, &mut gradients);
        done.map_err(in_layer(&self.stage.layers[rest.layer], Doing::Backward))
    }
}

impl Sums<'_> {
    fn of_layer(&mut self, layer: usize) -> Result<&mut [Gradient], EngineError> {
        match self {
            Sums::InTurn(gradients) => Ok(&mut gradients[layer]),
            Sums::Along(leaves) => leaves.of_layer(layer),
        }
    }

    /// Layers from this one on have added theirs.
    pub(super) fn done_with(&mut self, layer: usize) -> Result<(), EngineError> {
        match self {
            Sums::InTurn(_) => Ok(()),
            Sums::Along(leaves) => leaves.done_with(layer),
        }
    }
}
