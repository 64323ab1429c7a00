//! Draws the numbers and names in frames. Most are of the plan that the fuzz runs.

use layerspec::ValueId;
use pipeline::ids::{MicrobatchKey, StageId, WorkerId};
use testkit::Random;

pub fn worker(random: &mut Random) -> WorkerId {
    WorkerId(random.below(4) as u16)
}

pub fn stage(random: &mut Random) -> StageId {
    StageId(random.below(4) as u16)
}

pub fn value(random: &mut Random) -> ValueId {
    ValueId(random.below(6) as u32)
}

pub fn batch(random: &mut Random) -> u64 {
    *random.pick(&[1, 2, 3, 4, 60, 1000, u64::MAX])
}

pub fn key(random: &mut Random) -> MicrobatchKey {
    MicrobatchKey { batch: batch(random), index: random.below(3) as u32 }
}

pub fn text(random: &mut Random) -> String {
    random.pick(&["", "0.weight", "a longer text, with \u{fc}mlauts and\nlines", "\0"]).to_string()
}

pub fn maybe<T>(random: &mut Random, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
    random.chance(50).then(|| make(random))
}
