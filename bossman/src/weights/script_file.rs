//! Files that layers are built from.

use crate::BossManError;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file that is read; workers hold it in memory.
const MAX_BYTES: u64 = 256 << 20;

/// The file's SHA-256 and its contents.
pub(crate) fn read(path: &Path) -> Result<(String, Bytes), BossManError> {
    let mut contents = Vec::new();
    // One byte more than allowed tells a file that is too large, whatever its length claims to be.
    let read =
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut contents));
    read.map_err(|error| BossManError::io(path, &error))?;
    if contents.len() as u64 > MAX_BYTES {
        return Err(BossManError::file(
            path,
            "is larger than 256 MiB, more than a layer's file may be",
        ));
    }
    let hash = Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((hash, contents.into()))
}
