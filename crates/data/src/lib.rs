//! Samples from files, and the order in which training takes them.
//!
//! A [`Source`] says which files and of which format. Opened, it is a column for each input of the model and one for the
//! target (`column.rs`), each of which gives the samples of any numbers as a tensor: read where they lie in the file, or,
//! for formats that are read from the beginning only, from a copy that goes to a temporary file when it is large
//! (`spool.rs`). What columns give is brought to the model's dtypes and shapes (`fit.rs`).

#[cfg(not(all(feature = "parquet", feature = "pictures", feature = "tokenizers")))]
mod absent;
mod batch;
mod batches;
mod column;
mod columns;
mod csv;
mod element;
mod error;
mod finite;
mod fit;
mod grouped;
mod idx;
mod images;
mod jsonl;
mod names;
mod nested;
mod normalize;
mod npy;
mod npz;
mod pairs;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "pictures")]
mod picture;
mod placed;
mod plain;
mod ragged;
mod safetensors;
mod shuffle;
mod source;
mod spool;
mod stored;
#[cfg(test)]
mod tests;
mod text;
mod tokens;
#[cfg(feature = "tokenizers")]
mod vocabulary;
mod wanted;

pub use batch::{Batch, Contents, SampleIndices, Variables};
pub use batches::{Batches, Prefetcher};
pub use error::DataError;
pub use names::Table;
pub use normalize::Normalize;
pub use pairs::TextPairs;
pub use ragged::Role;
pub use shuffle::Order;
pub use source::Source;
pub use text::Text;
pub use tokens::{LoadedTokenizer, Tokenizer};

/// The red, green and blue bytes of a PNG or JPEG file, pixel by pixel.
///
/// # Errors
/// The file is not such a picture, or the program was built without pictures.
pub fn read_rgb(file: &Path) -> Result<Vec<u8>, DataError> {
    let (_, _, pixels) = picture::decode(file, 3).map_err(|problem| DataError::file(file, problem))?;
    Ok(pixels)
}

#[cfg(not(feature = "parquet"))]
use absent::parquet;
#[cfg(not(feature = "pictures"))]
use absent::picture;
#[cfg(not(feature = "tokenizers"))]
use absent::vocabulary;
use column::Column;
use columns::Columns;
use fit::ConvertedColumn;
use layerspec::{DType, LayerGraph};
use pipeline::LossSpec;
use placed::WorkerFiles;
use shuffle::SplitSubset;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tch::Tensor;
use wanted::ExpectedTensor;

/// Samples by number, in memory or where they lie in files.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The model's inputs, in its order.
    inputs: Vec<(String, ConvertedColumn)>,
    target: Option<ConvertedColumn>,
    samples: u64,
    /// The samples that count; nothing for all.
    subset: Option<Arc<SplitSubset>>,
    opened: Arc<Opened>,
    /// Where workers read it from files of their own.
    worker_files: Option<Arc<WorkerFiles>>,
}

/// What was opened, and as what.
#[derive(Debug)]
struct Opened {
    source: Source,
    inputs: Vec<ExpectedTensor>,
    target: Option<ExpectedTensor>,
    normalize: Option<Normalize>,
    /// Targets are classes, of which some may be ignored.
    has_classes: bool,
}

impl Dataset {
    /// Opens a file whose ending tells its format, as [`Dataset::open`] does.
    pub fn read(path: &Path, graph: &LayerGraph, loss: &LossSpec) -> Result<Self, DataError> {
        Self::open(&Source::File(path.to_path_buf()), graph, loss, None)
    }

    /// Opens a source, as the model and the loss need it.
    ///
    /// # Errors
    /// A file cannot be read or does not fit the model; with line and column where it has such.
    pub fn open(
        source: &Source,
        graph: &LayerGraph,
        loss: &LossSpec,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        Self::opened(source, graph, Some(loss), normalize)
    }

    /// As [`Dataset::open`], for the inputs alone: the files need no target.
    pub fn open_inputs(source: &Source, graph: &LayerGraph, normalize: Option<&Normalize>) -> Result<Self, DataError> {
        Self::opened(source, graph, None, normalize)
    }

    fn opened(
        source: &Source,
        graph: &LayerGraph,
        loss: Option<&LossSpec>,
        normalize: Option<&Normalize>,
    ) -> Result<Self, DataError> {
        let error = |problem: String| DataError::file(source.path(), problem);
        let inputs: Vec<ExpectedTensor> = graph.inputs().iter().map(|id| ExpectedTensor::value(graph, *id)).collect();
        let target = loss.map(|loss| target(graph, loss));
        let ignored = loss.and_then(LossSpec::classes).map(|classes| classes.ignore_index);
        if let (Source::Pairs(_), Some(other)) = (source, ignored.filter(|class| *class != ragged::IGNORED)) {
            let expected = ragged::IGNORED;
            let problem = format!(
                "pairs have the class {expected} at padding, but the loss has `ignore_index: {other}`; leave it out"
            );
            return Err(error(problem));
        }
        let has_classes = loss.is_some_and(|loss| loss.classes().is_some());
        Self::of(Opened { source: source.clone(), inputs, target, normalize: normalize.cloned(), has_classes })
    }

    fn of(opened: Opened) -> Result<Self, DataError> {
        let Opened { source, inputs, target, normalize, .. } = &opened;
        let (normalize, error) = (normalize.as_ref(), |problem: String| DataError::file(source.path(), problem));
        let first = inputs.first().ok_or_else(|| DataError::Usage("the model has no input".into()))?;
        let normalized = normalize.map(|normalize| normalize.input.as_ref().unwrap_or(&first.name));
        if let Some(unknown) = normalized.filter(|name| !inputs.iter().any(|input| input.name == **name)) {
            return Err(error(format!("`normalize` names `{unknown}`, which is no input of the model")));
        }
        let columns = source.open(inputs, target.as_ref())?;
        if columns.inputs.first().is_none_or(|column| column.samples() == 0) {
            return Err(error("it holds no samples".into()));
        }
        let fit = |column: Column, wanted: &ExpectedTensor, normalize: Option<&Normalize>| {
            let path = column.path().unwrap_or_else(|| source.path()).to_path_buf();
            ConvertedColumn::new(column, wanted, normalize).map_err(|problem| DataError::file(&path, problem))
        };
        let Columns { inputs: found, target: labels } = columns;
        let fit_input = |(column, wanted): (Column, &ExpectedTensor)| {
            let normalize = normalize.filter(|_| normalized == Some(&wanted.name));
            Ok((wanted.name.clone(), fit(column, wanted, normalize)?))
        };
        let inputs = found.into_iter().zip(inputs).map(fit_input).collect::<Result<Vec<_>, DataError>>()?;
        let target = labels.zip(target.as_ref()).map(|(labels, wanted)| fit(labels, wanted, None)).transpose()?;
        let (what, samples) = match (&target, inputs.first()) {
            (Some(target), _) => ("the target", target.samples()),
            (None, Some((name, input))) => (name.as_str(), input.samples()),
            (None, None) => ("nothing", 0),
        };
        if let Some((name, input)) = inputs.iter().find(|(_, input)| input.samples() != samples) {
            return Err(error(format!("`{name}` has {} samples but {what} has {samples}", input.samples())));
        }
        Ok(Dataset { inputs, target, samples, subset: None, opened: Arc::new(opened), worker_files: None })
    }

    /// An input of some samples, whose numbers are a part of a batch's.
    ///
    /// # Errors
    /// A file cannot be read any more, or there is no such input.
    pub fn input(&self, place: usize, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        let missing = || DataError::Usage(format!("no input {place}; there are {}", self.inputs.len()));
        let (_, input) = self.inputs.get(place).ok_or_else(missing)?;
        input.check_size(batch, part.len())?;
        input.rows(batch, part)
    }

    /// The targets of some samples, whose numbers are a part of a batch's.
    ///
    /// # Errors
    /// A file cannot be read any more, or the data was opened without its target.
    pub fn target(&self, batch: &[i64], part: Range<usize>) -> Result<Tensor, DataError> {
        let missing = || DataError::Usage("the data was opened for its inputs alone".into());
        let target = self.target.as_ref().ok_or_else(missing)?;
        target.check_size(batch, part.len())?;
        target.rows(batch, part)
    }

    /// For each input of the model the sizes of a batch of these samples, as it will be read.
    ///
    /// # Errors
    /// There is no such sample.
    pub fn sizes(&self, batch: &[i64]) -> Result<Vec<Vec<u64>>, DataError> {
        let sizes = |(_, input): &(String, ConvertedColumn)| {
            let mut sizes = vec![batch.len() as u64];
            sizes.extend(input.shape_in_batch(batch)?);
            Ok(sizes)
        };
        self.inputs.iter().map(sizes).collect()
    }

    /// Takes a share of the samples apart for validation: what is left, and the share. Which samples depends on the seed
    /// and their numbers only.
    ///
    /// # Errors
    /// One of the two would be empty.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self), DataError> {
        let part = |drawn| Arc::new(SplitSubset::new(self.samples, seed, share, drawn));
        let (rest, drawn) = (part(false), part(true));
        if self.subset.is_some() || rest.samples == 0 || drawn.samples == 0 {
            let problem = format!("a split of {share} leaves {} of {} samples to train on", rest.samples, self.samples);
            return Err(DataError::Usage(problem));
        }
        Ok((Dataset { subset: Some(rest), ..self.clone() }, Dataset { subset: Some(drawn), ..self }))
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.subset.as_ref().map_or(self.samples, |part| part.samples)
    }

    /// The samples with these numbers, as a batch.
    ///
    /// # Errors
    /// A file cannot be read any more, or the data was opened without its target.
    pub fn batch(&self, numbers: &[i64]) -> Result<Batch, DataError> {
        self.batch_before(numbers, &[])
    }

    /// The same, where the batch of these other numbers is likely to come next.
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

    /// The inputs of the samples with these numbers: the model's first, and the others.
    pub fn inputs(&self, numbers: &[i64]) -> Result<(Tensor, Variables), DataError> {
        self.of_whole(&self.numbers(numbers)?)
    }

    /// The number of a sample in the whole of which this may be a part.
    pub fn number(&self, number: i64) -> Option<i64> {
        match &self.subset {
            None => Some(number),
            Some(part) => part.number(number),
        }
    }

    /// Tokens of a sample; nothing where all samples are alike, or there is no such sample.
    fn length(&self, number: i64) -> Option<u64> {
        self.inputs.first()?.1.length(self.number(number)?)
    }

    fn numbers(&self, numbers: &[i64]) -> Result<Vec<i64>, DataError> {
        let unknown = |number| DataError::Usage(format!("no sample {number}; there are {}", self.samples()));
        numbers.iter().map(|number| self.number(*number).ok_or_else(|| unknown(*number))).collect()
    }

    fn of_whole(&self, numbers: &[i64]) -> Result<(Tensor, Variables), DataError> {
        let mut inputs = self.inputs.iter();
        let (_, x) = inputs.next().ok_or_else(|| DataError::Usage("the model has no input".into()))?;
        let mut variables = Variables::new();
        for (name, input) in inputs {
            variables = variables.with(name, &input.rows(numbers, 0..numbers.len())?);
        }
        Ok((x.rows(numbers, 0..numbers.len())?, variables))
    }
}

/// What the loss takes.
fn target(graph: &LayerGraph, loss: &LossSpec) -> ExpectedTensor {
    let name = "target".to_string();
    match (loss.classes(), graph.outputs().first()) {
        (Some(_), _) => ExpectedTensor { name, dtype: DType::Int64, shape: None, num_embeddings: None },
        (None, Some(output)) => ExpectedTensor { name, ..ExpectedTensor::value(graph, *output) },
        (None, None) => ExpectedTensor { name, dtype: DType::Float32, shape: None, num_embeddings: None },
    }
}
