//! The versions of NCCL, and a size that all of them share.

/// The first version with communicators whose calls do not block, 2.14.
pub(super) const MIN_VERSION: u32 = 21_400;

/// The bytes of the id by which the ranks of a communicator find each other.
pub const UNIQUE_ID_BYTES: usize = 128;

/// A version as NCCL's users know it: `2.27.3`.
pub fn version_name(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_they_are_known() {
        assert_eq!([21_400, 22_703, 23_100].map(version_name), ["2.14.0", "2.27.3", "2.31.0"]);
    }
}
