//! Work on many items by all cores. Results are in the order of the items, and the first error in
//! that order is returned, as if the items were worked on one after the other.

use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::thread::Builder;

/// Does the work for each item. Each thread gets `least` items or more, because starting one takes
/// time, so few items are worked on by the calling thread alone.
///
/// # Errors
/// The first error in the order of the items. Later items may have been worked on, too.
pub(super) fn map<T: Send, R: Send, E: Send>(
    items: Vec<T>,
    least: usize,
    work: impl Fn(T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let threads = (items.len() / least.max(1)).clamp(1, cores());
    map_on(threads, items, work)
}

/// Takes items from `next` until there is none, does the work for each as [`map`] does, and gives
/// the results to `take` in order. Between calls of `take` it holds items of `most` bytes in all,
/// and one more. `size` tells the bytes of an item.
///
/// # Errors
/// The first one of `next`, `work` and `take` in the order of the items.
pub(super) fn stream<T: Send, R: Send, E: Send>(
    limits: &Limits,
    mut next: impl FnMut() -> Result<Option<T>, E>,
    size: impl Fn(&T) -> usize,
    work: impl Fn(T) -> Result<R, E> + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        let (mut items, mut bytes) = (Vec::new(), 0);
        // What follows the items: more of them, or the end.
        let mut end = None;
        while end.is_none() && bytes < limits.most_bytes {
            match next() {
                Ok(Some(item)) => {
                    bytes += size(&item);
                    items.push(item);
                }
                Ok(None) => end = Some(Ok(())),
                Err(error) => end = Some(Err(error)),
            }
        }
        let threads = (bytes / limits.least_bytes.max(1)).min(items.len()).clamp(1, cores());
        // The results before an error are taken first, as their errors come before it.
        let done = map_on(threads, items, |item| Ok::<_, E>(work(item)))?;
        done.into_iter().try_for_each(|result| take(result?))?;
        if let Some(end) = end {
            return end;
        }
    }
}

/// The bytes of items that [`stream`] works on at once.
pub(super) struct Limits {
    /// The fewest for a thread.
    pub(super) least_bytes: usize,
    /// The most for all threads.
    pub(super) most_bytes: usize,
}

/// The number of cores that this process may use. Asking the system reads files.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// The parts for each thread, so that one with slow items leaves some to the others.
const PARTS: usize = 4;

fn map_on<T: Send, R: Send, E: Send>(
    threads: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    if threads < 2 {
        return items.into_iter().map(work).collect();
    }
    let (count, size) = (items.len(), items.len().div_ceil(threads * PARTS).max(1));
    let mut items = items.into_iter();
    let parts: Vec<Mutex<Vec<T>>> = (0..count.div_ceil(size))
        .map(|_| Mutex::new(items.by_ref().take(size).collect()))
        .collect();
    let next = AtomicUsize::new(0);
    let work_on_parts = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(number) else { return done };
            let part = std::mem::take(&mut *part.lock());
            let found: Result<Vec<R>, E> = part.into_iter().map(&work).collect();
            if found.is_err() {
                // Nobody begins another part. All parts before this one have been begun.
                next.fetch_max(parts.len(), Ordering::Relaxed);
            }
            done.push((number, found));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let start = |_| Builder::new().name("data".into()).spawn_scoped(scope, work_on_parts).ok();
        // A thread that the system refuses leaves its parts to the others.
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut done = work_on_parts();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    let mut results = Vec::with_capacity(count);
    for (_, found) in done {
        results.extend(found?);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::thread::ThreadId;
    use std::time::Duration;

    /// Lets later items be done before earlier ones.
    fn slow_at_first(number: usize) {
        std::thread::sleep(Duration::from_micros(if number < 10 { 2000 } else { 10 }));
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for (threads, items) in [(1, 5), (2, 0), (2, 1), (3, 2), (4, 15), (4, 16), (4, 100)] {
            let found = map_on(threads, (0..items).collect(), |number| {
                slow_at_first(number);
                Ok::<_, ()>(number * 2)
            });
            assert_eq!(found, Ok((0..items).map(|number| number * 2).collect()), "{threads}");
        }
    }

    #[test]
    fn several_threads_work_at_once() {
        // Each waits for the other.
        let both = std::sync::Barrier::new(2);
        let found = map_on(2, vec![0, 1], |_| {
            both.wait();
            Ok::<_, ()>(std::thread::current().id())
        });
        let found = found.unwrap();
        assert_ne!(found[0], found[1]);
    }

    #[test]
    fn the_first_error_wins() {
        for threads in [1, 2, 4] {
            for _ in 0..20 {
                let found = map_on(threads, (0..100).collect(), |number| {
                    slow_at_first(number);
                    match number {
                        9 | 10 | 50 | 99 => Err(number),
                        _ => Ok(()),
                    }
                });
                assert_eq!(found, Err(9), "{threads}");
            }
        }
    }

    #[test]
    fn a_panic_is_one_of_the_caller() {
        for threads in [1, 2, 4] {
            for place in [0, 37, 99] {
                let work = |number| {
                    assert_ne!(number, place, "no such place");
                    Ok::<_, ()>(())
                };
                let found = catch_unwind(AssertUnwindSafe(|| {
                    map_on(threads, (0..100).collect::<Vec<i32>>(), work)
                }));
                let panic = found.unwrap_err();
                let message = panic.downcast_ref::<String>().unwrap();
                assert!(message.contains("no such place"), "{message}");
            }
        }
    }

    #[test]
    fn few_items_start_no_thread() {
        let on = |items: usize, least| {
            let threads: Vec<ThreadId> =
                map(vec![(); items], least, |()| Ok::<_, ()>(std::thread::current().id())).unwrap();
            threads
        };
        let here = std::thread::current().id();
        assert!(on(15, 8).iter().all(|thread| *thread == here));
        assert_eq!(on(0, 0), []);
    }

    /// Streams items of a byte each, where the numbers `fails` fail in these ways.
    fn streamed(
        most_bytes: usize,
        items: u32,
        fails: [Option<u32>; 3],
    ) -> (Vec<u32>, Result<(), String>) {
        let limits = Limits { least_bytes: 1, most_bytes };
        let [read, worked, taken] = fails;
        let error = |what: &str, number: u32| format!("{what} {number}");
        let (mut number, mut found) = (0, Vec::new());
        let result = stream(
            &limits,
            || {
                let next = (number < items).then_some(number);
                number += 1;
                if next.is_some() && next == read {
                    Err(error("read", number - 1))
                } else {
                    Ok(next)
                }
            },
            |_| 1,
            |number| if Some(number) == worked { Err(error("work", number)) } else { Ok(number) },
            |number| {
                found.push(number);
                if Some(number) == taken {
                    Err(error("take", number))
                } else {
                    Ok(())
                }
            },
        );
        (found, result)
    }

    #[test]
    fn a_stream_is_as_one_loop_over_its_items() {
        for most in [1, 2, 3, 7, 100] {
            let all = |count: u32| (0..count).collect::<Vec<_>>();
            for count in [0, 1, 6, 7, 20] {
                assert_eq!(streamed(most, count, [None; 3]), (all(count), Ok(())));
            }
            let failed = |fails| {
                let (found, result) = streamed(most, 20, fails);
                (found.len(), result.unwrap_err())
            };
            assert_eq!(failed([Some(5), Some(6), None]), (5, "read 5".into()));
            assert_eq!(failed([Some(6), Some(5), None]), (5, "work 5".into()));
            assert_eq!(failed([Some(6), Some(5), Some(4)]), (5, "take 4".into()));
            assert_eq!(failed([None, Some(19), None]), (19, "work 19".into()));
        }
    }

    #[test]
    fn a_stream_holds_a_bounded_number_of_bytes() {
        let limits = Limits { least_bytes: 1, most_bytes: 10 };
        let (read, taken) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let next = || {
            read.set(read.get() + 1);
            assert!(read.get() - taken.get() <= 11, "{} of {}", taken.get(), read.get());
            Ok::<_, ()>((read.get() < 1000).then_some(()))
        };
        let take = |()| {
            taken.set(taken.get() + 1);
            Ok(())
        };
        stream(&limits, next, |()| 1, Ok, take).unwrap();
        assert_eq!(taken.get(), 999);
    }
}
