//! The stream of events.

use super::{Console, Event, Observer, Remark, Stream};
use crate::BossManError;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Hands events to observers. Clones share the observers. By default a console shows the events on
/// standard output.
#[derive(Clone)]
pub struct Events {
    observers: Arc<Mutex<Vec<Box<dyn Observer + Send>>>>,
}

impl Events {
    /// Events that nobody sees.
    pub fn unobserved() -> Self {
        Events { observers: Arc::default() }
    }

    /// Events that this console shows.
    pub fn on(console: Console) -> Self {
        Events { observers: Arc::new(Mutex::new(vec![Box::new(console)])) }
    }

    /// Events that one more observer sees, after those of `self`. Clones of `self` do not have it.
    #[must_use]
    pub fn with(self, observer: impl Observer + Send + 'static) -> Self {
        Events { observers: Arc::new(Mutex::new(vec![Box::new(self), Box::new(observer)])) }
    }

    /// Emits an event on which an observer may end the run. Every observer sees it.
    ///
    /// # Errors
    /// The first error of an observer.
    pub(crate) fn emit(&self, event: &Event) -> Result<(), BossManError> {
        let mut result = Ok(());
        for observer in self.observers.lock().iter_mut() {
            let seen = observer.on_event(event);
            result = result.and(seen);
        }
        result
    }

    /// Emits an event after which the work goes on in any case. Errors of observers become
    /// warnings.
    pub(crate) fn report(&self, event: &Event) {
        if let Err(error) = self.emit(event) {
            self.emit(&Event::warning(error.to_string())).ok();
        }
    }

    /// Reports a warning.
    pub(crate) fn warn(&self, remark: impl Into<Remark>) {
        self.report(&Event::warning(remark));
    }

    /// Reports a warning about a step.
    pub(crate) fn warn_at(&self, step: u64, remark: impl Into<Remark>) {
        self.warn(remark.into().at_step(step));
    }

    /// Whether an observer wants timelines with steps.
    pub(crate) fn want_timelines(&self) -> bool {
        self.observers.lock().iter().any(|observer| observer.wants_timelines())
    }
}

impl Default for Events {
    fn default() -> Self {
        Events::on(Console::new(Stream::Stdout))
    }
}

impl Observer for Events {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        self.emit(event)
    }

    fn wants_timelines(&self) -> bool {
        self.want_timelines()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({} observers)", self.observers.lock().len())
    }
}
