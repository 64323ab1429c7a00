//! Slices of the tensors of a model's state. A large tensor travels as several frames, so that a
//! window over frames also bounds bytes.

use crate::state_name::StateName;
use crate::tensor_meta::TensorMeta;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes of a slice. A smaller tensor travels as it is.
pub const SLICE_BYTES: u64 = 4 << 20;

/// The most tensors of the state of a worker.
pub const MAX_STATE_HEADS: usize = 1 << 20;

/// Some elements of a tensor, or all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateSlice {
    /// Its [name](StateName).
    pub name: String,
    /// Its dtype and shape. A slice is flat.
    pub meta: TensorMeta,
    /// Its place among the bytes of the tensor.
    pub bytes: Range<usize>,
}

/// The slices of a tensor or shard of this name, each of at most `most` bytes or one element. A
/// tensor that is not larger is itself the only one.
pub fn slices(name: &str, meta: &TensorMeta, most: u64) -> Vec<StateSlice> {
    let len = meta.byte_len().unwrap_or(0);
    if len <= most {
        let whole = 0..usize::try_from(len).unwrap_or(usize::MAX);
        return vec![StateSlice { name: name.to_string(), meta: meta.clone(), bytes: whole }];
    }
    let size = meta.dtype.size_bytes();
    let (elements, step) = (len / size, (most / size).max(1));
    let place = |element: u64| usize::try_from(element * size).unwrap_or(usize::MAX);
    let of = StateName::parse(name);
    let slice = |number: u64| {
        let from = number * step;
        let to = from.saturating_add(step).min(elements);
        let name = match of.optimizer {
            true => {
                StateName::of_optimizer(of.name, Some(of.start.unwrap_or(0).saturating_add(from)))
            }
            false => StateName::of_slice(of.name, from),
        };
        StateSlice {
            name: name.to_string(),
            meta: TensorMeta { dtype: meta.dtype, shape: vec![to - from] },
            bytes: place(from)..place(to),
        }
    };
    (0..elements.div_ceil(step)).map(slice).collect()
}

/// The whole tensors and shards of a state, in the order in which they were added.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StateHeads(BTreeMap<Place, Head>);

/// The place of a tensor or shard: whether it is optimizer state, its name, and the number of its
/// first element.
type Place = (bool, String, u64);

#[derive(Copy, Clone, PartialEq, Debug)]
struct Head {
    number: usize,
    elements: u64,
}

/// The place of a frame in a state.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SlicePlace {
    /// The number of the tensor or shard, from 0.
    pub head: usize,
    /// The first element of the frame in it.
    pub start: u64,
}

impl StateHeads {
    /// Adds a tensor or shard.
    ///
    /// # Errors
    /// It cannot be real, is itself a slice, or was added before.
    pub fn add(&mut self, name: &str, meta: &TensorMeta) -> Result<(), String> {
        let StateName { optimizer, name: of, start } = StateName::parse(name);
        if meta.byte_len().is_none() || (!optimizer && start.is_some()) {
            return Err(format!("announced `{name}`, which is no tensor of a state"));
        }
        // No overflow: the sizes are real.
        let elements = meta.shape.iter().product();
        let head = Head { number: self.0.len(), elements };
        match self.0.insert((optimizer, of.to_string(), start.unwrap_or(0)), head) {
            None => Ok(()),
            Some(_) => Err(format!("announced `{name}` twice")),
        }
    }

    /// Finds the tensor or shard that a frame of this name is, or is a slice of.
    pub fn find(&self, name: &str) -> Option<SlicePlace> {
        let StateName { optimizer, name, start } = StateName::parse(name);
        let start = start.unwrap_or(0);
        let to = (optimizer, name.to_string(), start);
        let ((of, of_name, first), head) = self.0.range(..=to).next_back()?;
        let start = start - first.min(&start);
        let is_in = *of == optimizer && of_name == name && (start == 0 || start < head.elements);
        is_in.then_some(SlicePlace { head: head.number, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;

    fn meta(shape: &[u64]) -> TensorMeta {
        TensorMeta { dtype: DType::Float32, shape: shape.to_vec() }
    }

    #[test]
    fn slices_follow_each_other_and_end_between_elements() {
        let of = |name: &str, shape: &[u64], most: u64| {
            let line = |slice: StateSlice| {
                format!("{} {:?} {:?}", slice.name, slice.meta.shape, slice.bytes)
            };
            slices(name, &meta(shape), most).into_iter().map(line).collect::<Vec<String>>()
        };
        assert_eq!(of("0.weight", &[2, 2], 16), ["0.weight [2, 2] 0..16"]);
        let parts = [
            "slice/0.weight[0] [2] 0..8",
            "slice/0.weight[2] [2] 8..16",
            "slice/0.weight[4] [1] 16..20",
        ];
        assert_eq!(of("0.weight", &[5, 1], 11), parts);
        let parts = ["optimizer/a.step[7] [1] 0..4", "optimizer/a.step[8] [1] 4..8"];
        assert_eq!(of("optimizer/a.step[7]", &[2], 1), parts);
        assert_eq!(of("optimizer/a.step", &[2], 4)[1], "optimizer/a.step[1] [1] 4..8");
        assert_eq!(of("empty", &[0, 3], 4), ["empty [0, 3] 0..0"]);
    }

    #[test]
    fn a_slice_is_found_in_its_tensor_alone() {
        let mut heads = StateHeads::default();
        let of = [("0.weight", 4), ("optimizer/0.weight.m[8]", 4), ("optimizer/0.weight.m[2]", 4)];
        for (name, elements) in of {
            assert_eq!(heads.add(name, &meta(&[elements])), Ok(()));
        }
        let find = |name| heads.find(name).map(|place| (place.head, place.start));
        assert_eq!((find("0.weight"), find("slice/0.weight[3]")), (Some((0, 0)), Some((0, 3))));
        assert_eq!((find("slice/0.weight[4]"), find("1.weight")), (None, None));
        assert_eq!(find("optimizer/0.weight.m[9]"), Some((1, 1)));
        assert_eq!(find("optimizer/0.weight.m[5]"), Some((2, 3)));
        assert_eq!((find("optimizer/0.weight.m[6]"), find("optimizer/0.weight.m")), (None, None));
    }

    #[test]
    fn a_tensor_is_announced_once() {
        let mut heads = StateHeads::default();
        assert_eq!(heads.add("optimizer/0.weight.m", &meta(&[])), Ok(()));
        assert!(heads.add("optimizer/0.weight.m[0]", &meta(&[2])).is_err(), "the same place");
        assert!(heads.add("slice/0.weight[0]", &meta(&[2])).is_err(), "a slice");
        assert!(heads.add("0.weight", &meta(&[u64::MAX, 2])).is_err(), "too large");
    }
}
