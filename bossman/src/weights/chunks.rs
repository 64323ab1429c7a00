//! Groups of tensors that are read, and travel, together.

use pipeline::TensorMeta;

/// The bytes of a group. It is large enough that waiting for each costs little, and a few fit into
/// the memory that the boss may take.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;

/// Groups items in their order. A group has at most [`CHUNK_BYTES`], or one item.
pub(crate) fn in_chunks<T>(
    items: impl IntoIterator<Item = T>,
    bytes_of: impl Fn(&T) -> u64,
) -> Vec<Vec<T>> {
    let (mut chunks, mut filled): (Vec<Vec<T>>, u64) = (Vec::new(), 0);
    for item in items {
        let bytes = bytes_of(&item);
        filled = filled.saturating_add(bytes);
        match chunks.last_mut().filter(|_| filled <= CHUNK_BYTES) {
            Some(chunk) => chunk.push(item),
            None => {
                chunks.push(vec![item]);
                filled = bytes;
            }
        }
    }
    chunks
}

/// The bytes of tensors.
pub(crate) fn total_bytes<'a>(metas: impl Iterator<Item = &'a TensorMeta>) -> u64 {
    metas.map(|meta| meta.byte_len().unwrap_or(0)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_full_and_keep_the_order() {
        let sizes = [CHUNK_BYTES - 1, 1, 1, 5 * CHUNK_BYTES, 0, u64::MAX, 2, 3];
        let chunks = in_chunks(sizes, |bytes| *bytes);
        let expected: [&[u64]; 5] =
            [&[CHUNK_BYTES - 1, 1], &[1], &[5 * CHUNK_BYTES], &[0], &[u64::MAX]];
        assert_eq!(chunks[..5], expected);
        assert_eq!(chunks[5..], [[2, 3]]);
        assert!(in_chunks([0u64; 0], |bytes| *bytes).is_empty());
    }
}
