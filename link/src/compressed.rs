//! Sums of tensors that came compressed or not, which leave compressed.
//!
//! Block by block, from the residual of the last time to that of this one: nothing is unpacked but a block at a time.

use crate::compression::{block_bytes, meta, put, Coded, BLOCK};
use crate::payload::Payload;
use crate::pool::Pool;
use crate::residuals::Residual;
use layerspec::DType;
use pipeline::message::Failure;
use pipeline::replicas::{Compress, Node};
use pipeline::TensorMeta;

/// The slices of every node, one node after the other.
type Sums = [(Node, Vec<Payload>)];

/// The sums of the slices, one for each place, with what was lost the last time; `residuals` says how many places there are,
/// and takes what is lost now. Terms of shape `[0]` count for nothing, and where no other are, so is the sum, and its
/// residual waits.
///
/// # Errors
/// What came is not as many slices of each node, or not equally long ones; the residuals are then as they were.
pub(crate) fn sum_compressed(
    compress: Compress,
    sums: &Sums,
    residuals: &mut [Residual],
    pool: &Pool,
) -> Result<Vec<Payload>, Failure> {
    let places: Vec<Vec<Coded<'_>>> =
        (0..residuals.len()).map(|place| terms(sums, place)).collect::<Result<_, _>>().map_err(wrong)?;
    let each = places.iter().zip(residuals).map(|(terms, residual)| match terms.first() {
        None => Payload { meta: TensorMeta { dtype: DType::Float32, shape: vec![0] }, bytes: bytes::Bytes::new() },
        Some(first) => {
            let (meta, len) = meta(compress, first.len());
            let mut buffer = pool.get(len);
            fill(compress, terms, residual.take(first.len()), buffer.as_mut());
            Payload { meta, bytes: buffer.freeze() }
        }
    });
    Ok(each.collect())
}

/// The gradients of a place that there are, all equally long.
fn terms(sums: &Sums, place: usize) -> Result<Vec<Coded<'_>>, String> {
    let mut terms: Vec<Coded<'_>> = Vec::new();
    for (node, slices) in sums {
        let slice = slices.get(place).ok_or_else(|| format!("{} slices of {node:?}", slices.len()))?;
        let Some(term) = Coded::read(slice)? else { continue };
        if let Some(first) = terms.first().filter(|first| first.len() != term.len()) {
            return Err(format!("slices of {} and of {} numbers", first.len(), term.len()));
        }
        terms.push(term);
    }
    Ok(terms)
}

fn fill(compress: Compress, terms: &[Coded<'_>], residual: &mut [f32], bytes: &mut [u8]) {
    let blocks = residual.chunks_mut(BLOCK).zip(bytes.chunks_mut(block_bytes(compress)));
    for (number, (numbers, bytes)) in blocks.enumerate() {
        terms.iter().for_each(|term| term.add(number, numbers));
        put(compress, numbers, bytes);
    }
}

fn wrong(problem: String) -> Failure {
    Failure::new(format!("compressed gradients: {problem}"))
}

#[cfg(test)]
#[path = "compressed_tests.rs"]
mod tests;
