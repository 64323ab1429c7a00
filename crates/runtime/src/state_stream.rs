//! The state that workers send to the boss, piece by piece.

use crate::handle_input::Input;
use crate::state_event::{FetchId, StateEvent, StateHead, StatePart};
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use tokio::sync::mpsc;

/// The answer to [`Handle::fetch`](crate::Handle::fetch). Workers send more once parts are taken,
/// so a few parts at a time are in memory. If it is dropped, workers free the rest.
pub struct StateStream {
    id: FetchId,
    events: mpsc::UnboundedReceiver<StateEvent>,
    /// The driver. It ends with the last handle, so a stream does not keep it.
    driver: mpsc::WeakUnboundedSender<Input>,
    heads: Option<Vec<StateHead>>,
    /// The request and the worker of the last part, until the driver knows that it was taken.
    taken: Option<(u64, WorkerId)>,
    end: Option<Result<(), Failure>>,
}

impl StateStream {
    pub(crate) fn new(
        id: FetchId,
        events: mpsc::UnboundedReceiver<StateEvent>,
        driver: mpsc::WeakUnboundedSender<Input>,
    ) -> Self {
        StateStream { id, events, driver, heads: None, taken: None, end: None }
    }

    /// Waits until every worker has copied its state. Returns what the parts are, or are slices
    /// of, in the order of workers.
    ///
    /// # Errors
    /// The request failed, or the run has ended.
    pub async fn heads(&mut self) -> Result<Vec<StateHead>, Failure> {
        loop {
            if let Some(heads) = &self.heads {
                return Ok(heads.clone());
            }
            if let Some(end) = &self.end {
                return Err(end.clone().err().unwrap_or_else(no_heads));
            }
            let event = self.events.recv().await;
            self.note(event);
        }
    }

    /// Waits for the next part. The part before is taken now, so its worker may send another one.
    /// `None` after the last part.
    ///
    /// # Errors
    /// The request failed, or the run has ended. Parts that came before do not make a whole state.
    pub async fn next(&mut self) -> Result<Option<StatePart>, Failure> {
        if let Some((request, worker)) = self.taken.take() {
            self.report_taken(request, worker);
        }
        loop {
            if let Some(end) = &self.end {
                return end.clone().map(|()| None);
            }
            match self.events.recv().await {
                Some(StateEvent::Part { request, part }) => {
                    self.taken = Some((request, part.worker));
                    return Ok(Some(part));
                }
                other => self.note(other),
            }
        }
    }

    fn note(&mut self, event: Option<StateEvent>) {
        match event {
            Some(StateEvent::Heads(heads)) => self.heads = Some(heads),
            Some(StateEvent::End(end)) => self.end = Some(end),
            // It never comes before the heads.
            Some(StateEvent::Part { request, part }) => self.report_taken(request, part.worker),
            None => self.end = Some(Err(Failure::new("the run has ended"))),
        }
    }

    fn report_taken(&self, request: u64, worker: WorkerId) {
        if let Some(driver) = self.driver.upgrade() {
            driver.send(Input::StateTaken { request, worker }).ok();
        }
    }
}

impl Drop for StateStream {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.upgrade().filter(|_| self.end.is_none()) {
            driver.send(Input::FetchDropped(self.id)).ok();
        }
    }
}

fn no_heads() -> Failure {
    Failure::new("the boss answered a request for state without its heads")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use layerspec::DType;
    use link::Payload;
    use pipeline::TensorMeta;

    struct Driver {
        events: mpsc::UnboundedSender<StateEvent>,
        inputs: mpsc::UnboundedReceiver<Input>,
        /// The handle.
        _sender: mpsc::UnboundedSender<Input>,
    }

    impl Driver {
        fn start() -> (Self, StateStream) {
            let (sender, inputs) = mpsc::unbounded_channel();
            let (events, receiver) = mpsc::unbounded_channel();
            let stream = StateStream::new(FetchId(3), receiver, sender.downgrade());
            (Driver { events, inputs, _sender: sender }, stream)
        }

        fn send(&self, event: StateEvent) -> bool {
            self.events.send(event).is_ok()
        }

        /// The number of parts that were taken since the last call.
        fn taken(&mut self) -> usize {
            let mut count = 0;
            while let Ok(input) = self.inputs.try_recv() {
                let is_part = |input: &Input| {
                    matches!(input, Input::StateTaken { request: 5, worker: WorkerId(1) })
                };
                assert!(is_part(&input));
                count += 1;
            }
            count
        }
    }

    fn meta() -> TensorMeta {
        TensorMeta { dtype: DType::UInt8, shape: vec![2] }
    }

    fn part(name: &str) -> StateEvent {
        let payload = Payload { meta: meta(), bytes: Bytes::from_static(&[1, 2]) };
        let part = StatePart { worker: WorkerId(1), name: name.into(), payload };
        StateEvent::Part { request: 5, part }
    }

    fn heads() -> StateEvent {
        let head = StateHead { worker: WorkerId(1), name: "a".into(), meta: meta() };
        StateEvent::Heads(vec![head])
    }

    #[tokio::test]
    async fn a_part_is_taken_when_the_next_one_is_wanted() {
        let (mut driver, mut stream) = Driver::start();
        for event in [heads(), part("a"), part("b"), StateEvent::End(Ok(()))] {
            assert!(driver.send(event));
        }
        assert_eq!(stream.heads().await.unwrap()[0].name, "a");
        let first = stream.next().await.unwrap();
        assert_eq!((first.unwrap().name, driver.taken()), ("a".to_string(), 0));
        let second = stream.next().await.unwrap();
        assert_eq!((second.unwrap().name, driver.taken()), ("b".to_string(), 1));
        assert!(stream.next().await.unwrap().is_none());
        assert_eq!(driver.taken(), 1);
        assert!(stream.next().await.unwrap().is_none(), "it stays at its end");
        assert_eq!(stream.heads().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_driver_knows_of_a_dropped_stream_unless_it_has_ended() {
        let (mut driver, mut stream) = Driver::start();
        for event in [heads(), part("a"), part("b")] {
            assert!(driver.send(event));
        }
        assert!(stream.next().await.unwrap().is_some());
        drop(stream);
        let told = driver.inputs.try_recv();
        assert!(matches!(told, Ok(Input::FetchDropped(FetchId(3)))));
        let (mut driver, mut stream) = Driver::start();
        assert!(driver.send(StateEvent::End(Ok(()))));
        assert!(stream.next().await.unwrap().is_none());
        drop(stream);
        assert!(driver.inputs.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_failure_ends_a_stream() {
        let (driver, mut stream) = Driver::start();
        driver.send(StateEvent::End(Err(Failure::new("out of memory"))));
        assert_eq!(stream.heads().await.unwrap_err().message, "out of memory");
        assert_eq!(stream.next().await.unwrap_err().message, "out of memory");
        let (driver, mut stream) = Driver::start();
        drop(driver);
        assert_eq!(stream.next().await.unwrap_err().message, "the run has ended");
    }
}
