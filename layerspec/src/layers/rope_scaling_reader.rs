//! Reads `rope_scaling`, a mapping with Hugging Face's keys. Each `rope_type` has keys of its own.

use super::rope_scaling::{Llama3, LongRope, RopeScaling, Yarn};
use crate::yaml::{Kind, Mapping, Node, Reader, FLAG, NON_NEGATIVE, POSITIVE, SIZE};
use crate::Diagnostic;

/// What stands for `beta_fast` and `beta_slow` where a file has none.
const BETAS: [f64; 2] = [32.0, 1.0];

/// A scaling, or none.
pub(super) const ROPE_SCALING: Reader<Option<RopeScaling>> = Reader::nested(
    "a mapping with `rope_type` and its numbers, or null",
    |node| match &node.kind {
        Kind::Null => Some(None),
        Kind::Map(_) => read(node).ok().map(Some),
        _ => None,
    },
    |node| match &node.kind {
        Kind::Map(_) => read(node).err(),
        _ => None,
    },
);

/// A `rope_type` with its keys.
struct Type {
    name: &'static str,
    keys: &'static [&'static str],
    read: fn(&Mapping<'_>) -> Result<RopeScaling, Diagnostic>,
}

static TYPES: [Type; 5] = [
    Type {
        name: "linear",
        keys: &["rope_type", "factor"],
        read: |keys| Ok(RopeScaling::Linear { factor: keys.required("factor", &POSITIVE)? }),
    },
    Type {
        name: "dynamic",
        keys: &["rope_type", "factor"],
        read: |keys| Ok(RopeScaling::Dynamic { factor: keys.required("factor", &POSITIVE)? }),
    },
    Type {
        name: "llama3",
        keys: &[
            "rope_type",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ],
        read: llama3,
    },
    Type {
        name: "yarn",
        keys: &[
            "rope_type",
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        read: yarn,
    },
    Type {
        name: "longrope",
        keys: &[
            "rope_type",
            "short_factor",
            "long_factor",
            "original_max_position_embeddings",
            "attention_factor",
            "factor",
        ],
        read: longrope,
    },
];

const TYPE: Reader<&'static Type> = Reader::keyword(
    "`linear`, `dynamic`, `llama3`, `yarn` or `longrope`",
    &["linear", "dynamic", "llama3", "yarn", "longrope"],
    |node| {
        let name = node.as_text()?;
        TYPES.iter().find(|one| one.name == name)
    },
);

const FACTORS: Reader<Vec<f64>> =
    Reader::new("a list of numbers above 0", |node| match &node.kind {
        Kind::List(items) => items.iter().map(POSITIVE.read).collect(),
        _ => None,
    });

fn read(node: &Node) -> Result<RopeScaling, Diagnostic> {
    let mapping = |known: &[&str]| node.mapping("`rope_scaling`", "key", known);
    // First the keys of all types: the nearest to a wrong one may be `rope_type` itself.
    let mut all: Vec<&str> = TYPES.iter().flat_map(|one| one.keys).copied().collect();
    all.sort_unstable();
    all.dedup();
    let chosen = mapping(&all)?.required("rope_type", &TYPE)?;
    (chosen.read)(&mapping(chosen.keys)?)
}

fn llama3(keys: &Mapping<'_>) -> Result<RopeScaling, Diagnostic> {
    Ok(RopeScaling::Llama3(Llama3 {
        factor: keys.required("factor", &POSITIVE)?,
        low_freq_factor: keys.required("low_freq_factor", &POSITIVE)?,
        high_freq_factor: keys.required("high_freq_factor", &POSITIVE)?,
        original_max_position_embeddings: original(keys)?,
    }))
}

fn yarn(keys: &Mapping<'_>) -> Result<RopeScaling, Diagnostic> {
    let [fast, slow] = BETAS;
    Ok(RopeScaling::Yarn(Yarn {
        factor: keys.required("factor", &POSITIVE)?,
        original_max_position_embeddings: original(keys)?,
        attention_factor: or_null(keys, "attention_factor", &NON_NEGATIVE)?,
        beta_fast: or_null(keys, "beta_fast", &POSITIVE)?.unwrap_or(fast),
        beta_slow: or_null(keys, "beta_slow", &POSITIVE)?.unwrap_or(slow),
        mscale: or_null(keys, "mscale", &NON_NEGATIVE)?,
        mscale_all_dim: or_null(keys, "mscale_all_dim", &NON_NEGATIVE)?,
        truncate: keys.optional("truncate", &FLAG)?.unwrap_or(true),
    }))
}

fn longrope(keys: &Mapping<'_>) -> Result<RopeScaling, Diagnostic> {
    Ok(RopeScaling::LongRope(LongRope {
        short_factor: keys.required("short_factor", &FACTORS)?,
        long_factor: keys.required("long_factor", &FACTORS)?,
        original_max_position_embeddings: original(keys)?,
        attention_factor: or_null(keys, "attention_factor", &NON_NEGATIVE)?,
        factor: or_null(keys, "factor", &POSITIVE)?,
    }))
}

fn original(keys: &Mapping<'_>) -> Result<Option<u64>, Diagnostic> {
    or_null(keys, "original_max_position_embeddings", &SIZE)
}

/// The value of a key that may be left out or null.
fn or_null<T>(keys: &Mapping<'_>, key: &str, reader: &Reader<T>) -> Result<Option<T>, Diagnostic> {
    match keys.get(key).map(|node| &node.kind) {
        None | Some(Kind::Null) => Ok(None),
        Some(_) => keys.optional(key, reader),
    }
}
