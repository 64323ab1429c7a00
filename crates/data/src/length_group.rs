//! Batches of samples of similar length, so that little of them is padding.

use super::{Dataset, Order};

/// The number of batches whose samples are sorted together. A larger number pads less but makes an
/// epoch's batches less random.
const BATCHES_PER_GROUP: u64 = 50;

/// The batches of a part of an epoch.
///
/// As in the sampler of transformers' `group_by_length`, the samples of an order are taken one
/// group at a time, sorted by length, and cut into batches. Unlike there, the batches of a group
/// are then shuffled, too.
#[derive(Clone, Debug)]
pub(super) struct LengthGroup {
    epoch: u64,
    number: u64,
    batches: Vec<Vec<i64>>,
}

/// The order of the samples in an epoch.
pub(super) struct Epoch<'a> {
    pub(super) data: &'a Dataset,
    pub(super) order: &'a Order,
    pub(super) seed: u64,
    pub(super) number: u64,
    pub(super) batch_size: u64,
}

impl LengthGroup {
    /// Returns the samples of a batch and its group. `before` is the group of the previous batch.
    pub(super) fn batch(
        before: Option<LengthGroup>,
        epoch: &Epoch,
        batch: u64,
    ) -> (Vec<i64>, LengthGroup) {
        let number = batch / BATCHES_PER_GROUP;
        let group = before.filter(|group| (group.epoch, group.number) == (epoch.number, number));
        let group = group.unwrap_or_else(|| LengthGroup::new(epoch, number));
        let place = usize::try_from(batch % BATCHES_PER_GROUP).unwrap_or(usize::MAX);
        (group.batches.get(place).cloned().unwrap_or_default(), group)
    }

    fn new(epoch: &Epoch, number: u64) -> Self {
        let Epoch { data, order, seed, number: epoch, batch_size: size } = *epoch;
        let width = BATCHES_PER_GROUP.saturating_mul(size);
        let start = number.saturating_mul(width);
        let mut samples = order.at(start..start.saturating_add(width));
        samples.sort_by_key(|sample| (data.length(*sample), *sample));
        let batches: Vec<&[i64]> =
            samples.chunks(usize::try_from(size).unwrap_or(usize::MAX).max(1)).collect();
        // A stream of random numbers that differs from those of the epochs.
        let shuffled = Order::new(batches.len() as u64, Some(seed), epoch | (number + 1) << 32);
        let batches = shuffled
            .at(0..batches.len() as u64)
            .into_iter()
            .map(|place| batches[place as usize].to_vec());
        LengthGroup { epoch, number, batches: batches.collect() }
    }
}
