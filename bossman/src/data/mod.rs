//! Samples from files, and the order in which training takes them: what the crate `data` reads, the parts of a run file's
//! data, and data sets to fetch.

pub mod fetch;
mod parts;

pub use ::data::{
    Batches, Contents, DataError, Dataset, LoadedTokenizer, Normalize, Order, Prefetcher, Role, SampleIndices, Source,
    Table, Text, TextPairs, Tokenizer,
};
pub use parts::Part;
pub(crate) use parts::Parts;
