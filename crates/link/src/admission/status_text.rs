//! The status of a run, as text for callers that ask.

use std::sync::Arc;

/// Makes the text of a run's status when a caller asks for it. Clones share the source. A caller
/// reads no answer of more than 64 KiB, as it reads no longer handshake.
#[derive(Clone)]
pub struct StatusText(Arc<dyn Fn() -> String + Send + Sync>);

impl StatusText {
    /// The status that this function writes. It is called by the task that answers, so it must not
    /// wait.
    pub fn new(text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        StatusText(Arc::new(text))
    }

    /// The text as of now.
    pub fn text(&self) -> String {
        (self.0)()
    }
}

/// A status without facts, as JSON.
impl Default for StatusText {
    fn default() -> Self {
        StatusText::new(|| "{}".into())
    }
}
