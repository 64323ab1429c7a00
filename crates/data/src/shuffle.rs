//! The order of samples in an epoch, and the choice of the validation set.

use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// Up to this number of samples, an order is a list, and all orders are equally likely. Beyond it,
/// each place is computed.
const LISTED: u64 = 1 << 20;

/// The order of samples in an epoch. The same seed and epoch produce the same order on every
/// machine. Any place can be computed without the places before it.
///
/// ```
/// use data::Order;
/// assert_eq!(Order::new(4, None, 0).at(0..4), [0, 1, 2, 3]);
/// assert_eq!(
///     Order::new(100, Some(7), 3).at(60..70),
///     Order::new(100, Some(7), 3).at(0..100)[60..70]
/// );
/// assert_ne!(Order::new(100, Some(7), 3).at(0..100), Order::new(100, Some(7), 4).at(0..100));
/// ```
#[derive(Clone, Debug)]
pub struct Order {
    samples: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    AsInTheFile,
    Listed(Vec<i64>),
    Permuted(Permutation),
}

impl Order {
    /// Makes an order: shuffled by seed and epoch, or as in the file if `seed` is `None`.
    pub fn new(samples: u64, seed: Option<u64>, epoch: u64) -> Self {
        let samples = samples.min(i64::MAX as u64);
        let Some(seed) = seed else { return Order { samples, kind: Kind::AsInTheFile } };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(epoch);
        if samples > LISTED {
            return Order { samples, kind: Kind::Permuted(Permutation::new(samples, &mut random)) };
        }
        let mut numbers: Vec<i64> = (0..samples.cast_signed()).collect();
        numbers.shuffle(&mut random);
        Order { samples, kind: Kind::Listed(numbers) }
    }

    /// Returns the samples at these places. Places past the end are left out.
    pub fn at(&self, places: Range<u64>) -> Vec<i64> {
        let places = places.start.min(self.samples)..places.end.min(self.samples);
        match &self.kind {
            Kind::AsInTheFile => places.map(u64::cast_signed).collect(),
            Kind::Listed(numbers) => numbers[places.start as usize..places.end as usize].to_vec(),
            Kind::Permuted(permutation) => {
                places.map(|place| permutation.at(place).cast_signed()).collect()
            }
        }
    }
}

/// A permutation of `0..size` that needs no memory.
///
/// It is a Feistel network over the next larger power of four, repeated until the result is below
/// the size (cycle walking): Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002,
/// <https://doi.org/10.1007/3-540-45760-7_9>. The shuffled numbers are no secret, so the round
/// function is only a mixer.
#[derive(Clone, Debug)]
struct Permutation {
    size: u64,
    /// The number of bits of one half.
    bits: u32,
    keys: [u64; 6],
}

impl Permutation {
    fn new(size: u64, random: &mut ChaCha8Rng) -> Self {
        let bits = (u64::BITS - size.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
        Permutation { size, bits, keys: std::array::from_fn(|_| random.next_u64()) }
    }

    /// Returns the number at a place. At least every fourth number of the network is below the
    /// size, so the walk takes at most four steps on average.
    fn at(&self, place: u64) -> u64 {
        let mut number = self.feistel(place);
        while number >= self.size {
            number = self.feistel(number);
        }
        number
    }

    fn feistel(&self, number: u64) -> u64 {
        let half = (1u64 << self.bits) - 1;
        let halves = (number >> self.bits, number & half);
        let (left, right) = self
            .keys
            .iter()
            .fold(halves, |(left, right), key| (right, left ^ (mix(right ^ key) & half)));
        left << self.bits | right
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of the number.
/// Steele, Lea and Flood, OOPSLA 2014, <https://doi.org/10.1145/2660193.2660195>.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The samples of a data set that are drawn for validation, or the others.
///
/// A sample's lot depends only on the seed and its number. So data that is added at the end moves
/// no sample to the other side, unless a part would have been empty without it.
#[derive(Clone, Debug)]
pub(super) struct SplitSubset {
    seed: u64,
    /// Samples whose lot is below this are drawn.
    limit: u64,
    drawn: bool,
    /// The number of this part's samples before each block.
    before: Vec<u64>,
    /// The number of this part's samples.
    pub(super) samples: u64,
}

fn lot(seed: u64, number: u64) -> u64 {
    mix(seed ^ number)
}

/// The number of samples in a block. To find a sample, one block is searched.
const BLOCK: u64 = 1024;

impl SplitSubset {
    /// Draws this share of the samples. Returns the rest and those drawn. None is empty if there
    /// are two samples or more.
    pub(super) fn parts(samples: u64, seed: u64, share: f64) -> [Self; 2] {
        let limit = (share * u64::MAX as f64) as u64;
        let parts = |limit| [false, true].map(|drawn| Self::new(samples, seed, limit, drawn));
        let lots = || (0..samples).map(|number| lot(mix(seed), number));
        match parts(limit) {
            [rest, _] if rest.samples == 0 => parts(lots().max().unwrap_or(0)),
            [_, drawn] if drawn.samples == 0 => {
                parts(lots().min().map_or(0, |lowest| lowest.saturating_add(1)))
            }
            parts => parts,
        }
    }

    fn new(samples: u64, seed: u64, limit: u64, drawn: bool) -> Self {
        let mut part =
            SplitSubset { seed: mix(seed), limit, drawn, before: Vec::new(), samples: 0 };
        for block in 0..samples.div_ceil(BLOCK) {
            part.before.push(part.samples);
            let numbers = block * BLOCK..((block + 1) * BLOCK).min(samples);
            part.samples += numbers.filter(|number| part.has(*number)).count() as u64;
        }
        part
    }

    fn has(&self, number: u64) -> bool {
        (lot(self.seed, number) < self.limit) == self.drawn
    }

    /// Returns the number in the whole data set of a sample of this part.
    pub(super) fn number(&self, of_part: i64) -> Option<i64> {
        let wanted = u64::try_from(of_part).ok().filter(|wanted| *wanted < self.samples)?;
        let block = self.before.partition_point(|before| *before <= wanted).checked_sub(1)?;
        let numbers = block as u64 * BLOCK..(block as u64 + 1) * BLOCK;
        let number =
            numbers.filter(|number| self.has(*number)).nth((wanted - self.before[block]) as usize);
        number.map(u64::cast_signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_every_number_once() {
        for size in [1, 2, 3, 5, 16, 17, 1000, 4097] {
            let permutation = Permutation::new(size, &mut ChaCha8Rng::seed_from_u64(size));
            let mut numbers: Vec<u64> = (0..size).map(|place| permutation.at(place)).collect();
            assert!(size < 16 || !numbers.is_sorted());
            numbers.sort();
            assert!(numbers.into_iter().eq(0..size));
        }
    }

    /// Places and numbers of a large order match no more often than by chance.
    #[test]
    fn a_large_order_is_mixed_and_another_in_each_epoch() {
        let size = 1 << 40;
        let (one, other) = (Order::new(size, Some(1), 0), Order::new(size, Some(1), 1));
        let numbers = one.at(size - 4000..size);
        assert_eq!(numbers[1000..1010], one.at(size - 3000..size - 2990));
        assert_ne!(numbers, other.at(size - 4000..size));
        let mut quarters = [0; 4];
        numbers.iter().for_each(|number| quarters[(*number >> 38) as usize] += 1);
        assert!(quarters.iter().all(|count| (880..1120).contains(count)), "{quarters:?}");
        let even = numbers.iter().filter(|number| *number % 2 == 0).count();
        assert!((1880..2120).contains(&even), "{even}");
    }

    #[test]
    fn two_parts_are_the_whole_and_do_not_change_sides_where_data_is_added() {
        let parts = |samples| SplitSubset::parts(samples, 5, 0.1);
        let all = |part: &SplitSubset| {
            (0..part.samples as i64).map(|n| part.number(n).unwrap()).collect::<Vec<_>>()
        };
        let [rest, few] = parts(5000);
        assert!((400..600).contains(&few.samples), "{}", few.samples);
        let mut whole = [all(&few), all(&rest)].concat();
        whole.sort();
        assert!(whole.into_iter().eq(0..5000));
        assert_eq!((few.number(-1), few.number(few.samples as i64)), (None, None));
        assert_eq!(all(&parts(6000)[1])[..few.samples as usize], all(&few));
    }

    #[test]
    fn no_part_of_two_samples_or_more_is_empty() {
        let sizes = |samples, share| SplitSubset::parts(samples, 0, share).map(|p| p.samples);
        // By their lots, number 47 is the first of which 0.02 is drawn.
        assert_eq!((sizes(47, 0.02), sizes(48, 0.02), sizes(2, 0.02)), ([46, 1], [47, 1], [1, 1]));
        assert_eq!((sizes(47, 0.999), sizes(2, 0.999)), ([1, 46], [1, 1]));
        let drawn = SplitSubset::parts(47, 0, 0.02)[1].number(0).unwrap();
        let lots = (0..47).map(|number| (lot(mix(0), number), number));
        assert_eq!(lots.min().unwrap().1, drawn.cast_unsigned());
    }
}
