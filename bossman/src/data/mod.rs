//! Samples from files, and the order in which training takes them: what the crate `data` reads, the parts of a run file's
//! data, and data sets to fetch.

pub(crate) mod atomic_file;
pub(crate) mod batch_inputs;
mod data_parts;
pub(crate) mod disk;
pub mod fetch;
pub(crate) mod fixed_batch;
pub(crate) mod loss_weights;
pub(crate) mod tensor_payload;

pub use ::data::{
    Batches, Contents, DataError, Dataset, LoadedTokenizer, Normalize, Order, Prefetcher, Role, SampleIndices, Source,
    Table, Text, TextPairs, Tokenizer,
};
pub use data_parts::Part;
pub(crate) use data_parts::Parts;
