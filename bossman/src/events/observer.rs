//! What an observer of a run implements.

use super::Event;
use crate::BossManError;
use parking_lot::Mutex;
use std::sync::Arc;

/// Sees the events of a run in their order.
pub trait Observer {
    /// Called with every event.
    ///
    /// # Errors
    /// The run cannot go on without this observer. For example, the metrics end the run if the
    /// disk is full.
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError>;

    /// Whether [`Event::Step`] carries timelines. They cost a simulated schedule each.
    fn wants_timelines(&self) -> bool {
        false
    }
}

/// An observer that the run asks back.
impl<T: Observer> Observer for Arc<Mutex<T>> {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        self.lock().on_event(event)
    }

    fn wants_timelines(&self) -> bool {
        self.lock().wants_timelines()
    }
}
