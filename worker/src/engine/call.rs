//! One call of one op: its parameters and circumstances.

use super::layer::OpNode;
use super::memory::OpCache;
use super::params::Param;
use super::stage::{Mode, Pass};
use super::statistics::BatchStatistics;
use tch::{Device, Tensor};
use tensor::random::{Key, Stream};
use tensor::TensorError;

/// The context that an op can use.
#[derive(Clone, Copy)]
pub(super) struct OpContext<'a> {
    pub(super) params: &'a [Param],
    pub(super) node: &'a OpNode,
    pub(super) pass: &'a Pass,
    /// The layer's name.
    pub(super) layer: &'a str,
    pub(super) seed: u64,
    pub(super) device: Device,
    /// The mode of the forward pass.
    pub(super) purpose: PassPurpose,
    /// Stand-ins for parameters, by the op's names.
    pub(super) substitute_params: &'a [(&'static str, Tensor)],
    /// What it remembers of earlier positions, where it is given new ones only.
    pub(super) kv_cache: Option<OpCache<'a>>,
    /// The place for the statistics of a norm's input, instead of its buffers.
    pub(super) batch_statistics: Option<&'a BatchStatistics>,
}

/// The mode of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassPurpose {
    /// The outputs alone.
    OutputsOnly,
    /// The outputs, and a backward pass after it.
    Backward,
    /// What backward needs: the outputs were made before.
    Recompute,
}

impl<'a> OpContext<'a> {
    /// The same call with other tensors in the place of parameters.
    pub(super) fn with_substitute_params<'b>(&'b self, leaves: &'b [(&'static str, Tensor)]) -> OpContext<'b> {
        OpContext { substitute_params: leaves, ..*self }
    }

    /// A parameter or buffer that the op has under this name, if the layer's arguments give it one.
    pub(super) fn optional_param(&self, role: &str) -> Option<&'a Tensor> {
        if let Some((_, leaf)) = self.substitute_params.iter().find(|(name, _)| *name == role) {
            return Some(leaf);
        }
        let param = self.node.params.iter().find(|param| param.role == role)?;
        Some(&self.params.get(param.index)?.tensor)
    }

    /// A parameter that the op always has.
    pub(super) fn param(&self, role: &str) -> Result<&'a Tensor, TensorError> {
        self.optional_param(role).ok_or_else(|| TensorError::invalid("the layer", format!("has no parameter {role}")))
    }

    /// All parameters and buffers of the op, with its names for them, in its order.
    pub(super) fn all_params(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a> {
        let params = self.params;
        self.node.params.iter().filter_map(move |param| Some((param.role, &params.get(param.index)?.tensor)))
    }

    /// The op's parameters that are trained, with its names for them, in its order.
    pub(super) fn trained(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a> {
        let ctx = *self;
        let trained = self.node.params.iter().filter(|param| param.trained);
        trained.filter_map(move |param| Some((param.role, ctx.optional_param(param.role)?)))
    }

    /// Whether any of its parameters is trained.
    pub(super) fn trains(&self) -> bool {
        self.node.trains
    }

    /// The number of its inputs.
    pub(super) fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Whether the gradient of this input is wanted.
    pub(super) fn needs_input_grad(&self, port: usize) -> bool {
        self.node.needs_input_grad.get(port).copied().unwrap_or(false)
    }

    /// Whether a backward pass follows that needs what is kept.
    pub(super) fn saves_for_backward(&self) -> bool {
        self.purpose != PassPurpose::OutputsOnly && self.node.is_active()
    }

    /// Whether a backward pass follows, for which all may be computed again.
    pub(super) fn has_backward(&self) -> bool {
        self.training() && self.node.is_active()
    }

    /// Whether this forward pass is a repetition for the backward pass (recompute).
    pub(super) fn is_recompute(&self) -> bool {
        self.purpose == PassPurpose::Recompute
    }

    /// The number of positions before those of its input.
    pub(super) fn past(&self) -> i64 {
        self.kv_cache.map_or(0, |kv_cache| kv_cache.past())
    }

    pub(super) fn training(&self) -> bool {
        self.pass.mode == Mode::Train
    }

    /// Random numbers that depend on the run's seed, the step, the layer, and in training the microbatch alone.
    pub(super) fn random(&self, purpose: &str) -> Result<Stream, TensorError> {
        self.key(purpose).stream(self.device)
    }

    /// The source of those numbers.
    pub(super) fn key(&self, purpose: &str) -> Key {
        let key = Key::new(self.seed).text(purpose).number(self.pass.step);
        // In evaluation a microbatch is a batch, and which of those that are evaluated at once may not show.
        let microbatch = if self.training() { self.pass.key.index } else { 0 };
        key.number(u64::from(microbatch)).text(self.layer)
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }
}
