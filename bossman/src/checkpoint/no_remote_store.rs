//! Stands in for object stores in a program that was built without them.

use crate::BossManError;
use object_store::ObjectStore;
use std::path::Path;
use std::sync::Arc;

pub(super) fn open(named: &str) -> Result<Arc<dyn ObjectStore>, BossManError> {
    let problem = "this program was built without object stores; build it with `make build`, or \
                   with the cargo feature `object-stores`, or name a local folder";
    // The URL's rest may hold a secret.
    let (scheme, _) = named.split_once("://").unwrap_or_default();
    Err(BossManError::file(Path::new(&format!("{scheme}://...")), problem))
}
