//! Readers of the values that files hold most often.

use super::{Kind, Node, Reader};
use crate::{Precision, Recompute};

fn int(node: &Node) -> Option<i64> {
    match node.kind {
        Kind::Int(value) => Some(value),
        _ => None,
    }
}

fn number(node: &Node) -> Option<f64> {
    match node.kind {
        Kind::Int(value) => Some(value as f64),
        Kind::Float(value) if value.is_finite() => Some(value),
        _ => None,
    }
}

fn unsigned(node: &Node) -> Option<u64> {
    int(node).and_then(|value| u64::try_from(value).ok())
}

/// A whole number, 1 or more.
pub const SIZE: Reader<u64> =
    Reader::new("a whole number, 1 or more", |node| unsigned(node).filter(|value| *value > 0));

/// A whole number, 0 or more.
pub const COUNT: Reader<u64> = Reader::new("a whole number, 0 or more", unsigned);

/// A whole number.
pub const INTEGER: Reader<i64> = Reader::new("a whole number", int);

/// A number.
pub const NUMBER: Reader<f64> = Reader::new("a number", number);

/// A number, 0 or more.
pub const NON_NEGATIVE: Reader<f64> =
    Reader::new("a number, 0 or more", |node| number(node).filter(|value| *value >= 0.0));

/// A number above 0.
pub const POSITIVE: Reader<f64> =
    Reader::new("a number above 0", |node| number(node).filter(|value| *value > 0.0));

/// A number between 0 and 1.
pub const PROBABILITY: Reader<f64> = Reader::new("a number between 0 and 1", |node| {
    number(node).filter(|p| (0.0..=1.0).contains(p))
});

/// `true` or `false`.
pub const FLAG: Reader<bool> = Reader::new("`true` or `false`", |node| match node.kind {
    Kind::Bool(value) => Some(value),
    _ => None,
});

/// The activations that layers recompute in their backward pass.
pub const RECOMPUTE: Reader<Recompute> =
    Reader::keyword("`none`, `selective` or `full`", &["none", "selective", "full"], |node| {
        match node.as_text()? {
            "none" => Some(Recompute::None),
            "selective" => Some(Recompute::Selective),
            "full" => Some(Recompute::Full),
            _ => None,
        }
    });

/// In which type products are computed.
pub const PRECISION: Reader<Precision> =
    Reader::keyword("`f32`, `bf16` or `fp16`", &["f32", "bf16", "fp16"], |node| {
        match node.as_text()? {
            "f32" => Some(Precision::F32),
            "bf16" => Some(Precision::Bf16),
            "fp16" => Some(Precision::Fp16),
            _ => None,
        }
    });

/// Text. A number or `true` where text is meant is taken as it would be written.
pub const TEXT: Reader<String> = Reader::new("text", |node| match &node.kind {
    Kind::Text(text) => Some(text.clone()),
    Kind::Int(value) => Some(value.to_string()),
    Kind::Bool(value) => Some(value.to_string()),
    _ => None,
});
