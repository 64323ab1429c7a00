//! The gradients of parameters: their sums within a replica and over replicas.
//!
//! ```text
//!     gradient_store.rs -> gradient_target.rs -> buffer.rs            microbatch after microbatch
//!        ^                       -> leaf_writer.rs -> trees.rs        along a tree, for replicas
//!        |- reduce.rs, all_reduce.rs: the sums of other replicas
//!        |- tied.rs: the gradients of tied parameters, from and to other stages
//!     ordered_sum.rs, tensor_pool.rs: sums left to right, and memory to use again
//! ```

pub(crate) mod all_reduce;
pub(crate) mod buffer;
pub(crate) mod gradient_store;
pub(crate) mod gradient_target;
pub(crate) mod leaf_writer;
pub(crate) mod ordered_sum;
pub(crate) mod reduce;
pub(crate) mod tensor_pool;
pub(crate) mod tied;
pub(crate) mod trees;
