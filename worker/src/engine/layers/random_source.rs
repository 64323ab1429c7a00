//! The random numbers of a layer, which do not depend on the cut.

use crate::engine::config::{Mode, Pass};
use tch::Device;
use tensor::random::{Key, Stream};
use tensor::TensorError;

/// What the random numbers of a layer depend on in a pass, and nothing else.
#[derive(Clone, Copy)]
pub(crate) struct RandomSource<'a> {
    seed: u64,
    step: u64,
    microbatch: u32,
    layer: &'a str,
}

impl<'a> RandomSource<'a> {
    /// The source of a layer in a pass of a run with this seed.
    pub(crate) fn new(seed: u64, pass: &Pass, layer: &'a str) -> Self {
        // In evaluation a microbatch is a whole batch, and its number must make no difference.
        let microbatch = match pass.mode {
            Mode::Train => pass.key.index,
            Mode::Eval => 0,
        };
        RandomSource { seed, step: pass.step, microbatch, layer }
    }

    /// The key of the numbers for one purpose, such as the mask of a dropout.
    pub(crate) fn key(&self, purpose: &str) -> Key {
        let key = Key::new(self.seed).text(purpose).number(self.step);
        key.number(u64::from(self.microbatch)).text(self.layer)
    }

    /// These numbers, on a device.
    pub(crate) fn stream(&self, purpose: &str, device: Device) -> Result<Stream, TensorError> {
        self.key(purpose).stream(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::ids::MicrobatchKey;
    use tch::Kind;

    /// The first of the numbers.
    fn first(mode: Mode, step: u64, index: u32, layer: &str, purpose: &str) -> f64 {
        let key = MicrobatchKey { batch: 9, index };
        let pass = Pass { key, step, mode, defer_statistics: false, check_finite: false };
        let random = RandomSource::new(5, &pass, layer);
        let mut stream = random.stream(purpose, Device::Cpu).unwrap();
        stream.uniform(&[1], Kind::Float, 0.0, 1.0).unwrap().double_value(&[0])
    }

    #[test]
    fn in_training_each_step_microbatch_layer_and_purpose_has_numbers_of_its_own() {
        let of = |step, index, layer, purpose| first(Mode::Train, step, index, layer, purpose);
        assert_eq!(of(1, 2, "a", "mask"), of(1, 2, "a", "mask"));
        for other in [of(2, 2, "a", "mask"), of(1, 3, "a", "mask"), of(1, 2, "b", "mask")] {
            assert_ne!(of(1, 2, "a", "mask"), other);
        }
        assert_ne!(of(1, 2, "a", "mask"), of(1, 2, "a", "noise"));
    }

    #[test]
    fn in_evaluation_the_number_of_a_microbatch_makes_no_difference() {
        let of = |index| first(Mode::Eval, 1, index, "a", "mask");
        assert_eq!(of(2), of(3));
    }
}
