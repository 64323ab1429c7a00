//! Samples from files, and the order in which training takes them: what the crate `data` reads, the parts of a run file's
//! data, and data sets to fetch.

pub mod fetch;
mod parts;

pub use ::data::{
    Ahead, Batches, Contents, DataError, Dataset, Normalize, Numbers, Order, Role, Source, Table, Text, TextPairs,
    Tokenizer, Tokens,
};
pub use parts::Part;
pub(crate) use parts::Parts;
