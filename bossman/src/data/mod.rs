//! Data: the parts of a run file's data, batches as microbatches, and data sets to fetch. The crate
//! `data` reads the files.
//!
//! ```text
//! data_parts: train, validation, test -> crate data      fetch: data sets with npm or pip
//! batch_inputs -> fixed_batch, loss_weights, tensor_payload    a batch as microbatches
//! read_ahead                                                   batches before they are needed
//! worker_data_sets                                             data that workers read
//! atomic_file, disk                                            files that appear whole
//! bounded_file                                                 files of strangers, up to a limit
//! ```

pub(crate) mod atomic_file;
pub(crate) mod batch_inputs;
pub(crate) mod bounded_file;
pub(crate) mod disk;
pub mod fetch;
pub(crate) mod fixed_batch;
pub(crate) mod loss_weights;
pub(crate) mod read_ahead;
pub(crate) mod tensor_payload;
pub(crate) mod worker_data_sets;

pub use crate::run_file::data_parts::Part;
pub use ::data::{
    Batches, ColumnsSource, ColumnsSpec, Contents, DataError, Dataset, InputColumns, LearnedColumn,
    LearnedTable, LoadedTokenizer, Missing, Normalize, Order, Prefetcher, Role, SampleIndices,
    Source, Table, TargetColumn, Text, TextPairs, Tokenizer, Transform,
};
