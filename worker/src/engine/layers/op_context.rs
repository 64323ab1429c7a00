//! The context of one call of an op: its parameters and circumstances.

use crate::engine::config::Mode;
use crate::engine::layers::kv_cache::OpCache;
use crate::engine::layers::op_bindings::OpBindings;
use crate::engine::layers::random_source::RandomSource;
use crate::engine::params::running_statistics::BatchStatistics;
use crate::engine::params::stage_params::Param;
use tch::{Device, Tensor};
use tensor::TensorError;

/// The context of a call.
#[derive(Clone, Copy)]
pub(crate) struct OpContext<'a> {
    pub(crate) params: &'a [Param],
    pub(crate) bindings: &'a OpBindings,
    pub(crate) mode: Mode,
    pub(crate) random: RandomSource<'a>,
    pub(crate) device: Device,
    pub(crate) purpose: PassPurpose,
    /// Stand-ins for parameters, by the op's names.
    pub(crate) substitute_params: &'a [(&'static str, Tensor)],
    /// The cache of earlier positions, if the op gets new ones only.
    pub(crate) kv_cache: Option<OpCache<'a>>,
    /// The place for the statistics of a norm's input, instead of its buffers.
    pub(crate) batch_statistics: Option<&'a BatchStatistics>,
}

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassPurpose {
    /// The outputs alone.
    OutputsOnly,
    /// The outputs, and a backward pass after it.
    Backward,
    /// The tensors that backward needs; the outputs were made before.
    Recompute,
}

impl<'a> OpContext<'a> {
    /// The same call with other tensors in place of parameters.
    pub(crate) fn with_substitute_params<'b>(
        &'b self,
        leaves: &'b [(&'static str, Tensor)],
    ) -> OpContext<'b> {
        OpContext { substitute_params: leaves, ..*self }
    }

    /// A parameter or buffer that the op has under this name, if the layer's arguments give it one.
    pub(crate) fn optional_param(&self, role: &str) -> Option<&'a Tensor> {
        if let Some((_, leaf)) = self.substitute_params.iter().find(|(name, _)| *name == role) {
            return Some(leaf);
        }
        let param = self.bindings.params.iter().find(|param| param.role == role)?;
        Some(&self.params.get(param.index)?.tensor)
    }

    /// A parameter that the op always has.
    pub(crate) fn param(&self, role: &str) -> Result<&'a Tensor, TensorError> {
        self.optional_param(role)
            .ok_or_else(|| TensorError::invalid("the layer", format!("has no parameter {role}")))
    }

    /// All parameters and buffers of the op, with its names for them, in its order.
    pub(crate) fn all_params(&self) -> impl Iterator<Item = (&'static str, &'a Param)> + use<'a> {
        let params = self.params;
        self.bindings
            .params
            .iter()
            .filter_map(move |param| Some((param.role, params.get(param.index)?)))
    }

    /// The op's parameters that are trained, with its names for them, in its order.
    pub(crate) fn trained(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a> {
        let ctx = *self;
        let trained = self.bindings.params.iter().filter(|param| param.trained);
        trained.filter_map(move |param| Some((param.role, ctx.optional_param(param.role)?)))
    }

    /// Whether any of its parameters is trained.
    pub(crate) fn trains(&self) -> bool {
        self.bindings.trains
    }

    /// The number of its inputs.
    pub(crate) fn input_count(&self) -> usize {
        self.bindings.needs_input_grad.len()
    }

    /// Whether the gradient of this input is needed.
    pub(crate) fn needs_input_grad(&self, port: usize) -> bool {
        self.bindings.needs_input_grad.get(port).copied().unwrap_or(false)
    }

    /// Whether the op must save tensors for a backward pass.
    pub(crate) fn saves_for_backward(&self) -> bool {
        self.purpose != PassPurpose::OutputsOnly && self.bindings.is_active()
    }

    /// Whether a backward pass follows, perhaps with recomputed tensors.
    pub(crate) fn has_backward(&self) -> bool {
        self.training() && self.bindings.is_active()
    }

    /// Whether this forward pass is a repetition for the backward pass (recompute).
    pub(crate) fn is_recompute(&self) -> bool {
        self.purpose == PassPurpose::Recompute
    }

    /// The number of positions before those of its input.
    pub(crate) fn past(&self) -> i64 {
        self.kv_cache.map_or(0, |kv_cache| kv_cache.past())
    }

    pub(crate) fn training(&self) -> bool {
        self.mode == Mode::Train
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }
}
