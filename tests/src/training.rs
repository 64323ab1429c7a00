//! The result of a training, to the bit.

use bossman::StateDict;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use tch::Tensor;
use tensor::payload;

/// The loss of every step, and the parameters and buffers after the last one.
#[derive(PartialEq)]
pub struct Training {
    /// The bits of the f32 losses.
    losses: Vec<u32>,
    /// Shape and bytes by name.
    weights: BTreeMap<String, (Vec<i64>, Bytes)>,
}

impl Training {
    /// Makes a result from losses and named tensors.
    pub fn new<'a>(
        losses: &[f32],
        weights: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    ) -> Self {
        let bytes = |t: &Tensor| Bytes::copy_from_slice(&payload::to_bytes(t).unwrap());
        Training {
            losses: losses.iter().map(|loss| loss.to_bits()).collect(),
            weights: weights
                .into_iter()
                .map(|(name, t)| (name.to_string(), (t.size(), bytes(t))))
                .collect(),
        }
    }

    /// Reads the result of `bossman train`: its metrics and its weights.
    pub fn of_files(metrics: &str, weights: &StateDict) -> Self {
        let loss = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["loss"].to_string().parse::<f32>().unwrap()
        };
        Self::new(&metrics.lines().map(loss).collect::<Vec<_>>(), weights.iter())
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.losses.len()
    }

    /// Returns the number of bytes of parameters and buffers.
    pub fn bytes(&self) -> usize {
        self.weights.values().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Panics if a bit differs, and names the loss or tensor.
    #[track_caller]
    pub fn assert_same(&self, other: &Training, what: &dyn fmt::Display) {
        assert_eq!(self.losses.len(), other.losses.len(), "{what}: other numbers of steps");
        for (step, (a, b)) in (1..).zip(self.losses.iter().zip(&other.losses)) {
            assert!(
                a == b,
                "{what}: step {step} has loss {:e}, expected {:e}",
                f32::from_bits(*b),
                f32::from_bits(*a)
            );
        }
        assert_eq!(self.names(), other.names(), "{what}: other weights");
        for (name, (shape, expected)) in &self.weights {
            let (other_shape, found) = &other.weights[name];
            assert_eq!(shape, other_shape, "{what}: {name}");
            let differ = expected.iter().zip(found).filter(|(a, b)| a != b).count();
            assert!(differ == 0, "{what}: {name} differs in {differ} of {} bytes", expected.len());
        }
    }

    /// Returns whether each loss differs from the other training's by at most this share of it.
    pub fn losses_differ_by_at_most(&self, other: &Training, share: f32) -> bool {
        let pairs = self
            .losses
            .iter()
            .zip(&other.losses)
            .map(|(a, b)| (f32::from_bits(*a), f32::from_bits(*b)));
        self.losses.len() == other.losses.len()
            && pairs.into_iter().all(|(a, b)| (a - b).abs() <= share * b.abs())
    }

    fn names(&self) -> Vec<&str> {
        self.weights.keys().map(String::as_str).collect()
    }
}
