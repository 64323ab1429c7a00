//! Batches that are read while the workers compute with the ones before.

use crate::BossManError;
use std::iter::Fuse;
use std::panic::resume_unwind;
use tokio::sync::mpsc;
use tokio::task::{spawn_blocking, JoinHandle};

/// The most items that are read before someone asks for them.
const AHEAD: usize = 2;

/// Items in their order. After an error no other item is read.
pub(crate) struct ReadAhead<I: Iterator>(Items<I>);

enum Items<I: Iterator> {
    InMemory(Fuse<I>),
    Read {
        items: mpsc::Receiver<I::Item>,
        /// The task that reads, until its end is known.
        reader: Option<JoinHandle<()>>,
    },
}

impl<T, I: Iterator<Item = Result<T, BossManError>>> ReadAhead<I> {
    /// Takes items that need no reading, so nothing is read ahead.
    pub(crate) fn in_memory(items: I) -> Self {
        ReadAhead(Items::InMemory(items.fuse()))
    }

    /// Starts a task that reads the items. It ends when this value is dropped. Must be called
    /// within a runtime.
    pub(crate) fn start(mut source: I) -> Self
    where
        I: Send + 'static,
        T: Send + 'static,
    {
        // The task holds one more.
        let (send, items) = mpsc::channel(AHEAD - 1);
        let reader = spawn_blocking(move || {
            while !send.is_closed() {
                let Some(item) = source.next() else { return };
                let is_last = item.is_err();
                if send.blocking_send(item).is_err() || is_last {
                    return;
                }
            }
        });
        ReadAhead(Items::Read { items, reader: Some(reader) })
    }

    /// Returns the next item. `None` after the last one and after an error.
    ///
    /// # Errors
    /// That of the source, after all items before it.
    ///
    /// # Panics
    /// The source panicked.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, BossManError> {
        let (items, reader) = match &mut self.0 {
            Items::InMemory(items) => return items.next().transpose(),
            Items::Read { items, reader } => (items, reader),
        };
        if let Some(item) = items.recv().await {
            return item.map(Some);
        }
        match reader.take() {
            None => Ok(None),
            Some(reader) => match reader.await.map_err(tokio::task::JoinError::try_into_panic) {
                Ok(()) => Ok(None),
                Err(Ok(panic)) => resume_unwind(panic),
                Err(Err(_)) => {
                    Err(BossManError::Usage("the task that reads data has ended".into()))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;
    use std::time::Duration;

    type Item = Result<usize, BossManError>;

    /// Numbers from 0 on, whose reads it counts. Number `fails` is an error.
    struct Source {
        read: Arc<AtomicUsize>,
        count: usize,
        fails: usize,
    }

    impl Iterator for Source {
        type Item = Item;

        fn next(&mut self) -> Option<Item> {
            let number = self.read.fetch_add(1, Ordering::SeqCst);
            match number {
                number if number == self.fails => Some(Err(BossManError::Usage("broken".into()))),
                number => (number < self.count).then_some(Ok(number)),
            }
        }
    }

    fn source(count: usize, fails: usize) -> (Arc<AtomicUsize>, Source) {
        let read = Arc::new(AtomicUsize::new(0));
        (read.clone(), Source { read, count, fails })
    }

    fn within_limit(test: impl std::future::Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.unwrap() });
    }

    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn a_few_items_are_read_ahead() {
        within_limit(async {
            let (read, source) = source(100, 100);
            let mut items = ReadAhead::start(source);
            for taken in 0..5 {
                until(|| read.load(Ordering::SeqCst) == taken + AHEAD).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert_eq!(read.load(Ordering::SeqCst), taken + AHEAD);
                assert_eq!(items.next().await.unwrap(), Some(taken));
            }
        });
    }

    #[test]
    fn items_and_the_error_come_in_order() {
        within_limit(async {
            for fails in [0, 1, 4, 6, usize::MAX] {
                let (read, source) = source(7, fails);
                let mut items = ReadAhead::start(source);
                let good = fails.min(7);
                for number in 0..good {
                    assert_eq!(items.next().await.unwrap(), Some(number));
                }
                if fails < 7 {
                    let error = items.next().await.unwrap_err();
                    assert_eq!(error.to_string(), "broken");
                }
                assert_eq!(items.next().await.unwrap(), None);
                assert_eq!(items.next().await.unwrap(), None);
                assert_eq!(read.load(Ordering::SeqCst), good + 1, "nothing is read after it");
            }
        });
    }

    #[test]
    fn dropping_it_stops_the_reader() {
        within_limit(async {
            let (read, source) = source(usize::MAX, usize::MAX);
            let mut items = ReadAhead::start(source);
            items.next().await.unwrap();
            drop(items);
            // The reader drops its source.
            until(|| Arc::strong_count(&read) == 1).await;
            assert!(read.load(Ordering::SeqCst) <= 1 + AHEAD);
        });
    }

    #[test]
    fn a_panic_is_not_taken_for_the_end() {
        within_limit(async {
            let broken = (0..3).map(|number| {
                assert!(number < 2, "no number");
                Item::Ok(number)
            });
            let mut items = ReadAhead::start(broken);
            assert_eq!(items.next().await.unwrap(), Some(0));
            assert_eq!(items.next().await.unwrap(), Some(1));
            let last = tokio::spawn(async move { items.next().await });
            assert!(last.await.unwrap_err().is_panic());
        });
    }

    #[test]
    fn items_in_memory_need_no_thread() {
        within_limit(async {
            let here = std::thread::current().id();
            let items = (0..3).map(|_| Ok(std::thread::current().id()));
            let mut items = ReadAhead::in_memory(items);
            for _ in 0..3 {
                assert_eq!(items.next().await.unwrap(), Some(here));
            }
            assert_eq!(items.next().await.unwrap(), None);
        });
    }
}
