//! Batches, epoch after epoch, the next ones prepared while one is trained on.

use super::grouped::LengthGroup;
use super::{Dataset, Order};
use crate::{Batch, DataError};
use tokio::sync::mpsc;

/// Batches that wait for being trained on.
const PREFETCH: usize = 2;

/// The batches of a run: step after step, epoch after epoch; the last one of an epoch may be smaller.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Dataset,
    size: u64,
    seed: Option<u64>,
    epoch: u64,
    order: Order,
    /// The place of the next batch's first sample.
    next: u64,
    /// Whether samples of about one length go together; and those that do, at the time.
    grouped: bool,
    group: Option<LengthGroup>,
    /// The batch after the one that was given last, where workers are told of it.
    upcoming: Option<Vec<i64>>,
}

impl Batches {
    /// From the first step on; shuffled where there is a seed.
    pub fn new(data: Dataset, size: u64, seed: Option<u64>) -> Self {
        Self::after(data, size, seed, 0)
    }

    /// From the step after so many others on. Nothing that came before is read for it.
    pub fn after(data: Dataset, size: u64, seed: Option<u64>, steps: u64) -> Self {
        let per_epoch = data.samples().div_ceil(size.max(1)).max(1);
        let (epoch, step) = (steps / per_epoch, steps % per_epoch);
        let order = Order::new(data.samples(), seed, epoch);
        Batches {
            size: size.max(1),
            seed,
            epoch,
            order,
            next: step * size,
            data,
            grouped: false,
            group: None,
            upcoming: None,
        }
    }

    /// Samples of about one length go together, where they are shuffled and have lengths.
    #[must_use]
    pub fn grouped_by_length(mut self, grouped: bool) -> Self {
        self.grouped = grouped;
        self
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Result<Batch, DataError> {
        let numbers = match self.upcoming.take() {
            Some(numbers) => numbers,
            None => self.numbers(),
        };
        if self.data.id().is_some() {
            self.upcoming = Some(self.numbers());
        }
        self.data.batch_before(&numbers, self.upcoming.as_deref().unwrap_or_default())
    }

    /// The numbers of the next batch.
    fn numbers(&mut self) -> Vec<i64> {
        if self.next >= self.data.samples() {
            self.epoch += 1;
            self.order = Order::new(self.data.samples(), self.seed, self.epoch);
            self.next = 0;
        }
        let numbers = match self.seed.filter(|_| self.grouped) {
            None => self.order.at(self.next..self.next.saturating_add(self.size)),
            Some(seed) => {
                let order = (&self.order, seed, self.epoch);
                let (numbers, group) =
                    LengthGroup::batch(self.group.take(), &self.data, order, self.size, self.next / self.size);
                self.group = Some(group);
                numbers
            }
        };
        self.next = self.next.saturating_add(self.size);
        numbers
    }

    /// Has a thread prepare them; it ends when nobody waits for them any more.
    pub fn prefetch(mut self) -> Result<Prefetcher, DataError> {
        let (send, batches) = mpsc::channel(PREFETCH);
        let thread = std::thread::Builder::new().name("data".into());
        let work = move || loop {
            let batch = self.next_batch();
            let last = batch.is_err();
            if send.blocking_send(batch).is_err() || last {
                return;
            }
        };
        let started = thread.spawn(work);
        started.map_err(|e| DataError::Usage(format!("cannot start a thread that reads data: {e}")))?;
        Ok(Prefetcher { batches })
    }
}

/// Batches that a thread prepares.
#[derive(Debug)]
pub struct Prefetcher {
    batches: mpsc::Receiver<Result<Batch, DataError>>,
}

impl Prefetcher {
    /// The next batch, or what went wrong with it; those before an error have come by then.
    pub async fn next_batch(&mut self) -> Result<Batch, DataError> {
        let ended = || Err(DataError::Usage("the thread that reads data has ended".into()));
        self.batches.recv().await.unwrap_or_else(ended)
    }
}
