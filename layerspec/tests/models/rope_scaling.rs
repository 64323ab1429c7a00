//! Scaled angles of rotary embeddings: how each type is read, and what is wrong with others.

use crate::support::model;
use layerspec::layers::{Llama3, LlamaAttention, LongRope, RopeScaling, Yarn};
use layerspec::{Bindings, LayerGraph, LayerKind};

/// Heads of 4 elements, which are two pairs.
fn text(arguments: &str) -> String {
    format!(
        "inputs: {{x: [batch, seq, 8]}}\nlayers:\n  - LlamaAttention: {{hidden_size: 8, \
         num_attention_heads: 2, {arguments}}}\n"
    )
}

fn attention(arguments: &str) -> LlamaAttention {
    match model(&text(arguments)).layers()[0].kind.clone() {
        LayerKind::LlamaAttention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn scaling(mapping: &str) -> RopeScaling {
    attention(&format!("max_position_embeddings: 64, rope_scaling: {mapping}"))
        .rope_scaling
        .unwrap()
}

/// The error of these arguments is at `place` of the text, and says this.
fn refuses(arguments: &str, place: &str, message: &str) {
    let yaml = text(arguments);
    let error = LayerGraph::from_yaml(&yaml, "model.yaml").expect_err(arguments);
    let location = error.location.unwrap();
    let line = yaml.lines().nth(location.line as usize - 1).unwrap();
    let found: String = line.chars().skip(location.column as usize - 1).collect();
    assert!(found.starts_with(place), "{arguments}: the error is at `{found}`");
    let expected = format!("model.yaml:{location}: layer 0 (LlamaAttention): {message}");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn each_type_is_read() {
    assert_eq!(scaling("{rope_type: linear, factor: 2}"), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(scaling("{factor: 1.5, rope_type: dynamic}"), RopeScaling::Dynamic { factor: 1.5 });
    assert_eq!(
        scaling(
            "{rope_type: llama3, factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, \
             original_max_position_embeddings: 8192}"
        ),
        RopeScaling::Llama3(Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: Some(8192),
        })
    );
    assert_eq!(
        scaling("{rope_type: longrope, short_factor: [1, 1.5], long_factor: [2.0, 4]}"),
        RopeScaling::LongRope(LongRope {
            short_factor: vec![1.0, 1.5],
            long_factor: vec![2.0, 4.0],
            original_max_position_embeddings: None,
            attention_factor: None,
            factor: None,
        })
    );
}

#[test]
fn yarn_has_defaults() {
    let plain = Yarn {
        factor: 4.0,
        original_max_position_embeddings: None,
        attention_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    };
    let same = "{rope_type: yarn, factor: 4.0, beta_fast: null, mscale: null}";
    assert_eq!(scaling(same), RopeScaling::Yarn(plain.clone()));
    let other = Yarn {
        original_max_position_embeddings: Some(32),
        attention_factor: Some(1.0),
        beta_fast: 16.0,
        beta_slow: 2.0,
        mscale: Some(1.0),
        mscale_all_dim: Some(0.7),
        truncate: false,
        ..plain
    };
    let text = "{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 32, \
                attention_factor: 1, beta_fast: 16, beta_slow: 2, mscale: 1.0, mscale_all_dim: \
                0.7, truncate: false}";
    assert_eq!(scaling(text), RopeScaling::Yarn(other));
}

#[test]
fn original_positions_may_be_those_of_the_layer() {
    let yarn = scaling("{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 32}");
    assert_eq!(yarn.original_positions(Some(64)), Some(32));
    let dynamic = scaling("{rope_type: dynamic, factor: 4.0}");
    assert_eq!(dynamic.original_positions(Some(64)), Some(64));
}

#[test]
fn a_wrong_key_is_named() {
    const TYPES: &str = "`linear`, `dynamic`, `llama3`, `yarn` or `longrope`";
    refuses(
        "rope_scaling: 3",
        "3",
        "`rope_scaling`: expected a mapping with `rope_type` and its numbers, or null, found `3`",
    );
    refuses(
        "rope_scaling: {factor: 2.0}",
        "{factor",
        &format!("missing key `rope_type`: expected {TYPES}"),
    );
    refuses(
        "rope_scaling: {rope_type: lineer, factor: 2.0}",
        "lineer",
        &format!("`rope_type`: expected {TYPES}, found `lineer`; did you mean `linear`?"),
    );
    refuses(
        "rope_scaling: {rope_type: linear, factr: 2.0}",
        "factr",
        "unknown key `factr`; did you mean `factor`?",
    );
    refuses(
        "rope_scaling: {rope_type: linear, factor: 2.0, beta_fast: 1}",
        "beta_fast",
        "unknown key `beta_fast`: expected one of rope_type, factor",
    );
    refuses(
        "rope_scaling: {rope_type: linear, factor: 2.0, factor: 3.0}",
        "factor: 3.0",
        "key `factor` is given twice, first in line 3",
    );
    refuses(
        "rope_scaling: {rope_type: linear}",
        "{rope_type",
        "missing key `factor`: expected a number above 0",
    );
}

#[test]
fn a_wrong_value_is_named() {
    refuses(
        "rope_scaling: {rope_type: linear, factor: 0}",
        "0}",
        "`factor`: expected a number above 0, found `0`",
    );
    refuses(
        "rope_scaling: {rope_type: llama3, factor: 8.0, low_freq_factor: low, high_freq_factor: 4}",
        "low,",
        "`low_freq_factor`: expected a number above 0, found `low`",
    );
    refuses(
        "rope_scaling: {rope_type: yarn, factor: 8.0, truncate: 3}",
        "3}",
        "`truncate`: expected `true` or `false`, found `3`",
    );
    refuses(
        "rope_scaling: {rope_type: longrope, short_factor: [1, 2], long_factor: [1, x]}",
        "[1, x]",
        "`long_factor`: expected a list of numbers above 0, found a list",
    );
    refuses("rope_theta: x", "x", "`rope_theta`: expected a number, or null, found `x`");
    refuses("rope_theta: 0", "0", "`rope_theta`: expected a number above 0, or null");
}

#[test]
fn arguments_fit_each_other() {
    refuses(
        "rope_scaling: {rope_type: dynamic, factor: 2.0}",
        "LlamaAttention",
        "`max_position_embeddings`: expected a whole number, 1 or more, as `dynamic` scales beyond \
         it",
    );
    refuses(
        "rope_scaling: {rope_type: dynamic, factor: 2.0}, max_position_embeddings: 9, head_dim: 2",
        "2}",
        "`head_dim`: expected a number above 2 for `dynamic`",
    );
    refuses(
        "rope_scaling: {rope_type: yarn, factor: 2.0}",
        "{rope_type",
        "`rope_scaling`: expected an `original_max_position_embeddings` in it, or \
         `max_position_embeddings` beside it",
    );
    let yarn = "rope_scaling: {rope_type: yarn, factor: 2.0}, max_position_embeddings: 9";
    refuses(
        &format!("{yarn}, rope_theta: 1.0"),
        "1.0",
        "`rope_theta`: expected a number above 1 for `yarn`",
    );
    refuses(
        "max_position_embeddings: 9, rope_scaling: {rope_type: llama3, factor: 8.0, \
         low_freq_factor: 4, high_freq_factor: 4}",
        "{rope_type",
        "`rope_scaling`: expected a `high_freq_factor` above its `low_freq_factor` (4)",
    );
    refuses(
        &format!("{yarn}, rope_theta: null"),
        "{rope_type",
        "`rope_scaling`: expected null, as `rope_theta: null` turns nothing",
    );
    let longrope =
        |rest: &str| format!("rope_scaling: {{rope_type: longrope, short_factor: [1, 2], {rest}}}");
    refuses(
        &longrope("long_factor: [1], original_max_position_embeddings: 9"),
        "{rope_type",
        "`rope_scaling`: expected a `long_factor` of 2 numbers, one for each pair of a head, and \
         not 1",
    );
    refuses(
        &longrope("long_factor: [1, 2], original_max_position_embeddings: 9"),
        "{rope_type",
        "`rope_scaling`: expected a `factor` or an `attention_factor` in it, or \
         `max_position_embeddings` beside it",
    );
    refuses(
        &longrope("long_factor: [1, 2], original_max_position_embeddings: 1, factor: 2"),
        "{rope_type",
        "`rope_scaling`: expected original positions above 1 for `longrope`",
    );
}

/// An argument that is null is not one that is left out.
#[test]
fn without_a_base_nothing_turns() {
    assert_eq!(attention("is_causal: true").rope_theta, Some(10000.0));
    assert_eq!(attention("rope_theta: 500").rope_theta, Some(500.0));
    assert_eq!(attention("rope_theta: null").rope_theta, None);
    assert_eq!(attention("rope_scaling: null"), attention("is_causal: true"));
    // Then elements need no partner.
    assert_eq!(attention("rope_theta: null, head_dim: 3").head_size(), 3);
    let flops = |arguments: &str| {
        let graph = model(&text(arguments));
        let bindings = Bindings::new().with("batch", 2).with("seq", 3);
        graph.cost(graph.layers()[0].id, &bindings).unwrap().flops
    };
    // Four for each element of queries and keys.
    assert_eq!(flops("rope_theta: 500") - flops("rope_theta: null"), 2 * 3 * (8 + 8) * 4);
}

#[test]
fn scaled_layers_keep_their_shape_and_continue() {
    let graph = model(&text(
        "max_position_embeddings: 64, rope_scaling: {rope_type: longrope, short_factor: [1, 1], \
         long_factor: [2, 4]}",
    ));
    assert_eq!(graph.value(graph.outputs()[0]).ty.to_string(), "[batch, seq, 8]");
    assert_eq!(graph.incremental(graph.inputs()).map(|layers| layers.len()), Ok(1));
    let rotary = model(
        "inputs: {x: [batch, 2, seq, 4]}\nlayers:\n  - RotaryEmbedding: {head_dim: 4, \
         rope_scaling: {rope_type: linear, factor: 2}}\n",
    );
    assert_eq!(rotary.value(rotary.outputs()[0]).ty.to_string(), "[batch, 2, seq, 4]");
}
