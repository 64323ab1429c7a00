//! Folders of object stores: S3, Google Cloud Storage, Azure.

use super::store_answers;
use crate::BossManError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Name;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, Error, ObjectStore, ObjectStoreScheme, RetryConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The time for which a request is retried. Training continues during that time, so a later error
/// has no use.
const RETRY: Duration = Duration::from_secs(30);
const RETRIES: usize = 5;
/// The longest silence of a store during a request. One part is uploaded within it.
const READ_TIMEOUT: &str = "5 min";
/// The longest download of one file.
const REQUEST_TIMEOUT: &str = "2 h";

/// Opens a folder of an object store. Credentials and the store's other settings come from the
/// environment.
pub(super) fn open(named: &str) -> Result<Arc<dyn ObjectStore>, BossManError> {
    const KINDS: &str = "name a local folder, or one of an object store as s3://bucket/folder, \
                         gs://bucket/folder or az://container/folder";
    let wrong = |problem: String| BossManError::file(Path::new(named), problem);
    if named.contains(['@', '?']) {
        // The error does not repeat the URL: it may hold a secret.
        let (scheme, _) = named.split_once("://").unwrap_or_default();
        let problem = "an object store's keys come from the environment, not from its URL";
        return Err(BossManError::Usage(format!("checkpoints at {scheme}://...: {problem}")));
    }
    let url = Url::parse(named).map_err(|e| wrong(format!("{e}; {KINDS}")))?;
    let (scheme, folder) =
        ObjectStoreScheme::parse(&url).map_err(|e| wrong(format!("{e}; {KINDS}")))?;
    let retry =
        RetryConfig { max_retries: RETRIES, retry_timeout: RETRY, ..RetryConfig::default() };
    let store = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let store = AmazonS3Builder::from_env().with_url(named).with_retry(retry);
            let store = store
                .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ReadTimeout), READ_TIMEOUT);
            within(
                store
                    .with_config(
                        AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
                        REQUEST_TIMEOUT,
                    )
                    .build(),
                folder,
            )
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let store = GoogleCloudStorageBuilder::from_env().with_url(named).with_retry(retry);
            let store = store
                .with_config(GoogleConfigKey::Client(ClientConfigKey::ReadTimeout), READ_TIMEOUT);
            within(
                store
                    .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
                    .build(),
                folder,
            )
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let store = MicrosoftAzureBuilder::from_env().with_url(named).with_retry(retry);
            let store = store
                .with_config(AzureConfigKey::Client(ClientConfigKey::ReadTimeout), READ_TIMEOUT);
            within(
                store
                    .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
                    .build(),
                folder,
            )
        }
        _ => return Err(wrong(format!("there are no checkpoints in such a place; {KINDS}"))),
    };
    store.map_err(|e| wrong(store_answers::with_hint(&e.to_string())))
}

/// Narrows a store to one folder of it.
fn within<S: ObjectStore>(
    store: Result<S, Error>,
    folder: Name,
) -> Result<Arc<dyn ObjectStore>, Error> {
    Ok(Arc::new(PrefixStore::new(store?, folder)))
}
