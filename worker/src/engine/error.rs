//! Errors of a stage, with the place as data.

use layerspec::{LayerId, ValueId};
use pipeline::ids::{MicrobatchKey, StageId};
use tensor::TensorError;

/// An error of the stage engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A layer could not do its work.
    #[error("layer {layer} ({kind}), {phase}: {source}")]
    Layer {
        /// The layer's full name.
        layer: String,
        /// Its kind: `Linear`.
        kind: &'static str,
        /// Its action.
        phase: LayerPhase,
        /// The message of libtorch or the layer.
        source: TensorError,
    },
    /// The loss could not be computed.
    #[error("{loss}: {source}")]
    Loss {
        /// The loss.
        loss: &'static str,
        /// The message of libtorch or the check.
        source: TensorError,
    },
    /// A checked number is not finite.
    #[error("layer {layer} ({kind}): {what}")]
    NotFinite {
        /// The layer's full name.
        layer: String,
        /// Its kind: `Linear`.
        kind: &'static str,
        /// Which numbers, and what of the rest is known.
        what: String,
    },
    /// Gradients could not be summed over the replicas' devices.
    #[error(transparent)]
    AllReduce(#[from] tensor::nccl::NcclError),
    /// A tensor could not be moved, summed or copied.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A list is not as long as the stage's border.
    #[error("the stage has {expected} {what}, but {got} were given")]
    CountMismatch {
        /// The content of the list.
        what: &'static str,
        /// The expected count.
        expected: usize,
        /// The actual count.
        got: usize,
    },
    /// A gradient came in another shape than the output it belongs to.
    #[error("the gradient of output {output} has shape {got:?}, but the output has {expected:?}")]
    GradientShape {
        /// The output's position.
        output: usize,
        /// The output's shape.
        expected: Vec<i64>,
        /// The gradient's shape.
        got: Vec<i64>,
    },
    /// A layer shares parameters with one that is neither above it in the same stage nor copied from another stage.
    #[error(
        "layer {layer} shares the parameters of layer number {}, which is neither above it in this \
         stage nor copied from another",
        owner.0
    )]
    UnknownOwner {
        /// The layer that shares.
        layer: String,
        /// The layer that owns the parameters.
        owner: LayerId,
    },
    /// A value is used or asked for, but neither comes in nor is made before.
    #[error("value number {} is needed by {by}, but no layer above makes it and it is no input of the stage", value.0)]
    MissingValue {
        /// The value.
        value: ValueId,
        /// Who needs it: a layer's name, or the stage's outputs.
        by: String,
    },
    /// Backward or loss for a microbatch whose forward pass is not kept.
    #[error("{key}: there is no forward pass in training mode to go back through")]
    UnknownMicrobatch {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// The second half of a backward pass whose first half has not been.
    #[error("{key}: there is no backward pass whose gradients of parameters were left for later")]
    NoBackwardInput {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// Parameters are others than in the forward pass.
    #[error("{key}: the stage's parameters were changed between its forward and its backward pass")]
    ParametersChanged {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// Gradients or values of shared parameters that are not those which the stages share.
    #[error("{stage}: the tensors of shared parameters that it sent are not those that this stage shares with it")]
    TiedMismatch {
        /// The stage at the other end.
        stage: StageId,
    },
    /// A stage whose gradients were to be summed along a tree, but are not all in its buckets.
    #[error("the stage's buckets are not the gradients that it has; please report it")]
    IncompleteBuckets,
    /// A microbatch that has no place in the tree.
    #[error(
        "{key}: its gradients are no leaf of the tree of {microbatches} microbatches: it is no such tree, or they are in it \
         already"
    )]
    NotALeaf {
        /// The microbatch.
        key: MicrobatchKey,
        /// The announced count of the tree.
        microbatches: u32,
    },
    /// Gradients are to be used before those of all microbatches are there.
    #[error("the gradients of {summed} microbatches are summed, of {microbatches}")]
    IncompleteSum {
        /// The actual count.
        summed: usize,
        /// The expected count.
        microbatches: usize,
    },
    /// A gradient of a type that does not travel between replicas.
    #[error("the gradient of {param} is {found}; in a stage with replicas gradients must be float32")]
    GradientType {
        /// The parameter.
        param: String,
        /// The gradient's type.
        found: String,
    },
    /// Sums of gradients that are not those of the stage.
    #[error("the sums of gradients that replicas sent do not fit the stage: {problem}")]
    ReducedMismatch {
        /// The problem.
        problem: String,
    },
    /// New values of parameters that are not the stage's.
    #[error("the parameters that replicas sent do not fit the stage: {problem}")]
    GatheredMismatch {
        /// The problem.
        problem: String,
    },
    /// Statistics that are not those of the stage's norms.
    #[error("what the norms of replicas saw does not fit the stage: {problem}")]
    StatisticsMismatch {
        /// The problem.
        problem: String,
    },
    /// A second forward pass of a microbatch before its backward pass.
    #[error("{key}: its forward pass was done already and waits for backward")]
    AlreadyForwarded {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// A step before an optimizer was set.
    #[error("the stage has no optimizer; send one before the first step")]
    NoOptimizer,
    /// Weights or optimizer state that do not fit; every problem is listed.
    #[error("the given state does not fit the stage:\n  {}", problems.join("\n  "))]
    StateMismatch {
        /// One line for each tensor that is missing, unexpected or misshapen.
        problems: Vec<String>,
    },
}

/// The phase in which a layer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerPhase {
    /// Making its parameters.
    Initialisation,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
}

impl std::fmt::Display for LayerPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LayerPhase::Initialisation => "initialisation",
            LayerPhase::Forward => "forward",
            LayerPhase::Backward => "backward",
        })
    }
}

/// Names the layer in an error of a tensor operation.
pub(super) fn in_layer(layer: &layerspec::Layer, phase: LayerPhase) -> impl FnOnce(TensorError) -> EngineError + '_ {
    move |source| EngineError::Layer { layer: layer.name.clone(), kind: layer.kind.name(), phase, source }
}
