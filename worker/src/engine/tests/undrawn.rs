//! Stages whose initial values are drawn late, or never.

use super::models::TEXT;
use super::*;

/// An embedding with a row of zeros, and a layer.
const ROWS: &str = "
model: rows
inputs: {x: {shape: [batch, 4], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 10, embedding_dim: 3, padding_idx: 4}
  - Linear: {in_features: 3, out_features: 2}
";

fn undrawn(yaml: &str) -> Engine {
    Engine::build_undrawn(whole(&graph(yaml), false), &CustomLayers::default()).unwrap()
}

/// The parameters that lack values.
fn lacking(engine: &Engine) -> Vec<&str> {
    let params = engine.params.params().all.iter();
    params.filter(|param| param.undrawn.is_some()).map(|param| param.name.as_str()).collect()
}

/// Elements of the embedding's weight.
fn set(engine: &mut Engine, elements: std::ops::Range<i64>) {
    let values = Tensor::arange_start(elements.start, elements.end, (Kind::Float, Device::Cpu));
    engine.load_slice("0.weight", elements.start.cast_unsigned(), &values).unwrap();
}

/// The state of a stage that is drawn at once, in which these elements are set afterwards.
fn drawn_first(elements: std::ops::Range<i64>) -> Vec<(String, Tensor)> {
    let mut engine = engine(ROWS);
    set(&mut engine, elements);
    engine.state().unwrap()
}

#[test]
fn what_is_drawn_late_is_what_is_drawn_at_once() {
    for yaml in [ROWS, TEXT] {
        let mut late = undrawn(yaml);
        assert!(!lacking(&late).is_empty());
        late.draw_parameters().unwrap();
        assert_eq!(lacking(&late), Vec::<&str>::new());
        assert_same(&late.state().unwrap(), &engine(yaml).state().unwrap(), "drawn late");
    }
}

#[test]
fn whole_tensors_that_are_set_are_not_drawn() {
    let state = engine(ROWS).state().unwrap();
    let mut late = undrawn(ROWS);
    late.load_state(state).unwrap();
    assert_eq!(lacking(&late), Vec::<&str>::new());
    assert_same(&late.state().unwrap(), &engine(ROWS).state().unwrap(), "loaded");
}

#[test]
fn slices_in_order_leave_nothing_to_draw() {
    let mut late = undrawn(ROWS);
    set(&mut late, 0..12);
    assert!(lacking(&late).contains(&"0.weight"));
    set(&mut late, 12..30);
    assert!(!lacking(&late).contains(&"0.weight"));
    late.draw_parameters().unwrap();
    assert_same(&late.state().unwrap(), &drawn_first(0..30), "all is set");
}

#[test]
fn the_rest_is_drawn_behind_what_is_set() {
    let mut late = undrawn(ROWS);
    set(&mut late, 0..14);
    late.draw_parameters().unwrap();
    assert_same(&late.state().unwrap(), &drawn_first(0..14), "the first elements are set");
}

#[test]
fn a_slice_behind_a_gap_is_set_after_all_are_drawn() {
    let mut late = undrawn(ROWS);
    set(&mut late, 5..20);
    assert!(!lacking(&late).contains(&"0.weight"));
    late.draw_parameters().unwrap();
    assert_same(&late.state().unwrap(), &drawn_first(5..20), "some in the middle are set");
}
