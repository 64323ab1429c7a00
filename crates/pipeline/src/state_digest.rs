//! A digest of the training state. It is the same for every cut, number of workers and replicas.
//!
//! ```text
//! worker: tensor -> SHA-256 --+
//! worker: tensor -> SHA-256 --+--> sorted by name -> SHA-256 = StateDigest
//! boss:   counters ---------- +
//! ```

use crate::TensorMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;

/// The form in which workers send state.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateForm {
    /// The tensors.
    Tensors,
    /// The tensors, and those of more than [`SLICE_BYTES`](crate::SLICE_BYTES) as flat
    /// [slices](crate::slices).
    Slices,
    /// The [hash](hash_tensor) of each tensor, as a tensor of 32 bytes. A shard of optimizer state
    /// is sent as it is, because only all shards together have a hash that does not depend on the
    /// number of replicas.
    Hashes,
}

/// A SHA-256 of a tensor: of its dtype and shape, a newline, and its bytes in row-major order.
pub fn hash_tensor(meta: &TensorMeta, bytes: &[u8]) -> [u8; 32] {
    let mut hash = TensorHasher::new(meta);
    hash.update(bytes);
    hash.finish()
}

/// As [`hash_tensor`], for a tensor whose bytes come in parts.
pub struct TensorHasher(Sha256);

impl TensorHasher {
    /// The hash of a tensor of which no byte has come.
    pub fn new(meta: &TensorMeta) -> Self {
        TensorHasher(Sha256::new_with_prefix(format!("{meta}\n")))
    }

    /// Adds the next bytes, in row-major order.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash, after all bytes.
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// A SHA-256 of the whole training state: parameters, buffers, optimizer state and counters.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StateDigest([u8; 32]);

impl StateDigest {
    /// The digest of hashes by name. For each name, ascending, it covers the length of the name in
    /// bytes as a 64-bit little-endian number, the name, and the hash.
    pub fn of(hashes: &BTreeMap<String, [u8; 32]>) -> Self {
        let mut digest = Sha256::new();
        for (name, hash) in hashes {
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
            digest.update(hash);
        }
        StateDigest(digest.finalize().into())
    }
}

/// In hexadecimal digits.
impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;

    #[test]
    fn a_tensor_is_more_than_its_bytes() {
        let hash = |dtype, shape: &[u64], bytes: &[u8]| {
            hash_tensor(&TensorMeta { dtype, shape: shape.to_vec() }, bytes)
        };
        let one = hash(DType::Float32, &[2], &[0; 8]);
        assert_eq!(one, hash(DType::Float32, &[2], &[0; 8]));
        assert_ne!(one, hash(DType::Float32, &[1, 2], &[0; 8]));
        assert_ne!(one, hash(DType::Int64, &[1], &[0; 8]));
        assert_ne!(one, hash(DType::Float32, &[2], &[0, 0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn a_name_never_runs_into_the_next() {
        let of = |hashes: &[(&str, u8)]| {
            let hashes = hashes.iter().map(|(name, byte)| (name.to_string(), [*byte; 32]));
            StateDigest::of(&hashes.collect()).to_string()
        };
        let digests = [
            of(&[]),
            of(&[("a", 1)]),
            of(&[("a", 2)]),
            of(&[("b", 1)]),
            of(&[("a", 1), ("b", 2)]),
            of(&[("a", 2), ("b", 1)]),
        ];
        let mut different = digests.to_vec();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), digests.len());
        // SHA-256 of nothing.
        assert!(digests[0].starts_with("e3b0c44298fc1c14"), "{}", digests[0]);
    }
}
