//! One call of one op: its parameters and circumstances.

use super::layer::Node;
use super::memory::Remembered;
use super::params::Param;
use super::stage::{Mode, Pass};
use super::statistics::Seen;
use tch::{Device, Tensor};
use tensor::random::{Key, Stream};
use tensor::TensorError;

/// What an op can ask for.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) params: &'a [Param],
    pub(super) node: &'a Node,
    pub(super) pass: &'a Pass,
    /// The layer's name.
    pub(super) layer: &'a str,
    pub(super) seed: u64,
    pub(super) device: Device,
    /// What the forward pass is for.
    pub(super) purpose: Purpose,
    /// Stand-ins for parameters, by the op's names.
    pub(super) leaves: &'a [(&'static str, Tensor)],
    /// What it remembers of earlier positions, where it is given new ones only.
    pub(super) remembered: Option<Remembered<'a>>,
    /// Where a norm leaves the statistics of its input, rather than in its buffers.
    pub(super) apart: Option<&'a Seen>,
}

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The outputs alone.
    Outputs,
    /// The outputs, and a backward pass after it.
    Backward,
    /// What backward needs: the outputs were made before.
    Again,
}

impl<'a> Call<'a> {
    /// The same call with other tensors in the place of parameters.
    pub(super) fn with_leaves<'b>(&'b self, leaves: &'b [(&'static str, Tensor)]) -> Call<'b> {
        Call { leaves, ..*self }
    }

    /// A parameter or buffer that the op has under this name, if the layer's arguments give it one.
    pub(super) fn optional(&self, role: &str) -> Option<&'a Tensor> {
        if let Some((_, leaf)) = self.leaves.iter().find(|(name, _)| *name == role) {
            return Some(leaf);
        }
        let param = self.node.params.iter().find(|param| param.role == role)?;
        Some(&self.params.get(param.index)?.tensor)
    }

    /// A parameter that the op always has.
    pub(super) fn param(&self, role: &str) -> Result<&'a Tensor, TensorError> {
        self.optional(role).ok_or_else(|| TensorError::invalid("the layer", format!("has no parameter {role}")))
    }

    /// All parameters and buffers of the op, with its names for them, in its order.
    pub(super) fn all_params(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a> {
        let params = self.params;
        self.node.params.iter().filter_map(move |param| Some((param.role, &params.get(param.index)?.tensor)))
    }

    /// The op's parameters that are trained, with its names for them, in its order.
    pub(super) fn trained(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a> {
        let call = *self;
        let trained = self.node.params.iter().filter(|param| param.trained);
        trained.filter_map(move |param| Some((param.role, call.optional(param.role)?)))
    }

    /// Whether any of its parameters is trained.
    pub(super) fn trains(&self) -> bool {
        self.node.trains
    }

    /// How many inputs it has.
    pub(super) fn ports(&self) -> usize {
        self.node.inputs.len()
    }

    /// Whether the gradient of this input is wanted.
    pub(super) fn wants(&self, port: usize) -> bool {
        self.node.wants.get(port).copied().unwrap_or(false)
    }

    /// Whether a backward pass follows that needs what is kept.
    pub(super) fn keeps(&self) -> bool {
        self.purpose != Purpose::Outputs && self.node.is_active()
    }

    /// Whether a backward pass follows, for which all may be computed again.
    pub(super) fn goes_back(&self) -> bool {
        self.training() && self.node.is_active()
    }

    /// Whether this forward pass was done before, and is done again for what backward needs.
    pub(super) fn is_again(&self) -> bool {
        self.purpose == Purpose::Again
    }

    /// How many positions came before those of its input.
    pub(super) fn past(&self) -> i64 {
        self.remembered.map_or(0, |remembered| remembered.past())
    }

    pub(super) fn training(&self) -> bool {
        self.pass.mode == Mode::Train
    }

    /// Random numbers that depend on the run's seed, the step, the layer, and in training the microbatch alone.
    pub(super) fn random(&self, purpose: &str) -> Result<Stream, TensorError> {
        self.key(purpose).stream(self.device)
    }

    /// What those numbers come from.
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
