//! The optimizer step.
//!
//! ```text
//!     step.rs -> optimizer.rs   new values of the parameters
//!             -> health.rs      whether the layers learn
//!     grad_squares.rs                what the boss clips by
//!     optimizer_state.rs -> optimizer.rs   state by name, out and in
//! ```

pub(crate) mod grad_squares;
pub(crate) mod health;
pub(crate) mod optimizer;
pub(crate) mod optimizer_state;
pub(crate) mod step;
