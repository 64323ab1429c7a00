//! An array whose first dimension counts samples. Each sample is read in place.

use super::element::Element;
use super::spool::{Spool, Store};
use crate::DataError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::Tensor;

/// Samples of one shape at equal distances in a file or in memory.
#[derive(Clone, Debug)]
pub(super) struct ArrayColumn {
    /// The path that errors name.
    path: PathBuf,
    store: Arc<Store>,
    layout: Layout,
    samples: u64,
}

/// The place and the type of samples.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) element: Element,
    pub(super) big_endian: bool,
    /// The shape of one sample.
    pub(super) shape: Vec<u64>,
    /// The place of the first sample, in bytes.
    pub(super) start: u64,
    /// The bytes from one sample to the next. `None` if samples follow each other closely.
    pub(super) stride: Option<u64>,
}

impl Layout {
    /// Makes a layout of closely packed samples from the beginning on.
    pub(super) fn packed(element: Element, shape: &[u64]) -> Self {
        Layout { element, big_endian: false, shape: shape.to_vec(), start: 0, stride: None }
    }

    /// Returns the bytes of one sample, if the number does not overflow.
    fn sample_bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.element.size(), |product, size| product.checked_mul(*size))
    }
}

impl ArrayColumn {
    /// Makes a column. Checks that the store holds what the layout promises.
    pub(super) fn new(
        path: &Path,
        store: Arc<Store>,
        layout: Layout,
        samples: u64,
    ) -> Result<Self, DataError> {
        let shape = &layout.shape;
        let error = |problem: String| DataError::file(path, problem);
        let size = layout.sample_bytes().filter(|size| i64::try_from(*size).is_ok());
        let size = size.ok_or_else(|| {
            error(format!("a sample of shape {shape:?} is larger than any memory"))
        })?;
        if size == 0 {
            return Err(error(format!("a sample of shape {shape:?} has no elements")));
        }
        let span = |stride: u64| {
            samples
                .saturating_sub(1)
                .checked_mul(stride)?
                .checked_add(size)?
                .checked_add(layout.start)
        };
        let end =
            if samples == 0 { Some(layout.start) } else { span(layout.stride.unwrap_or(size)) };
        let found = store.length();
        if end.is_none_or(|end| end > found) {
            let end = end.map_or_else(|| "more than any file has".into(), |end| end.to_string());
            let problem = format!(
                "cut short: {samples} samples of shape {shape:?} need {end} bytes, there are \
                 {found}"
            );
            return Err(error(problem));
        }
        Ok(ArrayColumn { path: path.to_path_buf(), store, layout, samples })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the samples with these numbers as one tensor.
    pub(super) fn rows(&self, numbers: &[i64]) -> Result<Tensor, DataError> {
        let error = |problem: String| DataError::file(&self.path, problem);
        let Layout { element, big_endian, shape, start, stride } = &self.layout;
        let size = self.layout.sample_bytes().unwrap_or(0);
        let mut bytes = Vec::new();
        let total = (size as usize)
            .checked_mul(numbers.len())
            .filter(|total| bytes.try_reserve_exact(*total).is_ok());
        bytes.resize(
            total.ok_or_else(|| error(format!("no memory for {} samples", numbers.len())))?,
            0,
        );
        for (number, sample) in numbers.iter().zip(bytes.chunks_exact_mut(size.max(1) as usize)) {
            let known = u64::try_from(*number).ok().filter(|number| *number < self.samples);
            let number = known
                .ok_or_else(|| error(format!("no sample {number}; it holds {}", self.samples)))?;
            let at = start + number * stride.unwrap_or(size);
            self.store
                .read(at, sample)
                .map_err(|e| error(format!("sample {number}: {e}; has the file changed?")))?;
        }
        let bytes = element.decode(bytes, *big_endian).map_err(error)?;
        let sizes: Vec<i64> = [numbers.len() as i64]
            .into_iter()
            .chain(shape.iter().map(|size| size.cast_signed()))
            .collect();
        Ok(tensor::payload::from_bytes(element.dtype(), &sizes, bytes.into())?)
    }
}

/// Writes samples into an [`ArrayColumn`]: rows of numbers that all have the shape of the first
/// one.
pub(super) struct ColumnWriter {
    element: Element,
    spool: Spool,
    shape: Option<Vec<u64>>,
    samples: u64,
    row: Vec<u8>,
}

impl ColumnWriter {
    pub(super) fn new(element: Element) -> Self {
        ColumnWriter { element, spool: Spool::new(), shape: None, samples: 0, row: Vec::new() }
    }

    /// Appends a sample. Errors do not name its place.
    pub(super) fn push(&mut self, numbers: &[f64], shape: &[u64]) -> Result<(), DataError> {
        let first = self.shape.get_or_insert_with(|| shape.to_vec());
        if first != shape {
            let problem = format!("a sample of shape {shape:?}, but those before have {first:?}");
            return Err(DataError::Usage(problem));
        }
        self.row.clear();
        for number in numbers {
            self.element.encode(*number, &mut self.row).map_err(DataError::Usage)?;
        }
        self.samples += 1;
        self.spool.write(&self.row)
    }

    pub(super) fn finish(self, path: &Path) -> Result<ArrayColumn, DataError> {
        let layout = Layout::packed(self.element, &self.shape.unwrap_or_else(|| vec![1]));
        ArrayColumn::new(path, Arc::new(self.spool.finish()?), layout, self.samples)
    }
}
