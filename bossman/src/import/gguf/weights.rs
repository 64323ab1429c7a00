//! Writes the tensors of a GGUF file as safetensors in single precision, one after the other.

use super::container::Gguf;
use super::llama::{Renamed, RowOrder};
use crate::weights::safetensors_files::write_views;
use crate::BossManError;
use parking_lot::Mutex;
use safetensors::tensor::{Dtype, View};
use std::borrow::Cow;
use std::path::Path;

/// A tensor that is read when it is written, so that one at a time is in memory.
struct Decoded<'a> {
    gguf: &'a Gguf,
    tensor: Renamed<'a>,
    /// The first error. The library asks for bytes, and takes no error.
    problem: &'a Mutex<Option<BossManError>>,
}

impl Decoded<'_> {
    fn bytes(&self) -> Result<Vec<u8>, BossManError> {
        let Renamed { entry, rows, .. } = &self.tensor;
        let numbers = in_order(self.gguf.numbers(entry)?, &entry.shape, *rows);
        Ok(numbers.into_iter().flat_map(f32::to_le_bytes).collect())
    }
}

impl View for Decoded<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.entry.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = self.bytes().unwrap_or_else(|problem| {
            self.problem.lock().get_or_insert(problem);
            vec![0; self.data_len()]
        });
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.entry.numbers() * size_of::<f32>()
    }
}

/// Writes a file of all tensors.
///
/// # Errors
/// One of the files cannot be read or written.
pub(super) fn write(
    gguf: &Gguf,
    tensors: Vec<Renamed<'_>>,
    path: &Path,
) -> Result<(), BossManError> {
    let problem = Mutex::new(None);
    let views = tensors
        .into_iter()
        .map(|tensor| (tensor.name.clone(), Decoded { gguf, tensor, problem: &problem }));
    write_views(path, views.collect(), Some("pt"))?;
    problem.into_inner().map_or(Ok(()), Err)
}

/// The numbers with their rows in transformers' order.
fn in_order(numbers: Vec<f32>, shape: &[usize], rows: RowOrder) -> Vec<f32> {
    let RowOrder::Paired { heads } = rows else { return numbers };
    let count = shape.first().copied().unwrap_or(0);
    let (head, row) = (count / heads.max(1), numbers.len() / count.max(1));
    let mut ordered = Vec::with_capacity(numbers.len());
    for of_head in numbers.chunks_exact((head * row).max(1)) {
        for first in 0..2 {
            let pairs = of_head.chunks_exact((2 * row).max(1));
            ordered.extend(pairs.flat_map(|pair| pair.iter().skip(first * row).take(row)));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_head_are_put_back() {
        let numbers: Vec<f32> = (0..16u8).map(f32::from).collect();
        assert_eq!(in_order(numbers.clone(), &[8, 2], RowOrder::Same), numbers);
        let found = in_order(numbers, &[8, 2], RowOrder::Paired { heads: 2 });
        let rows = [0, 2, 1, 3, 4, 6, 5, 7];
        let expected: Vec<f32> =
            rows.iter().flat_map(|row: &u8| [2 * row, 2 * row + 1]).map(f32::from).collect();
        assert_eq!(found, expected);
    }
}
