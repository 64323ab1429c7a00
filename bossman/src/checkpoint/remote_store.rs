//! Folders of object stores: S3, Google Cloud Storage, Azure.

use crate::BossManError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Name;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, Error, ObjectStore, ObjectStoreScheme, RetryConfig};
use std::future::Future;
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
    store.map_err(|e| wrong(with_hint(&e.to_string())))
}

/// The longest silence of a store before it answers a request that sends nothing, with the time for
/// which the client itself tries again.
const PATIENCE: Duration = Duration::from_secs(45);
/// The number of such requests.
const ATTEMPTS: u32 = 2;

/// Sends a request that has no large content, and sends it again to a store that does not answer.
pub(super) async fn answered<T, E: ToString, F: Future<Output = Result<T, E>>>(
    request: impl Fn() -> F,
) -> Result<T, String> {
    for _ in 0..ATTEMPTS {
        if let Ok(answer) = tokio::time::timeout(PATIENCE, request()).await {
            return answer.map_err(|e| e.to_string());
        }
    }
    let seconds = (PATIENCE * ATTEMPTS).as_secs();
    Err(format!("the store has not answered for {seconds} s; is its address right?"))
}

/// An error of a store with what helps, if that is known.
pub(super) fn with_hint(problem: &str) -> String {
    let asks_machine = |host: &str| problem.contains(host);
    let hint = if asks_machine("169.254.169.254") {
        "there are no keys in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         for Azure AZURE_STORAGE_ACCOUNT_KEY (the files of `aws configure` are not read)"
    } else if asks_machine("metadata.google.internal") {
        "there are no keys in the environment: set GOOGLE_APPLICATION_CREDENTIALS"
    } else if problem.contains("Account must be specified") {
        "set AZURE_STORAGE_ACCOUNT_NAME"
    } else if problem.contains("builder error") && problem.contains("http://") {
        "for an address without TLS set AWS_ALLOW_HTTP=true"
    } else {
        return problem.to_string();
    };
    format!("{problem}; {hint}")
}

/// Narrows a store to one folder of it.
fn within<S: ObjectStore>(
    store: Result<S, Error>,
    folder: Name,
) -> Result<Arc<dyn ObjectStore>, Error> {
    Ok(Arc::new(PrefixStore::new(store?, folder)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::pending;

    #[tokio::test(start_paused = true)]
    async fn a_silent_store_is_asked_again_and_then_given_up() {
        let asked = Cell::new(0);
        let silent = || {
            asked.set(asked.get() + 1);
            pending::<Result<(), String>>()
        };
        let began = tokio::time::Instant::now();
        let error = answered(silent).await.unwrap_err();
        assert_eq!((asked.get(), began.elapsed()), (2, Duration::from_secs(90)));
        assert_eq!(error, "the store has not answered for 90 s; is its address right?");
        // The second request gets an answer.
        let asked = Cell::new(0);
        let slow = || async {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => pending().await,
                number => Ok::<_, String>(number),
            }
        };
        assert_eq!(answered(slow).await, Ok(2));
        assert_eq!(answered(|| async { Err::<(), _>("no") }).await, Err("no".into()));
    }

    #[test]
    fn what_is_missing_is_said() {
        for (problem, hint) in [
            ("PUT http://169.254.169.254/latest/api/token: 403", "AWS_ACCESS_KEY_ID"),
            ("GET http://metadata.google.internal/x", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("Account must be specified", "AZURE_STORAGE_ACCOUNT_NAME"),
            ("error sending request for url (http://minio:9000/): builder error", "AWS_ALLOW_HTTP"),
        ] {
            let told = with_hint(problem);
            assert!(told.starts_with(problem) && told.contains(hint), "{told}");
        }
        assert_eq!(with_hint("403 Forbidden"), "403 Forbidden");
    }
}
