//! The memory of tensors: payloads and their slots, a pool for received bytes, and memory that two
//! processes of one machine share.
//!
//! ```text
//! payload <- pool <- shared
//! ```

pub mod payload;
pub mod pool;
pub mod shared;
