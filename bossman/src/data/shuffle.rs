//! The order of samples in an epoch.

use rand::seq::SliceRandom;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The numbers `0..samples`, shuffled by seed and epoch, or as they stand in the file. The same seed
/// and epoch give the same order on every machine.
///
/// ```
/// use bossman::data::order;
/// assert_eq!(order(4, None, 0), [0, 1, 2, 3]);
/// assert_eq!(order(100, Some(7), 3), order(100, Some(7), 3));
/// assert_ne!(order(100, Some(7), 3), order(100, Some(7), 4));
/// ```
pub fn order(samples: u64, seed: Option<u64>, epoch: u64) -> Vec<i64> {
    let mut numbers: Vec<i64> = (0..samples).filter_map(|n| i64::try_from(n).ok()).collect();
    if let Some(seed) = seed {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(epoch);
        numbers.shuffle(&mut random);
    }
    numbers
}
