//! The elements of a tensor that have arrived, and those that have not.

use layerspec::DType;
use link::Payload;
use pipeline::TensorMeta;
use std::collections::{BTreeMap, BTreeSet};

/// A tensor that arrives in pieces, whole or as a scalar from several replicas. Pieces come from
/// workers and may have any content.
pub(super) struct Arrivals {
    /// The dtype and the shape of the whole.
    meta: TensorMeta,
    elements: u64,
    /// The elements that have arrived: the first of each range, and the one after its last.
    ranges: BTreeMap<u64, u64>,
    /// The number of elements that have arrived.
    arrived: u64,
    copies: Option<Copies>,
}

/// The copies of a scalar, which every replica has. Each is named by the first element of the
/// replica's shard.
struct Copies {
    /// The copy that is kept.
    kept: u64,
    /// The copies that have not arrived.
    missing: BTreeSet<u64>,
}

impl Arrivals {
    /// A tensor that arrives once.
    pub(super) fn of_tensor(meta: TensorMeta) -> Result<Self, String> {
        let bytes = meta.byte_len().ok_or_else(|| format!("{meta} is too large to be real"))?;
        let elements = bytes / meta.dtype.size_bytes();
        Ok(Arrivals { meta, elements, ranges: BTreeMap::new(), arrived: 0, copies: None })
    }

    /// A scalar that several replicas have. The first copy is kept.
    pub(super) fn of_copies(dtype: DType, starts: BTreeSet<u64>) -> Result<Self, String> {
        let scalar = Self::of_tensor(TensorMeta { dtype, shape: Vec::new() })?;
        let copies = starts.first().map(|kept| Copies { kept: *kept, missing: starts.clone() });
        Ok(Arrivals { copies, ..scalar })
    }

    pub(super) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The number of elements of the whole.
    pub(super) fn elements(&self) -> u64 {
        self.elements
    }

    /// Whether nothing is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.arrived == self.elements
            && self.copies.as_ref().is_none_or(|copies| copies.missing.is_empty())
    }

    /// What is missing, for a message.
    pub(super) fn missing(&self) -> String {
        let from = self.ranges.get(&0).copied().unwrap_or(0);
        match &self.copies {
            Some(Copies { missing, .. }) if !missing.is_empty() => {
                let starts: Vec<String> = missing.iter().map(u64::to_string).collect();
                format!("the copies of the shards at {} are missing", starts.join(", "))
            }
            _ if self.arrived == 0 => "it is missing".into(),
            _ => {
                let next = self.ranges.range(from..).find(|(start, _)| **start > from);
                let to = next.map_or(self.elements, |(start, _)| *start);
                format!("elements {from} to {to} are missing")
            }
        }
    }

    /// Accepts the whole (`start` is `None`), or flat elements from `start` on. Returns the place
    /// of its first byte in the tensor, or `None` if nothing of it is kept.
    ///
    /// # Errors
    /// It is not a part of this tensor, or has arrived before.
    pub(super) fn accept(
        &mut self,
        start: Option<u64>,
        payload: &Payload,
    ) -> Result<Option<u64>, String> {
        let Payload { meta, bytes } = payload;
        let length = bytes.len() as u64;
        if meta.byte_len() != Some(length) {
            return Err(format!("has {length} bytes, which are not those of {meta}"));
        }
        let unlike = || format!("expected {}, got {meta}", self.meta);
        if meta.dtype != self.meta.dtype {
            return Err(unlike());
        }
        if meta.dtype == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
            return Err("has a byte that is neither 0 nor 1".into());
        }
        let size = meta.dtype.size_bytes();
        if let (Some(copies), Some(start)) = (&mut self.copies, start) {
            if !meta.shape.is_empty() {
                return Err(unlike());
            }
            if !copies.missing.remove(&start) {
                return Err("came twice, or was not announced".into());
            }
            if start != copies.kept {
                return Ok(None);
            }
            self.insert(0, 1)?;
            return Ok(Some(0));
        }
        let from = match start {
            None if self.copies.is_some() => return Err("was announced in copies".into()),
            None if *meta == self.meta => 0,
            Some(start) if meta.shape.len() == 1 => start,
            _ => return Err(unlike()),
        };
        let to = from.checked_add(length / size).filter(|to| *to <= self.elements);
        let to = to.ok_or_else(|| {
            format!("{meta} from element {from} on is not within its {} elements", self.elements)
        })?;
        if from == to {
            return Ok(None);
        }
        self.insert(from, to)?;
        Ok(Some(from * size))
    }

    /// Adds a range that is not empty.
    fn insert(&mut self, from: u64, to: u64) -> Result<(), String> {
        let before = self.ranges.range(..to).next_back().map(|(start, end)| (*start, *end));
        let (mut first, mut end) = (from, to);
        if let Some((start, before)) = before {
            if before > from {
                let twice = from.max(start);
                return Err(format!("elements {twice} to {} came twice", before.min(to)));
            }
            if before == from {
                first = start;
            }
        }
        if let Some(after) = self.ranges.remove(&to) {
            end = after;
        }
        self.ranges.insert(first, end);
        self.arrived += to - from;
        Ok(())
    }
}
