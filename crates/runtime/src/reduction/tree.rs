//! Sums of received tensors along the tree over a batch's microbatches.
//!
//! Sums are computed block by block, so that their terms lie in the processor's cache and each
//! tensor is read once.

use bytes::Bytes;
use layerspec::DType;
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::message::Failure;
use pipeline::replicas::{Node, Tree};
use pipeline::TensorMeta;
use std::convert::Infallible;
use std::ops::Range;

/// Bytes of a block. The sum and two terms fit in the first-level cache.
const BLOCK: usize = 8 << 10;
const FLOAT: usize = size_of::<f32>();

/// The order in which terms are added.
enum SumTree {
    /// A term, by its number.
    Term(usize),
    /// The sum of the left and the right subtree.
    Add(Box<SumTree>, Box<SumTree>),
}

/// Computes the sum of the slices at each place. Slices of shape `[0]` add nothing. If all slices
/// have that shape, the sum has it, too.
///
/// # Errors
/// The nodes are not all microbatches, or their float32 slices differ in number or length.
pub(crate) fn tree_sum(
    microbatches: u32,
    sums: &[(Node, Vec<Payload>)],
    pool: &BufferPool,
) -> Result<Vec<Payload>, Failure> {
    check_whole(microbatches, sums.iter().map(|(node, _)| *node).collect())?;
    let places = sums.first().map_or(0, |(_, slices)| slices.len());
    if let Some((node, slices)) = sums.iter().find(|(_, slices)| slices.len() != places) {
        return Err(wrong(format!("{} slices of {node:?} instead of {places}", slices.len())));
    }
    (0..places).map(|place| sum_of_place(microbatches, sums, place, pool)).collect()
}

/// Checks that the nodes cover each microbatch once.
fn check_whole(microbatches: u32, mut nodes: Vec<Node>) -> Result<(), Failure> {
    let range = |node: &Node| node.leaves(microbatches);
    if let Some(node) = nodes.iter().find(|node| node.level > u32::BITS) {
        return Err(wrong(format!("{node:?} is in no tree")));
    }
    nodes.sort_by_key(|node| range(node).start);
    let next = nodes
        .iter()
        .try_fold(0, |next, node| (range(node).start == next).then_some(range(node).end));
    match next == Some(microbatches)
        && microbatches > 0
        && nodes.iter().all(|node| !range(node).is_empty())
    {
        true => Ok(()),
        false => Err(wrong(format!("{nodes:?} are not {microbatches} microbatches"))),
    }
}

fn sum_of_place(
    microbatches: u32,
    sums: &[(Node, Vec<Payload>)],
    place: usize,
    pool: &BufferPool,
) -> Result<Payload, Failure> {
    let mut tree = Tree::new(microbatches);
    let mut terms: Vec<&Payload> = Vec::new();
    for (node, slices) in sums {
        let slice = &slices[place];
        check(slice)?;
        let leaf = (slice.meta.shape != [0]).then(|| {
            terms.push(slice);
            SumTree::Term(terms.len() - 1)
        });
        let Ok(()) = tree.put(*node, leaf, |left, right| Ok::<_, Infallible>(combine(left, right)));
    }
    let root = tree.into_root().ok_or_else(|| wrong("a tree that is not whole"))?;
    let Some((first, order)) = terms.first().zip(root) else {
        return Ok(Payload {
            meta: TensorMeta { dtype: DType::Float32, shape: vec![0] },
            bytes: Bytes::new(),
        });
    };
    if let Some(other) = terms.iter().find(|term| term.meta != first.meta) {
        return Err(wrong(format!("slices of {} and of {}", first.meta, other.meta)));
    }
    let bytes = match &order {
        SumTree::Term(only) => terms[*only].bytes.clone(),
        SumTree::Add(..) => {
            let terms: Vec<&[u8]> = terms.iter().map(|term| &term.bytes[..]).collect();
            let mut buffer = pool.get(first.bytes.len());
            fill(&order, &terms, buffer.bytes_mut());
            buffer.freeze()
        }
    };
    Ok(Payload { meta: first.meta.clone(), bytes })
}

fn check(slice: &Payload) -> Result<(), Failure> {
    let bytes = slice.meta.byte_len().and_then(|len| usize::try_from(len).ok());
    if slice.meta.dtype != DType::Float32
        || slice.meta.shape.len() != 1
        || bytes != Some(slice.bytes.len())
    {
        return Err(wrong(format!("a slice of {} in {} bytes", slice.meta, slice.bytes.len())));
    }
    Ok(())
}

fn combine(left: Option<SumTree>, right: Option<SumTree>) -> Option<SumTree> {
    match (left, right) {
        (Some(left), Some(right)) => Some(SumTree::Add(Box::new(left), Box::new(right))),
        (left, right) => left.or(right),
    }
}

fn fill(order: &SumTree, terms: &[&[u8]], sum: &mut [u8]) {
    let mut scratch = vec![0; BLOCK * order.scratch()];
    let mut from = 0;
    for block in sum.chunks_mut(BLOCK) {
        let place = from..from + block.len();
        from = place.end;
        order.fill(terms, place, block, &mut scratch);
    }
}

impl SumTree {
    /// The number of scratch blocks beside the block of the sum.
    fn scratch(&self) -> usize {
        match self {
            SumTree::Term(_) => 0,
            SumTree::Add(left, right) => match **right {
                SumTree::Term(_) => left.scratch(),
                SumTree::Add(..) => left.scratch().max(1 + right.scratch()),
            },
        }
    }

    fn fill(&self, terms: &[&[u8]], place: Range<usize>, sum: &mut [u8], scratch: &mut [u8]) {
        let term = |number: usize| &terms[number][place.clone()];
        match self {
            SumTree::Term(number) => sum.copy_from_slice(term(*number)),
            SumTree::Add(left, right) => match (&**left, &**right) {
                (SumTree::Term(left), SumTree::Term(right)) => {
                    put_sum(sum, term(*left), term(*right))
                }
                (left, SumTree::Term(right)) => {
                    left.fill(terms, place.clone(), sum, scratch);
                    add(sum, term(*right));
                }
                (left, right) => {
                    left.fill(terms, place.clone(), sum, scratch);
                    let (block, rest) = scratch.split_at_mut(BLOCK);
                    let block = &mut block[..sum.len()];
                    right.fill(terms, place.clone(), block, rest);
                    add(sum, block);
                }
            },
        }
    }
}

/// Adds two terms. Bytes have no alignment, but the compiler makes vector instructions of these
/// loops.
fn put_sum(sum: &mut [u8], left: &[u8], right: &[u8]) {
    for ((sum, left), right) in floats_mut(sum).zip(floats(left)).zip(floats(right)) {
        *sum = (left + right).to_le_bytes();
    }
}

fn add(sum: &mut [u8], term: &[u8]) {
    for (sum, term) in floats_mut(sum).zip(floats(term)) {
        *sum = (f32::from_le_bytes(*sum) + term).to_le_bytes();
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float))
}

fn floats_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; FLOAT]> {
    bytes.as_chunks_mut().0.iter_mut()
}

fn wrong(problem: impl std::fmt::Display) -> Failure {
    Failure::new(format!("sums of gradients: {problem}"))
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
