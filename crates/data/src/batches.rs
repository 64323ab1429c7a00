//! Batches over all epochs. The next ones are prepared while the current one is trained on.

use super::length_group::{Epoch, LengthGroup};
use super::{Dataset, Order};
use crate::{Batch, DataError};
use tokio::sync::mpsc;

/// The number of prepared batches that wait to be trained on.
const PREFETCH: usize = 2;

/// The batches of a run, step by step and epoch by epoch. The last batch of an epoch may be
/// smaller.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Dataset,
    size: u64,
    seed: Option<u64>,
    epoch: u64,
    order: Order,
    /// The position of the next batch's first sample in the epoch's order.
    next: u64,
    /// Whether samples of similar length go together. `group` then holds the current ones.
    grouped: bool,
    group: Option<LengthGroup>,
    /// The batch after the last returned one. Set only if workers read the data from their own
    /// files.
    upcoming: Option<Vec<i64>>,
}

impl Batches {
    /// Starts at the first step. Shuffles the samples if `seed` is given.
    pub fn new(data: Dataset, size: u64, seed: Option<u64>) -> Self {
        Self::after(data, size, seed, 0)
    }

    /// Starts after `steps` steps. No earlier sample is read.
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

    /// Sets whether samples of similar length go together. It has an effect only if samples are
    /// shuffled and have lengths.
    #[must_use]
    pub fn grouped_by_length(mut self, grouped: bool) -> Self {
        self.grouped = grouped;
        self
    }

    /// Returns the next batch.
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

    /// Returns the sample numbers of the next batch.
    fn numbers(&mut self) -> Vec<i64> {
        if self.next >= self.data.samples() {
            self.epoch += 1;
            self.order = Order::new(self.data.samples(), self.seed, self.epoch);
            self.next = 0;
        }
        let numbers = match self.seed.filter(|_| self.grouped) {
            None => self.order.at(self.next..self.next.saturating_add(self.size)),
            Some(seed) => {
                let epoch = Epoch {
                    data: &self.data,
                    order: &self.order,
                    seed,
                    number: self.epoch,
                    batch_size: self.size,
                };
                let (numbers, group) =
                    LengthGroup::batch(self.group.take(), &epoch, self.next / self.size);
                self.group = Some(group);
                numbers
            }
        };
        self.next = self.next.saturating_add(self.size);
        numbers
    }

    /// Starts a thread that prepares the batches. It ends when the receiver is dropped.
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
        started
            .map_err(|e| DataError::Usage(format!("cannot start a thread that reads data: {e}")))?;
        Ok(Prefetcher { batches })
    }
}

/// Batches that a thread prepares.
#[derive(Debug)]
pub struct Prefetcher {
    batches: mpsc::Receiver<Result<Batch, DataError>>,
}

impl Prefetcher {
    /// Returns the next batch or its error. All batches before an error are returned first.
    pub async fn next_batch(&mut self) -> Result<Batch, DataError> {
        let ended = || Err(DataError::Usage("the thread that reads data has ended".into()));
        self.batches.recv().await.unwrap_or_else(ended)
    }
}
