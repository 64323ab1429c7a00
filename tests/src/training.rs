//! The result of a training, to the bit.

use bossman::StateDict;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use tch::{Kind, Tensor};
use tensor::payload;

/// The loss of every step, and the parameters and buffers after the last one.
#[derive(PartialEq)]
pub struct Training {
    /// The bits of the f32 losses.
    losses: Vec<u32>,
    /// Shape, type and bytes by name.
    weights: BTreeMap<String, (Vec<i64>, Kind, Bytes)>,
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
                .map(|(name, t)| (name.to_string(), (t.size(), t.kind(), bytes(t))))
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
        self.weights.values().map(|(_, _, bytes)| bytes.len()).sum()
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
        for (name, (shape, kind, expected)) in &self.weights {
            let (other_shape, other_kind, found) = &other.weights[name];
            assert_eq!((shape, kind), (other_shape, other_kind), "{what}: {name}");
            if expected != found {
                let differ = expected.iter().zip(found).filter(|(a, b)| a != b).count();
                panic!("{what}: {name} differs in {differ} of {} bytes", expected.len());
            }
        }
    }

    /// Panics if a loss or an element differs by more than this share of the loss, or of its
    /// tensor's largest element. Leaves out the tensors of these names.
    #[track_caller]
    pub fn assert_close(
        &self,
        other: &Training,
        share: f64,
        left_out: &[&str],
        what: &dyn fmt::Display,
    ) {
        assert_eq!(self.losses.len(), other.losses.len(), "{what}: other numbers of steps");
        let of_bits = |bits: &u32| f64::from(f32::from_bits(*bits));
        for (step, (a, b)) in (1..).zip(self.losses.iter().zip(&other.losses)) {
            let (a, b) = (of_bits(a), of_bits(b));
            assert!((a - b).abs() <= share * a.abs(), "{what}: step {step} has losses {a}, {b}");
        }
        assert_eq!(self.names(), other.names(), "{what}: other weights");
        let compared = self.weights.iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
        for (name, (shape, kind, bytes)) in compared {
            let (other_shape, other_kind, other_bytes) = &other.weights[name];
            assert_eq!((shape, kind), (other_shape, other_kind), "{what}: {name}");
            if *kind != Kind::Float {
                assert_eq!(bytes, other_bytes, "{what}: {name}");
                continue;
            }
            let floats = |bytes: &[u8]| -> Vec<f64> {
                let four = bytes.chunks_exact(4).map(|four| four.try_into().unwrap());
                four.map(|four| f64::from(f32::from_le_bytes(four))).collect()
            };
            let (a, b) = (floats(bytes), floats(other_bytes));
            let largest = a.iter().fold(0f64, |largest, number| largest.max(number.abs()));
            let pairs = || a.iter().zip(&b).map(|(a, b)| (a - b).abs());
            let worst = pairs().fold(0f64, f64::max);
            // `max` passes over what is not a number.
            assert!(
                worst <= share * largest && !pairs().any(f64::is_nan),
                "{what}: {name} differs by {worst:e}, and its largest element is {largest:e}"
            );
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
