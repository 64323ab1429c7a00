//! A layer as a list of ops.

use crate::engine::layers::op::Op;

/// A layer as ops over numbered slots: first its inputs, then the outputs of the ops, in order.
#[derive(Debug)]
pub(crate) struct LoweredLayer {
    pub(crate) nodes: Vec<LoweredOp>,
    /// The slots of the layer's outputs.
    pub(crate) outputs: Vec<usize>,
}

/// One op of a layer, and its connections.
#[derive(Debug)]
pub(crate) struct LoweredOp {
    pub(crate) op: Box<dyn Op>,
    /// Slots.
    pub(crate) inputs: Vec<usize>,
    /// The number of slots that it makes.
    pub(crate) outputs: usize,
    /// The names of its parameters and buffers: the op's name, and the layer's.
    pub(crate) params: Vec<(&'static str, &'static str)>,
}
