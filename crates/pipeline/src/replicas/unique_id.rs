//! The id by which the ranks of a communicator find each other.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The unique id of a communicator. One rank makes it, and all others receive it. A process that
/// knows it can take a rank's place, so it only travels over authenticated connections and is never
/// printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct UniqueId(Box<[u8; UniqueId::BYTES]>);

impl UniqueId {
    /// The number of bytes of an id.
    pub const BYTES: usize = 128;

    /// The bytes.
    pub fn bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }
}

impl From<[u8; UniqueId::BYTES]> for UniqueId {
    fn from(bytes: [u8; UniqueId::BYTES]) -> Self {
        UniqueId(Box::new(bytes))
    }
}

impl TryFrom<Vec<u8>> for UniqueId {
    type Error = String;

    fn try_from(bytes: Vec<u8>) -> Result<Self, String> {
        let count = bytes.len();
        let bytes: [u8; UniqueId::BYTES] = bytes
            .try_into()
            .map_err(|_| format!("a unique id of {count} bytes, not {}", UniqueId::BYTES))?;
        Ok(bytes.into())
    }
}

impl From<UniqueId> for Vec<u8> {
    fn from(id: UniqueId) -> Self {
        id.0.to_vec()
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_travels_whole_or_not_at_all() {
        let id = UniqueId::from([200; UniqueId::BYTES]);
        let bytes = rmp_serde::to_vec(&id).unwrap();
        assert_eq!(rmp_serde::from_slice::<UniqueId>(&bytes).unwrap(), id);
        for count in [0, 127, 129] {
            let bytes = rmp_serde::to_vec(&vec![1u8; count]).unwrap();
            assert!(rmp_serde::from_slice::<UniqueId>(&bytes).is_err());
        }
        assert_eq!(format!("{id:?}"), "UniqueId(..)");
    }
}
