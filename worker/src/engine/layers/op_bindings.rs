//! The parameters of an op, and the gradients that it computes.

/// The connections of an op to its stage. Fixed once the stage is built.
#[derive(Debug)]
pub(crate) struct OpBindings {
    pub(crate) params: Vec<OpParam>,
    /// For each input, whether its gradient is needed.
    pub(crate) needs_input_grad: Vec<bool>,
    /// Whether any of the parameters is trained.
    pub(crate) trains: bool,
}

/// A parameter or buffer of an op.
#[derive(Debug)]
pub(crate) struct OpParam {
    /// The op's name for it.
    pub(crate) role: &'static str,
    /// Its place among the stage's.
    pub(crate) index: usize,
    /// Its place among the layer's.
    pub(crate) place: usize,
    pub(crate) trained: bool,
}

impl OpBindings {
    /// Whether it has a part in the backward pass.
    pub(crate) fn is_active(&self) -> bool {
        self.trains || self.needs_input_grad.contains(&true)
    }
}
