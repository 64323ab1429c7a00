//! The arguments and results of an op. The ops themselves are in `modules/`.
//!
//! ```text
//!     passes/ --> op.rs (Op: forward, backward, backward_weight)
//!                   |-> op_context.rs    one call: parameters, mode, random numbers
//!                   |     |-> op_bindings.rs, kv_cache.rs, random_source.rs
//!                   |-> op_gradients.rs  where the gradients of parameters are added
//!     lowered_layer.rs: a layer as a list of ops
//!     custom_layers.rs: layers of the user's own
//! ```

pub(crate) mod custom_layers;
pub(crate) mod kv_cache;
pub(crate) mod lowered_layer;
pub(crate) mod op;
pub(crate) mod op_bindings;
pub(crate) mod op_context;
pub(crate) mod op_gradients;
pub(crate) mod random_source;
