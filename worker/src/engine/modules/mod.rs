//! The computation of each kind of layer. A file holds one kind or a family; `lower.rs` is the
//! table of all.
//!
//! ```text
//!     passes/compiled_layer.rs -> lower.rs -> attention/ norm/ activation/ shape/ weighted/ ...
//!                                                 |         (each kind: an Op of layers/op.rs)
//!                            builder.rs  <--------+--------> by_autograd.rs
//!                       (layers of many ops)            (ops whose backward pass is libtorch's)
//!     passes/compiled_layer.rs -> autocast.rs: the products of any op in a 16-bit type
//! ```

pub(crate) mod activation;
pub(crate) mod aten;
pub(crate) mod attention;
pub(crate) mod autocast;
pub(crate) mod builder;
pub(crate) mod by_autograd;
pub(crate) mod constant;
pub(crate) mod custom;
pub(crate) mod helpers;
pub(crate) mod lower;
pub(crate) mod norm;
pub(crate) mod shape;
pub(crate) mod weighted;
