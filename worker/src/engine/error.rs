//! Errors of a stage, with the place as data, grouped by the party at fault.

use layerspec::{LayerId, ValueId};
use pipeline::ids::{MicrobatchKey, StageId};
use tensor::TensorError;

/// An error of the stage engine. Variants that are no group are faults of the layer itself, of its
/// inputs or of the device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A layer could not do its work.
    #[error("layer {layer} ({kind}), {phase}: {source}")]
    Layer {
        /// The layer's full name.
        layer: String,
        /// Its kind: `Linear`.
        kind: &'static str,
        /// The phase.
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
        /// Which numbers are not finite, and what is known of the others.
        what: String,
    },
    /// Gradients could not be summed over the replicas' devices.
    #[error(transparent)]
    AllReduce(#[from] tensor::nccl::NcclError),
    /// A tensor could not be moved, summed or copied.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The boss's plan is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The session called the engine in a wrong order.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Another worker sent tensors that do not fit.
    #[error(transparent)]
    PeerData(#[from] PeerDataError),
    /// Weights or optimizer state that do not fit the stage: the fault of the file that they come
    /// from. Every problem is listed.
    #[error("the given state does not fit the stage:\n  {}", problems.join("\n  "))]
    StateMismatch {
        /// One line for each tensor that is missing, unexpected or misshapen.
        problems: Vec<String>,
    },
}

/// An error of the plan that the boss sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A layer shares parameters with one that is neither above it in the same stage nor copied
    /// from another stage.
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
    /// Nothing makes a value that is used.
    #[error(
        "{by} needs value number {}, but no layer above makes it and it is no input of the stage",
        value.0
    )]
    MissingValue {
        /// The value.
        value: ValueId,
        /// The user of the value: a layer's name, or the stage's outputs.
        by: String,
    },
    /// The buckets do not hold the gradients of the stage, each once.
    #[error("the stage's buckets do not match its gradients; please report this")]
    IncompleteBuckets,
    /// A gradient has a type that does not travel between replicas.
    #[error(
        "the gradient of {param} is {found}; in a stage with replicas gradients must be float32"
    )]
    GradientType {
        /// The parameter.
        param: String,
        /// The gradient's type.
        found: String,
    },
}

/// A call that does not fit the calls before it: an error of the session that drives the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SequenceError {
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
    /// Backward or loss for a microbatch without a saved forward pass.
    #[error("{key}: no forward pass in training mode is saved")]
    UnknownMicrobatch {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// The gradients of parameters are asked for before those of the inputs.
    #[error("{key}: no backward pass waits for its gradients of parameters")]
    NoBackwardInput {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// The parameters changed after the forward pass.
    #[error("{key}: the stage's parameters changed between its forward and its backward pass")]
    ParametersChanged {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// A second forward pass of a microbatch before its backward pass.
    #[error("{key}: its forward pass is done and waits for backward")]
    AlreadyForwarded {
        /// The microbatch.
        key: MicrobatchKey,
    },
    /// A microbatch has no place in the tree.
    #[error(
        "{key}: its gradients are no leaf of the tree of {microbatches} microbatches: the tree is \
         another one, or already has them"
    )]
    NotALeaf {
        /// The microbatch.
        key: MicrobatchKey,
        /// The announced count of the tree.
        microbatches: u32,
    },
    /// Gradients are used before all microbatches are summed.
    #[error("{summed} of {microbatches} microbatches are summed")]
    IncompleteSum {
        /// The actual count.
        summed: usize,
        /// The expected count.
        microbatches: usize,
    },
    /// A step before an optimizer was set.
    #[error("the stage has no optimizer; send one before the first step")]
    NoOptimizer,
}

/// Tensors of another worker that do not fit the stage: an error of their sender.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PeerDataError {
    /// A gradient has another shape than the output that it belongs to.
    #[error("the gradient of output {output} has shape {got:?}, but the output has {expected:?}")]
    GradientShape {
        /// The output's position.
        output: usize,
        /// The output's shape.
        expected: Vec<i64>,
        /// The gradient's shape.
        got: Vec<i64>,
    },
    /// Gradients or values of tied parameters are not those that the stages share.
    #[error(
        "the tensors of tied parameters from {stage} do not match what it shares with this stage"
    )]
    Tied {
        /// The stage that sent them.
        stage: StageId,
    },
    /// Sums of gradients do not fit the stage.
    #[error("the sums of gradients that replicas sent do not fit the stage: {problem}")]
    Reduced {
        /// The problem.
        problem: String,
    },
    /// Values of parameters do not fit the stage.
    #[error("the parameters that replicas sent do not fit the stage: {problem}")]
    Gathered {
        /// The problem.
        problem: String,
    },
    /// Statistics do not fit the stage's norms.
    #[error("the statistics of norms that replicas sent do not fit the stage: {problem}")]
    Statistics {
        /// The problem.
        problem: String,
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
pub(crate) fn in_layer(
    layer: &layerspec::Layer,
    phase: LayerPhase,
) -> impl FnOnce(TensorError) -> EngineError + '_ {
    move |source| EngineError::Layer {
        layer: layer.name.clone(),
        kind: layer.kind.name(),
        phase,
        source,
    }
}

/// The error of a layer that cannot do its work.
pub(crate) fn layer_error(problem: impl Into<String>) -> TensorError {
    TensorError::invalid("the layer", problem)
}
