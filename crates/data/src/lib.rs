//! Reads samples from files, and sets the order in which training takes them.
//!
//! A [`Source`] names the files and their format. When it is opened, it becomes one column for each
//! input of the model and one for the target (`column.rs`). A column returns the samples of any
//! numbers as a tensor. It reads them in place from the file. A format that can only be read from
//! the beginning is copied first, and a large copy goes to a temporary file (`spool.rs`).
//! `converted_column.rs` converts the samples to the model's dtypes and shapes.
//!
//! ```text
//! source -> csv, jsonl, parquet, idx, npy, npz, safetensors, images, text, pairs
//!              |  plain_or_gzip, csv_records, spool: copies  tokens: tokenizers  element: types
//!              |  in_parallel: tokens and pictures by all cores
//!              v
//!           column (array_column, images, token_pairs) -> converted_column -> normalize, finite
//!              |
//!           batches -> shuffle, length_group -> batch    worker_files: files of workers
//!                                                        weight_source: weights in files
//! ```

mod array_column;
mod batch;
mod batches;
mod column;
mod column_places;
mod converted_column;
mod csv;
mod csv_header;
mod csv_records;
#[cfg(not(all(feature = "parquet", feature = "pictures", feature = "tokenizers")))]
mod disabled_features;
mod element;
mod endings;
mod error;
mod expected_tensor;
mod file_hash;
mod finite;
mod gzip_members;
mod idx;
mod images;
mod in_parallel;
#[cfg(feature = "pictures")]
mod jpeg_end;
mod jsonl;
mod length_group;
mod named_columns;
mod nested;
mod normalize;
mod npy;
mod npz;
mod pairs;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_decimal;
#[cfg(feature = "parquet")]
mod parquet_footer;
#[cfg(feature = "pictures")]
mod picture;
mod picture_files;
mod place;
mod plain_or_gzip;
mod safetensors;
mod shown;
mod shuffle;
mod source;
mod spool;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod token_pairs;
mod tokens;
mod unknown_tokens;
#[cfg(feature = "tokenizers")]
mod vocabulary;
mod weight_source;
mod worker_files;

pub use batch::{Batch, Contents, SampleIndices, Variables};
pub use batches::{Batches, Prefetcher};
pub use error::DataError;
pub use file_hash::{DataHash, FileHash};
pub use named_columns::{
    ColumnsSource, ColumnsSpec, InputColumns, LearnedColumn, LearnedTable, Missing, TargetColumn,
    Transform,
};
pub use normalize::Normalize;
pub use pairs::TextPairs;
pub use shuffle::Order;
pub use source::Source;
pub use table::Table;
pub use text::Text;
pub use token_pairs::Role;
pub use tokens::{LoadedTokenizer, Tokenizer};
pub use weight_source::{HashedWeight, WeightPart, WeightSource};

/// Returns the red, green and blue bytes of a PNG or JPEG file, pixel by pixel.
///
/// # Errors
/// The file is not such a picture, or the program was built without pictures.
pub fn read_rgb(file: &Path) -> Result<Vec<u8>, DataError> {
    let (_, _, pixels) =
        picture::decode(file, 3).map_err(|problem| DataError::file(file, problem))?;
    Ok(pixels)
}

use column::{Column, Columns};
use converted_column::ConvertedColumn;
#[cfg(not(feature = "parquet"))]
use disabled_features::parquet;
#[cfg(not(feature = "pictures"))]
use disabled_features::picture;
#[cfg(not(feature = "tokenizers"))]
use disabled_features::vocabulary;
use expected_tensor::ExpectedTensor;
use layerspec::{DType, LayerGraph};
use pipeline::LossSpec;
use shuffle::SplitSubset;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tch::Tensor;
use worker_files::WorkerFiles;

/// Samples by number, in memory or in place in files.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The model's inputs, in the model's order.
    inputs: Vec<(String, ConvertedColumn)>,
    target: Option<ConvertedColumn>,
    samples: u64,
    /// The samples in use. `None` is all.
    subset: Option<Arc<SplitSubset>>,
    opened: Arc<Opened>,
    /// Set if workers read the data from their own files.
    worker_files: Option<Arc<WorkerFiles>>,
}

/// The opened source with its expected tensors and settings.
#[derive(Debug)]
struct Opened {
    source: Source,
    inputs: Vec<ExpectedTensor>,
    target: Option<ExpectedTensor>,
    normalize: Option<Normalize>,
    /// Whether targets are classes, of which some may be ignored.
    has_classes: bool,
}

impl Dataset {
    /// Opens a file like [`Dataset::open`]. Its ending names the format.
    pub fn read(path: &Path, graph: &LayerGraph, loss: &LossSpec) -> Result<Self, DataError> {
        Self::open(&Source::File(path.to_path_buf()), graph, loss, None)
    }

    /// Opens a source for a model and a loss.
    ///
    /// # Errors
    /// A file cannot be read or does not fit the model. The error names line and column if the file
    /// has them.
    pub fn open(
        source: &Source,
        graph: &LayerGraph,
        loss: &LossSpec,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        Self::opened(source, graph, Some(loss), normalize)
    }

    /// Opens a source like [`Dataset::open`], but for the inputs alone: the files need no target.
    pub fn open_inputs(
        source: &Source,
        graph: &LayerGraph,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        Self::opened(source, graph, None, normalize)
    }

    /// Opens a source like [`Dataset::open_inputs`]. A CSV file may have columns of targets, as the
    /// data to train on has.
    pub fn open_with_or_without_targets(
        source: &Source,
        graph: &LayerGraph,
        loss: &LossSpec,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        let has_targets = match (source, graph.inputs()) {
            (Source::File(path), [input]) if endings::is_csv(path) => {
                csv::has_targets(path, &ExpectedTensor::value(graph, *input), &target(graph, loss))
            }
            _ => false,
        };
        Self::opened(source, graph, has_targets.then_some(loss), normalize)
    }

    fn opened(
        source: &Source,
        graph: &LayerGraph,
        loss: Option<&LossSpec>,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        let error = |problem: String| DataError::file(source.path(), problem);
        let inputs: Vec<ExpectedTensor> =
            graph.inputs().iter().map(|id| ExpectedTensor::value(graph, *id)).collect();
        let target = loss.map(|loss| target(graph, loss));
        let ignored = loss.and_then(LossSpec::classes).map(|classes| classes.ignore_index);
        if let (Source::Pairs(_), Some(other)) =
            (source, ignored.filter(|class| *class != token_pairs::IGNORED))
        {
            let expected = token_pairs::IGNORED;
            let problem = format!(
                "pairs have the class {expected} at padding, but the loss has `ignore_index: \
                 {other}`; leave it out"
            );
            return Err(error(problem));
        }
        let has_classes = loss.is_some_and(|loss| loss.classes().is_some());
        Self::of(Opened {
            source: source.clone(),
            inputs,
            target,
            normalize: normalize.cloned(),
            has_classes,
        })
    }

    fn of(opened: Opened) -> Result<Self, DataError> {
        let Opened { source, inputs, target, normalize, .. } = &opened;
        let (normalize, error) =
            (normalize.as_ref(), |problem: String| DataError::file(source.path(), problem));
        let first =
            inputs.first().ok_or_else(|| DataError::Usage("the model has no input".into()))?;
        let normalized = normalize.map(|normalize| normalize.input.as_ref().unwrap_or(&first.name));
        if let Some(unknown) =
            normalized.filter(|name| !inputs.iter().any(|input| input.name == **name))
        {
            return Err(error(format!(
                "`normalize` names `{unknown}`, which is no input of the model"
            )));
        }
        let columns = source.open(inputs, target.as_ref())?;
        if columns.inputs.first().is_none_or(|column| column.samples() == 0) {
            return Err(error("it holds no samples".into()));
        }
        let fit = |column: Column, wanted: &ExpectedTensor, normalize: Option<&Normalize>| {
            let path = column.path().unwrap_or_else(|| source.path()).to_path_buf();
            ConvertedColumn::new(column, wanted, normalize)
                .map_err(|problem| DataError::file(&path, problem))
        };
        let Columns { inputs: found, target: labels } = columns;
        let fit_input = |(column, wanted): (Column, &ExpectedTensor)| {
            let normalize = normalize.filter(|_| normalized == Some(&wanted.name));
            Ok((wanted.name.clone(), fit(column, wanted, normalize)?))
        };
        let inputs =
            found.into_iter().zip(inputs).map(fit_input).collect::<Result<Vec<_>, DataError>>()?;
        let target = labels
            .zip(target.as_ref())
            .map(|(labels, wanted)| fit(labels, wanted, None))
            .transpose()?;
        let (what, samples) = match (&target, inputs.first()) {
            (Some(target), _) => ("the target", target.samples()),
            (None, Some((name, input))) => (name.as_str(), input.samples()),
            (None, None) => ("nothing", 0),
        };
        if let Some((name, input)) = inputs.iter().find(|(_, input)| input.samples() != samples) {
            return Err(error(format!(
                "`{name}` has {} samples but {what} has {samples}",
                input.samples()
            )));
        }
        Ok(Dataset {
            inputs,
            target,
            samples,
            subset: None,
            opened: Arc::new(opened),
            worker_files: None,
        })
    }

    /// Returns an input of the samples in a part of a batch.
    ///
    /// # Errors
    /// A file cannot be read any more, or the model has no such input.
    pub fn input(
        &self,
        place: usize,
        batch: &[i64],
        part: Range<usize>,
    ) -> Result<Tensor, DataError> {
        let missing =
            || DataError::Usage(format!("no input {place}; there are {}", self.inputs.len()));
        let (_, input) = self.inputs.get(place).ok_or_else(missing)?;
        input.check_size(batch, part.len())?;
        input.rows(batch, part)
    }

    /// Returns the targets of the samples in a part of a batch.
    ///
    /// # Errors
    /// A file cannot be read any more, or the data was opened without its target.
    pub fn target(&self, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        let missing = || DataError::Usage("the data was opened for its inputs alone".into());
        let target = self.target.as_ref().ok_or_else(missing)?;
        target.check_size(batch, part.len())?;
        target.rows(batch, part)
    }

    /// Returns, for each input of the model, the sizes of a batch of these samples.
    ///
    /// # Errors
    /// A sample does not exist.
    pub fn sizes(&self, batch: &[i64]) -> Result<Vec<Vec<u64>>, DataError> {
        let sizes = |(_, input): &(String, ConvertedColumn)| {
            let mut sizes = vec![batch.len() as u64];
            sizes.extend(input.shape_in_batch(batch)?);
            Ok(sizes)
        };
        self.inputs.iter().map(sizes).collect()
    }

    /// Splits off a share of the samples for validation. Returns the rest and the share. The choice
    /// depends only on the seed and the sample numbers. Each part has one sample at least.
    ///
    /// # Errors
    /// There are fewer than two samples, or the data is already split.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self), DataError> {
        if self.subset.is_some() {
            return Err(DataError::Usage("the data is split already".into()));
        }
        if self.samples < 2 {
            let problem = format!(
                "a split needs two samples or more, not {}; add some (a shorter `sequence_length` \
                 makes more of a text)",
                self.samples
            );
            return Err(DataError::Usage(problem));
        }
        let [rest, drawn] = SplitSubset::parts(self.samples, seed, share).map(Arc::new);
        Ok((
            Dataset { subset: Some(rest), ..self.clone() },
            Dataset { subset: Some(drawn), ..self },
        ))
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.subset.as_ref().map_or(self.samples, |part| part.samples)
    }

    /// Reads the samples with these numbers as a batch.
    ///
    /// # Errors
    /// A file cannot be read any more, or the data was opened without its target.
    pub fn batch(&self, numbers: &[i64]) -> Result<Batch, DataError> {
        self.batch_before(numbers, &[])
    }

    /// Same as [`Dataset::batch`], with the numbers of the batch that is likely to come next.
    pub(crate) fn batch_before(&self, numbers: &[i64], next: &[i64]) -> Result<Batch, DataError> {
        let batch = self.numbers(numbers)?;
        let target = || self.target(&batch, 0..batch.len());
        if self.worker_files.is_some() {
            let target = self.opened.has_classes.then(target).transpose()?;
            let (data, next) = (self.clone(), self.numbers(next)?);
            return Ok(Batch::of_indices(SampleIndices { data, batch, next, target }));
        }
        let (x, variables) = self.of_whole(&batch)?;
        Ok(Batch::new(&x, &target()?).with(variables))
    }

    /// Reads the inputs of the samples with these numbers: the model's first input, and the others.
    pub fn inputs(&self, numbers: &[i64]) -> Result<(Tensor, Variables), DataError> {
        self.of_whole(&self.numbers(numbers)?)
    }

    /// Returns the number of a sample in the whole data set, of which this may be a part.
    pub fn number(&self, number: i64) -> Option<i64> {
        match &self.subset {
            None => Some(number),
            Some(part) => part.number(number),
        }
    }

    /// Returns the number of tokens of a sample. Returns `None` if all samples are alike or the
    /// sample does not exist.
    fn length(&self, number: i64) -> Option<u64> {
        self.inputs.first()?.1.length(self.number(number)?)
    }

    fn numbers(&self, numbers: &[i64]) -> Result<Vec<i64>, DataError> {
        let unknown =
            |number| DataError::Usage(format!("no sample {number}; there are {}", self.samples()));
        numbers.iter().map(|number| self.number(*number).ok_or_else(|| unknown(*number))).collect()
    }

    fn of_whole(&self, numbers: &[i64]) -> Result<(Tensor, Variables), DataError> {
        let mut inputs = self.inputs.iter();
        let (_, x) =
            inputs.next().ok_or_else(|| DataError::Usage("the model has no input".into()))?;
        let mut variables = Variables::new();
        for (name, input) in inputs {
            variables = variables.with(name, &input.rows(numbers, 0..numbers.len())?);
        }
        Ok((x.rows(numbers, 0..numbers.len())?, variables))
    }
}

/// Returns the tensor that the loss expects as its target.
fn target(graph: &LayerGraph, loss: &LossSpec) -> ExpectedTensor {
    let name = "target".to_string();
    match (loss.classes(), graph.outputs().first()) {
        (Some(_), _) => {
            ExpectedTensor { name, dtype: DType::Int64, shape: None, num_embeddings: None }
        }
        (None, Some(output)) => ExpectedTensor { name, ..ExpectedTensor::value(graph, *output) },
        (None, None) => {
            ExpectedTensor { name, dtype: DType::Float32, shape: None, num_embeddings: None }
        }
    }
}
