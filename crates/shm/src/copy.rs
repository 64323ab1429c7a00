//! Copies large data with several threads, because one core cannot use the whole memory bandwidth.

use parking_lot::Mutex;
use std::num::NonZero;
use std::thread;

/// A smaller copy completes before another thread has started.
const LARGE: usize = 2 << 20;
/// Threads take pieces of this size, so that one which starts late takes fewer.
const PIECE: usize = 256 << 10;
/// More threads are not faster.
const MOST: usize = 4;

/// Copies `from`, which is as long as `to`. Uses several threads for large data.
pub fn copy(to: &mut [u8], from: &[u8]) {
    debug_assert_eq!(to.len(), from.len(), "a copy is as long as what is copied");
    let threads = if to.len() < LARGE {
        1
    } else {
        thread::available_parallelism().map_or(1, NonZero::get).min(MOST)
    };
    let pieces = Mutex::new(to.chunks_mut(PIECE).zip(from.chunks(PIECE)));
    let next = || pieces.lock().next();
    let work = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If the system has no more threads, the existing ones do all the work.
            thread::Builder::new().name("copy".into()).spawn_scoped(scope, work).ok();
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_size() {
        for len in [0, 1, PIECE, LARGE - 1, LARGE, 3 * LARGE + 12_345] {
            let from: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut to = vec![255; len];
            copy(&mut to, &from);
            assert!(to == from, "{len} bytes");
        }
    }
}
