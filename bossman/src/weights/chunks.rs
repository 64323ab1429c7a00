//! The order of tensors that are read and travel, and their groups.

use pipeline::TensorMeta;
use std::collections::{BTreeMap, VecDeque};

/// A tensor of a file, or a slice of one, that is not read yet.
pub(crate) struct Unread<P> {
    /// The name under which it travels.
    pub(crate) name: String,
    /// Its size.
    pub(crate) bytes: u64,
    /// Its place in the file.
    pub(crate) place: P,
}

/// The bytes of a group. It is large enough that waiting for each costs little, and a few fit into
/// the memory that the boss may take.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;

/// Orders items so that all classes of them progress equally, in shares of their bytes. Each class
/// keeps its own order.
pub(crate) fn in_turns<T, C: Ord>(
    items: impl IntoIterator<Item = T>,
    class_of: impl Fn(&T) -> C,
    bytes_of: impl Fn(&T) -> u64,
) -> Vec<T> {
    /// The items that are left, and the bytes that were taken, of all bytes.
    struct Class<T> {
        left: VecDeque<T>,
        taken: u128,
        all: u128,
    }
    let mut classes: BTreeMap<C, Class<T>> = BTreeMap::new();
    let (mut count, mut ordered) = (0usize, Vec::new());
    for item in items {
        let empty = || Class { left: VecDeque::new(), taken: 0, all: 0 };
        let class = classes.entry(class_of(&item)).or_insert_with(empty);
        class.all = class.all.saturating_add(bytes_of(&item).into());
        class.left.push_back(item);
        count += 1;
    }
    while ordered.len() < count {
        let waiting = classes.values_mut().filter(|class| !class.left.is_empty());
        // a / b < c / d without a division.
        let share = |one: &&mut Class<T>, other: &&mut Class<T>| {
            let (one, other) =
                (one.taken.saturating_mul(other.all), other.taken.saturating_mul(one.all));
            one.cmp(&other)
        };
        let Some(next) = waiting.min_by(share) else { break };
        let Some(item) = next.left.pop_front() else { break };
        next.taken = next.taken.saturating_add(bytes_of(&item).into());
        ordered.push(item);
    }
    ordered
}

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
    fn classes_progress_equally_and_keep_their_order() {
        // Class, number, bytes. The second class is half as large, and the third has no bytes.
        let items = [(0, 1, 4), (0, 2, 4), (0, 3, 4), (0, 4, 4), (1, 1, 4), (1, 2, 4), (2, 1, 0)];
        let ordered = in_turns(items, |item| item.0, |item| item.2);
        let order: Vec<(i32, i32)> = ordered.iter().map(|item| (item.0, item.1)).collect();
        assert_eq!(order, [(0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (0, 4), (2, 1)]);
        assert!(in_turns([0u64; 0], |_| 0, |bytes| *bytes).is_empty());
    }

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
