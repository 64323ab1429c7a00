//! Tells how far a transfer of training state is, if it takes long.

use crate::events::{Direction, Event, Events, Transfer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The interval at which a transfer is told. A shorter one is not told at all.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts the bytes of a transfer that lasts until this is dropped. It is told at intervals, even
/// while nothing arrives, and once more at its end.
pub(super) struct TransferMeter {
    count: Arc<Mutex<Count>>,
    ticks: JoinHandle<()>,
}

struct Count {
    events: Events,
    began: Instant,
    transfer: Transfer,
    was_told: bool,
}

impl TransferMeter {
    /// A transfer of this number of bytes begins.
    pub(super) fn begin(events: &Events, direction: Direction, of_bytes: u64) -> Self {
        Self::told_every(INTERVAL, events, direction, of_bytes)
    }

    fn told_every(
        interval: Duration,
        events: &Events,
        direction: Direction,
        of_bytes: u64,
    ) -> Self {
        let (bytes, elapsed_s, ended) = (0, 0.0, false);
        let transfer = Transfer { direction, bytes, of_bytes, elapsed_s, ended };
        let (events, began) = (events.clone(), Instant::now());
        let count = Arc::new(Mutex::new(Count { events, began, transfer, was_told: false }));
        let ticking = count.clone();
        let ticks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                ticking.lock().tell();
            }
        });
        TransferMeter { count, ticks }
    }

    /// More bytes have arrived.
    pub(super) fn add(&self, bytes: u64) {
        let arrived = &mut self.count.lock().transfer.bytes;
        *arrived = arrived.saturating_add(bytes);
    }
}

impl Drop for TransferMeter {
    fn drop(&mut self) {
        self.ticks.abort();
        let mut count = self.count.lock();
        count.transfer.ended = true;
        count.tell();
    }
}

impl Count {
    /// Tells how far the transfer is. Its end is told if anything was, and nothing after it.
    fn tell(&mut self) {
        if self.transfer.ended && !self.was_told {
            return;
        }
        self.transfer.elapsed_s = self.began.elapsed().as_secs_f64();
        self.events.report(&Event::Transfer(self.transfer));
        self.was_told = !self.transfer.ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Observer;
    use crate::BossManError;
    use tokio::sync::mpsc;

    struct Told(mpsc::UnboundedSender<Transfer>);

    impl Observer for Told {
        fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
            if let Event::Transfer(transfer) = event {
                self.0.send(*transfer).ok();
            }
            Ok(())
        }
    }

    fn meter(interval: Duration) -> (TransferMeter, mpsc::UnboundedReceiver<Transfer>) {
        let (sender, told) = mpsc::unbounded_channel();
        let events = Events::unobserved().with(Told(sender));
        (TransferMeter::told_every(interval, &events, Direction::ToWorkers, 100), told)
    }

    #[tokio::test]
    async fn a_long_transfer_is_told_while_nothing_arrives_and_at_its_end() {
        let (meter, mut told) = meter(Duration::from_millis(1));
        for _ in 0..2 {
            let transfer = told.recv().await.expect("told");
            assert_eq!((transfer.bytes, transfer.of_bytes, transfer.ended), (0, 100, false));
        }
        meter.add(60);
        meter.add(40);
        drop(meter);
        let mut last = None;
        while let Some(transfer) = told.recv().await {
            assert!(last.is_none_or(|last: Transfer| !last.ended), "the end is told once");
            last = Some(transfer);
        }
        let last = last.expect("the end is told");
        assert_eq!((last.bytes, last.ended), (100, true));
    }

    #[tokio::test]
    async fn a_short_transfer_is_not_told() {
        let (meter, mut told) = meter(INTERVAL * 1000);
        meter.add(100);
        drop(meter);
        assert_eq!(told.recv().await, None);
    }
}
