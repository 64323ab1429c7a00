//! Receives the state that workers send, and puts the slices of large tensors together.

use crate::BossManError;
use bytes::Bytes;
use link::Payload;
use pipeline::StateHeads;
use runtime::{StateHead, StatePart, StateStream};
use std::collections::BTreeMap;

/// Receives a state. Hands on each whole tensor, shard or hash once it is complete.
///
/// # Errors
/// The request failed, a tensor is not whole, or `take` failed.
pub(crate) async fn receive(
    mut stream: StateStream,
    mut take: impl FnMut(&str, &Payload) -> Result<(), BossManError>,
) -> Result<(), BossManError> {
    let mut joined = Joined::of(stream.heads().await?)?;
    while let Some(StatePart { name, payload, .. }) = stream.next().await? {
        if let Some((head, whole)) = joined.add(&name, payload)? {
            take(&head, &whole)?;
        }
    }
    joined.finish()
}

/// The tensors of a state of which some have come.
struct Joined {
    places: StateHeads,
    /// By the numbers of `places`. `None` for a tensor that is complete.
    missing: Vec<Option<StateHead>>,
    /// The slices of incomplete tensors, by the numbers of their tensors.
    slices: BTreeMap<usize, Slices>,
}

/// Slices by first byte, and the number of their bytes.
#[derive(Default)]
struct Slices {
    parts: BTreeMap<u64, Bytes>,
    len: u64,
}

impl Joined {
    fn of(heads: Vec<StateHead>) -> Result<Self, BossManError> {
        let mut places = StateHeads::default();
        for StateHead { worker, name, meta } in &heads {
            let added = places.add(name, meta);
            added.map_err(|problem| wrong(format!("{worker} {problem}")))?;
        }
        let missing = heads.into_iter().map(Some).collect();
        Ok(Joined { places, missing, slices: BTreeMap::new() })
    }

    /// Adds a tensor or slice. Returns the tensor that it completes, with its name.
    fn add(
        &mut self,
        name: &str,
        payload: Payload,
    ) -> Result<Option<(String, Payload)>, BossManError> {
        let unfit = || wrong(format!("`{name}` came twice, or does not fit its tensor"));
        let place = self.places.find(name).ok_or_else(unfit)?;
        let head = self.missing.get(place.head).and_then(Option::as_ref).ok_or_else(unfit)?;
        let all = head.meta.byte_len().ok_or_else(unfit)?;
        if payload.meta.dtype != head.meta.dtype {
            return Err(unfit());
        }
        let slices = self.slices.entry(place.head).or_default();
        slices.len = slices.len.saturating_add(payload.bytes.len() as u64);
        let first = place.start.saturating_mul(head.meta.dtype.size_bytes());
        if slices.parts.insert(first, payload.bytes).is_some() || slices.len > all {
            return Err(unfit());
        }
        if slices.len < all {
            return Ok(None);
        }
        let slices = self.slices.remove(&place.head).unwrap_or_default();
        let head = self.missing.get_mut(place.head).and_then(Option::take).ok_or_else(unfit)?;
        let bytes = slices.join().ok_or_else(|| {
            wrong(format!("the slices of `{}` do not follow each other", head.name))
        })?;
        Ok(Some((head.name, Payload { meta: head.meta, bytes })))
    }

    /// Every part has come.
    fn finish(self) -> Result<(), BossManError> {
        match self.missing.into_iter().flatten().next() {
            None => Ok(()),
            Some(head) => Err(wrong(format!("`{}` of {} is not whole", head.name, head.worker))),
        }
    }
}

impl Slices {
    /// The bytes of all slices. `None` if they do not follow each other.
    fn join(self) -> Option<Bytes> {
        let mut next = 0;
        for (first, part) in &self.parts {
            if *first != next {
                return None;
            }
            next += part.len() as u64;
        }
        let mut parts = self.parts.into_values();
        match (parts.next(), parts.len()) {
            (Some(only), 0) => Some(only),
            (first, _) => {
                let mut all: Vec<u8> = Vec::with_capacity(usize::try_from(next).ok()?);
                first.into_iter().chain(parts).for_each(|part| all.extend_from_slice(&part));
                Some(all.into())
            }
        }
    }
}

fn wrong(problem: String) -> BossManError {
    BossManError::StateDict(vec![problem])
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;
    use pipeline::ids::WorkerId;
    use pipeline::{slices, TensorMeta};

    fn meta(shape: &[u64]) -> TensorMeta {
        TensorMeta { dtype: DType::Int32, shape: shape.to_vec() }
    }

    fn joined(names: &[(&str, &[u64])]) -> Joined {
        let head = |(name, shape): &(&str, &[u64])| StateHead {
            worker: WorkerId(1),
            name: name.to_string(),
            meta: meta(shape),
        };
        Joined::of(names.iter().map(head).collect()).expect("good heads")
    }

    /// The slices of a tensor whose bytes are numbered.
    fn parts(name: &str, shape: &[u64], most: u64) -> Vec<(String, Payload)> {
        let whole: Vec<u8> = (0..meta(shape).byte_len().expect("small") as u8).collect();
        let part = |slice: pipeline::StateSlice| {
            let bytes = Bytes::copy_from_slice(&whole[slice.bytes]);
            (slice.name, Payload { meta: slice.meta, bytes })
        };
        slices(name, &meta(shape), most).into_iter().map(part).collect()
    }

    #[test]
    fn slices_in_any_order_make_their_tensor() {
        for name in ["0.weight", "optimizer/0.weight.m", "optimizer/0.weight.m[7]"] {
            let mut joined = joined(&[("other", &[1]), (name, &[3, 2])]);
            let mut parts = parts(name, &[3, 2], 8);
            assert_eq!(parts.len(), 3);
            parts.reverse();
            let mut whole = None;
            for (name, part) in parts {
                assert!(whole.is_none(), "complete too early");
                whole = joined.add(&name, part).expect("it fits");
            }
            let (of, payload) = whole.expect("complete");
            assert_eq!((of.as_str(), payload.meta), (name, meta(&[3, 2])));
            assert_eq!(payload.bytes, (0..24).collect::<Vec<u8>>());
            assert!(joined.finish().is_err(), "the other tensor is missing");
        }
    }

    #[test]
    fn a_small_or_empty_tensor_is_whole_at_once() {
        let mut joined = joined(&[("a", &[2]), ("b", &[0, 3]), ("c", &[])]);
        for (name, shape) in [("a", &[2][..]), ("b", &[0, 3][..]), ("c", &[][..])] {
            for (name, part) in parts(name, shape, 100) {
                let whole = joined.add(&name, part).expect("it fits").expect("whole");
                assert_eq!((whole.0.as_str(), whole.1.meta), (name.as_str(), meta(shape)));
            }
        }
        assert!(joined.finish().is_ok());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let part = |shape: &[u64], bytes: usize| Payload {
            meta: meta(shape),
            bytes: Bytes::from(vec![0u8; bytes]),
        };
        let mut all = joined(&[("a", &[4])]);
        assert!(all.add("b", part(&[4], 16)).is_err(), "an unknown name");
        assert!(all.add("a", part(&[5], 20)).is_err(), "too long");
        let mut all = joined(&[("a", &[4])]);
        assert!(all.add("slice/a[0]", part(&[2], 8)).is_ok_and(|whole| whole.is_none()));
        assert!(all.add("slice/a[0]", part(&[2], 8)).is_err(), "twice");
        let mut all = joined(&[("a", &[4])]);
        assert!(all.add("slice/a[1]", part(&[3], 12)).is_ok_and(|whole| whole.is_none()));
        assert!(all.add("slice/a[3]", part(&[1], 4)).is_err(), "an overlap");
        let mut all = joined(&[("a", &[4])]);
        assert!(all.add("a", part(&[4], 16)).is_ok_and(|whole| whole.is_some()));
        assert!(all.add("a", part(&[4], 16)).is_err(), "twice");
        let floats = TensorMeta { dtype: DType::Float32, shape: vec![4] };
        let other = Payload { meta: floats, bytes: Bytes::from(vec![0u8; 16]) };
        assert!(joined(&[("a", &[4])]).add("a", other).is_err(), "another dtype");
    }
}
