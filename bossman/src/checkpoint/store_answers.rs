//! Object stores that do not answer, and what their errors mean.

use std::future::Future;
use std::time::Duration;

/// The longest silence of a store before it answers a request that sends nothing, with the time for
/// which the client itself tries again.
const PATIENCE: Duration = Duration::from_secs(45);
/// The number of such requests.
const ATTEMPTS: u32 = 2;

/// Sends a request that has no large content, and sends it again to a store that does not answer.
pub(super) async fn answered<T, E: ToString, F: Future<Output = Result<T, E>>>(
    request: impl Fn() -> F,
) -> Result<T, String> {
    answered_within(PATIENCE, request).await
}

async fn answered_within<T, E: ToString, F: Future<Output = Result<T, E>>>(
    patience: Duration,
    request: impl Fn() -> F,
) -> Result<T, String> {
    for _ in 0..ATTEMPTS {
        if let Ok(answer) = tokio::time::timeout(patience, request()).await {
            return answer.map_err(|e| e.to_string());
        }
    }
    let seconds = (patience * ATTEMPTS).as_secs();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::pending;

    #[tokio::test]
    async fn a_silent_store_is_asked_again_and_then_given_up() {
        let asked = Cell::new(0);
        let silent = || {
            asked.set(asked.get() + 1);
            pending::<Result<(), String>>()
        };
        let error = answered_within(Duration::ZERO, silent).await.unwrap_err();
        assert_eq!(asked.get(), ATTEMPTS);
        assert_eq!(error, "the store has not answered for 0 s; is its address right?");
        // The second request gets an answer.
        let asked = Cell::new(0);
        let slow = || async {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => pending().await,
                number => Ok::<_, String>(number),
            }
        };
        assert_eq!(answered_within(Duration::ZERO, slow).await, Ok(2));
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
