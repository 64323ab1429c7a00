//! Sums of tensors that are sent compressed. Their terms may be compressed or not.
//!
//! Sums are computed block by block: the old residual plus all terms, whose rounding error is the
//! new residual. Only one block at a time is decoded.

use crate::reduction::compression::{
    block_bytes, encode_block, encoded_meta, put_floats, EncodedSlice, BLOCK,
};
use crate::reduction::residuals::Residual;
use layerspec::DType;
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::message::Failure;
use pipeline::replicas::{Compress, Node};
use pipeline::TensorMeta;

/// The slices of every node, one node after the other.
type NodeSlices = [(Node, Vec<Payload>)];

/// Computes the compressed sum of the slices at each place, residuals included. `residuals` has one
/// residual for each place, which the new rounding errors replace. Slices of shape `[0]` add
/// nothing. If all slices of a place have that shape, the sum has it, too, and the residual stays.
///
/// # Errors
/// The slices of the nodes differ in number or length. The residuals are then unchanged.
pub(crate) fn reduce_compressed(
    compress: Compress,
    sums: &NodeSlices,
    residuals: &mut [Residual],
    pool: &BufferPool,
) -> Result<Vec<Payload>, Failure> {
    let places: Vec<Vec<EncodedSlice<'_>>> = (0..residuals.len())
        .map(|place| terms(sums, place))
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    let each = places.iter().zip(residuals).map(|(terms, residual)| match terms.first() {
        None => Payload {
            meta: TensorMeta { dtype: DType::Float32, shape: vec![0] },
            bytes: bytes::Bytes::new(),
        },
        Some(first) => {
            let (meta, len) = encoded_meta(compress, first.len());
            let mut buffer = pool.get(len);
            fill(compress, terms, residual.begin_send(first.len()), buffer.bytes_mut());
            Payload { meta, bytes: buffer.freeze() }
        }
    });
    Ok(each.collect())
}

/// Computes the float32 sum of the slices at each place. It has no rounding error of compression.
///
/// # Errors
/// As for [`reduce_compressed`].
pub(crate) fn reduce_in_order(
    sums: &NodeSlices,
    pool: &BufferPool,
) -> Result<Vec<Payload>, Failure> {
    let places = sums.first().map_or(0, |(_, slices)| slices.len());
    let each = (0..places).map(|place| {
        let terms = terms(sums, place).map_err(wrong)?;
        let len = terms.first().map_or(0, |first| first.len());
        let meta = TensorMeta { dtype: DType::Float32, shape: vec![len as u64] };
        let mut buffer = pool.get(len * size_of::<f32>());
        let mut numbers = [0.0; BLOCK];
        for (number, bytes) in buffer.bytes_mut().chunks_mut(BLOCK * size_of::<f32>()).enumerate() {
            let numbers = &mut numbers[..bytes.len() / size_of::<f32>()];
            numbers.fill(0.0);
            terms.iter().for_each(|term| term.add(number, numbers));
            put_floats(bytes, numbers);
        }
        Ok(Payload { meta, bytes: buffer.freeze() })
    });
    each.collect()
}

/// Reads the slices of a place that are not empty, and checks that they have one length.
fn terms(sums: &NodeSlices, place: usize) -> Result<Vec<EncodedSlice<'_>>, String> {
    let mut terms: Vec<EncodedSlice<'_>> = Vec::new();
    for (node, slices) in sums {
        let slice =
            slices.get(place).ok_or_else(|| format!("{} slices of {node:?}", slices.len()))?;
        let Some(term) = EncodedSlice::read(slice)? else { continue };
        if let Some(first) = terms.first().filter(|first| first.len() != term.len()) {
            return Err(format!("slices of {} and of {} numbers", first.len(), term.len()));
        }
        terms.push(term);
    }
    Ok(terms)
}

fn fill(compress: Compress, terms: &[EncodedSlice<'_>], residual: &mut [f32], bytes: &mut [u8]) {
    let blocks = residual.chunks_mut(BLOCK).zip(bytes.chunks_mut(block_bytes(compress)));
    for (number, (numbers, bytes)) in blocks.enumerate() {
        terms.iter().for_each(|term| term.add(number, numbers));
        encode_block(compress, numbers, bytes);
    }
}

fn wrong(problem: String) -> Failure {
    Failure::new(format!("sums of gradients: {problem}"))
}

#[cfg(test)]
#[path = "compressed_tests.rs"]
mod tests;
