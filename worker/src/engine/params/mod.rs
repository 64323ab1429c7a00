//! The parameters and buffers of a stage.
//!
//! ```text
//!     state_dict.rs  all_gather.rs  tied_params.rs
//!     (by name)      (of replicas)  (of other stages)
//!          \              |              /
//!           +-------> param_store.rs <--+    tensors, shards, version
//!                         |-> shards.rs -> stage_params.rs -> undrawn.rs
//!     running_statistics.rs: what norms learn -> stage_params.rs
//! ```

pub(crate) mod all_gather;
pub(crate) mod param_store;
pub(crate) mod running_statistics;
pub(crate) mod shards;
pub(crate) mod stage_params;
pub(crate) mod state_dict;
pub(crate) mod tied_params;
pub(crate) mod undrawn;
