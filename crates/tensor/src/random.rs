//! Random numbers that depend only on names, not on the process, the thread, or earlier draws.

use crate::{ffi, TensorError};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

/// The key of a stream of random numbers, in words and numbers: `(run seed, "init", layer,
/// parameter)`.
///
/// The same words in the same order give the same stream in every build and on every machine.
#[derive(Clone, Debug)]
pub struct Key(Sha256);

impl Key {
    /// A key with only the run's seed.
    pub fn new(run_seed: u64) -> Self {
        Key(Sha256::new()).number(run_seed)
    }

    /// The key with a word added.
    pub fn text(mut self, word: &str) -> Self {
        // The length keeps ("ab", "c") apart from ("a", "bc"), the first byte words from numbers.
        self.0.update([b't']);
        self.0.update((word.len() as u64).to_le_bytes());
        self.0.update(word.as_bytes());
        self
    }

    /// The key with a number added.
    pub fn number(mut self, number: u64) -> Self {
        self.0.update([b'n']);
        self.0.update(number.to_le_bytes());
        self
    }

    /// The stream of this key on a device. Each call starts it from the beginning.
    pub fn stream(&self, device: Device) -> Result<Stream, TensorError> {
        Stream::new(self.seed(), device)
    }

    pub(crate) fn seed(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest.iter().take(8).rev().fold(0, |seed, &byte| (seed << 8) | u64::from(byte))
    }
}

/// A separate random generator, independent of libtorch's process-wide ones.
///
/// The same key gives the same numbers on the same kind of device; a CPU and a GPU differ.
#[derive(Debug)]
pub struct Stream {
    generator: *mut ffi::Generator,
    device: Device,
}

// SAFETY: the generator is owned by this value alone and has no tie to the thread that made it.
unsafe impl Send for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `bm_generator_new`, freed once.
        unsafe { ffi::bm_generator_free(self.generator) }
    }
}

type Fill =
    unsafe extern "C" fn(*mut torch_sys::C_tensor, *mut ffi::Generator, f64, f64) -> ffi::Status;

impl Stream {
    fn new(seed: u64, device: Device) -> Result<Self, TensorError> {
        let (kind, index) = ffi::device_code(device);
        let mut generator = std::ptr::null_mut();
        // SAFETY: on success the pointer is set to a generator that is ours.
        let status = unsafe { ffi::bm_generator_new(kind, index, seed, &mut generator) };
        ffi::check("making a random generator", status)?;
        Ok(Stream { generator, device })
    }

    /// A tensor drawn evenly from `low` (included) to `high` (excluded), of a floating kind.
    pub fn uniform(
        &mut self,
        shape: &[i64],
        kind: Kind,
        low: f64,
        high: f64,
    ) -> Result<Tensor, TensorError> {
        let tensor = Tensor::f_empty(shape, (kind, self.device))?;
        self.fill_uniform(&tensor, low, high)?;
        Ok(tensor)
    }

    /// Draws as [`Stream::uniform`] into a contiguous tensor of the same device.
    pub fn fill_uniform(
        &mut self,
        target: &Tensor,
        low: f64,
        high: f64,
    ) -> Result<(), TensorError> {
        self.fill(target, "drawing uniform numbers", ffi::bm_uniform_, low, high)
    }

    /// A tensor drawn from the normal distribution, of a floating kind.
    pub fn normal(
        &mut self,
        shape: &[i64],
        kind: Kind,
        mean: f64,
        std: f64,
    ) -> Result<Tensor, TensorError> {
        let tensor = Tensor::f_empty(shape, (kind, self.device))?;
        self.fill_normal(&tensor, mean, std)?;
        Ok(tensor)
    }

    /// Draws as [`Stream::normal`] into a contiguous tensor of the same device.
    pub fn fill_normal(&mut self, target: &Tensor, mean: f64, std: f64) -> Result<(), TensorError> {
        self.fill(target, "drawing normal numbers", ffi::bm_normal_, mean, std)
    }

    /// A tensor of ones with probability `keep`, else zeros.
    pub fn bernoulli_mask(
        &mut self,
        shape: &[i64],
        kind: Kind,
        keep: f64,
    ) -> Result<Tensor, TensorError> {
        let mut tensor = Tensor::f_empty(shape, (kind, self.device))?;
        // SAFETY: both pointers are to live objects that nobody else uses during the call.
        let status = unsafe { ffi::bm_bernoulli_(tensor.as_mut_ptr(), self.generator, keep) };
        ffi::check("drawing a mask", status)?;
        Ok(tensor)
    }

    fn fill(
        &mut self,
        target: &Tensor,
        attempted: &str,
        fill: Fill,
        a: f64,
        b: f64,
    ) -> Result<(), TensorError> {
        let mut target = target.f_detach()?;
        // SAFETY: both pointers are to live objects. libtorch allows writes through any reference.
        ffi::check(attempted, unsafe { fill(target.as_mut_ptr(), self.generator, a, b) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(7).text("init").text("0").text("weight")
    }

    fn draw(key: &Key) -> Vec<f32> {
        Vec::try_from(
            key.stream(Device::Cpu).unwrap().uniform(&[100], Kind::Float, -1.0, 1.0).unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn the_seed_of_a_key_never_changes() {
        assert_eq!(key().seed(), 7_853_014_342_373_578_204);
    }

    #[test]
    fn other_words_give_other_numbers() {
        let keys = [
            key(),
            Key::new(8).text("init").text("0").text("weight"),
            Key::new(7).text("init").text("0").text("bias"),
            Key::new(7).text("init").text("0weight"),
            Key::new(7).text("init0").text("weight"),
            key().number(0),
            key().text("\0\0\0\0\0\0\0\0"),
        ];
        let seeds: std::collections::HashSet<u64> = keys.iter().map(Key::seed).collect();
        assert_eq!(seeds.len(), keys.len());
        assert_ne!(draw(&keys[0]), draw(&keys[1]));
    }

    #[test]
    fn a_stream_depends_on_nothing_but_its_key() {
        let alone = draw(&key());
        tch::manual_seed(3);
        let others: Vec<_> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    for number in 0..50 {
                        draw(&Key::new(thread).number(number));
                    }
                    draw(&key())
                })
            })
            .collect();
        for other in others {
            assert_eq!(other.join().unwrap(), alone);
        }
    }

    #[test]
    fn draws_have_the_distribution_asked_for() {
        let mut stream = key().stream(Device::Cpu).unwrap();
        let uniform = stream.uniform(&[10_000], Kind::Float, 2.0, 4.0).unwrap();
        assert!(uniform.min().double_value(&[]) >= 2.0 && uniform.max().double_value(&[]) < 4.0);
        assert!((uniform.mean(Kind::Float).double_value(&[]) - 3.0).abs() < 0.05);
        let normal = stream.normal(&[10_000], Kind::Double, 1.0, 0.5).unwrap();
        assert!((normal.mean(Kind::Double).double_value(&[]) - 1.0).abs() < 0.02);
        assert!((normal.std(true).double_value(&[]) - 0.5).abs() < 0.02);
        let mask = stream.bernoulli_mask(&[10_000], Kind::Float, 0.8).unwrap();
        assert!((mask.mean(Kind::Float).double_value(&[]) - 0.8).abs() < 0.02);
        assert_eq!((mask.eq(0.0).logical_or(&mask.eq(1.0))).all().int64_value(&[]), 1);
    }

    #[test]
    fn impossible_draws_are_errors() {
        let mut stream = key().stream(Device::Cpu).unwrap();
        assert!(stream.uniform(&[-1], Kind::Float, 0.0, 1.0).is_err());
        assert!(stream.uniform(&[1], Kind::Float, 1.0, 0.0).is_err());
        assert!(stream.normal(&[1], Kind::Float, 0.0, -1.0).is_err());
        assert!(stream.bernoulli_mask(&[1], Kind::Float, 1.5).is_err());
        assert!(key().stream(Device::Vulkan).is_err());
    }
}
