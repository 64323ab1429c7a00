//! Samples from files, and the order in which training takes them: what the crate `data` reads, the parts of a run file's
//! data, and data sets to fetch.

pub mod fetch;
mod parts;

pub use ::data::{
    Ahead, Batches, DataError, Dataset, Normalize, Order, Role, Source, Table, Text, TextPairs, Tokenizer, Tokens,
};
pub use parts::Part;
pub(crate) use parts::Parts;
