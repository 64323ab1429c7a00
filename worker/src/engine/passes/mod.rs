//! The passes over a stage's layers.
//!
//! ```text
//!     forward.rs  backward.rs  weight_pass.rs     impl PassRunner
//!          \          |            /
//!           +----> runner.rs <----+    one pass: borrows the stage, runs ops
//!                     |-> compiled_stage.rs -> compiled_layer.rs -> an Op each
//!     saved_passes.rs: the state saved from one pass to the next
//!     loss.rs: the loss and its gradient;  finite.rs: checks that numbers are finite
//!     index_range.rs: checks ids and classes before they go to a device
//! ```

pub(crate) mod backward;
pub(crate) mod compiled_layer;
pub(crate) mod compiled_stage;
pub(crate) mod finite;
pub(crate) mod forward;
pub(crate) mod index_range;
pub(crate) mod loss;
pub(crate) mod runner;
pub(crate) mod saved_passes;
pub(crate) mod weight_pass;
