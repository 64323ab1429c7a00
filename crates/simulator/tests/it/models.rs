//! Small models, each with a difficulty for cuts.

use layerspec::LayerGraph;

const CHAIN: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 24}
  - ReLU
  - Linear: {in_features: 24, out_features: 64}
  - Tanh
  - Dropout: {p: 0.5}
  - Linear: {in_features: 64, out_features: 1}
";

const BRANCHY: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 8}
    out_variables: [stem]
  - Linear: {in_features: 8, out_features: 8}
    out_variables: [left]
  - Linear: {in_features: 8, out_features: 8}
    input: stem
    out_variables: [right]
  - Mul: {}
    in_variables: [left]
  - Add: {}
    in_variables: [stem]
  - Linear: {in_features: 8, out_features: 2}
";

const SKIP: &str = "
inputs: {x: [batch, 1]}
layers:
  - Linear: {in_features: 1, out_features: 8}
  - Linear: {in_features: 8, out_features: 8}
    out_variables: [res]
  - Linear: {in_features: 8, out_features: 8}
  - Linear: {in_features: 8, out_features: 8}
  - Linear: {in_features: 8, out_features: 8}
  - Add: {}
    in_variables: [res]
  - Linear: {in_features: 8, out_features: 1}
";

/// One variable with six uses in five layers, two of them by one layer.
const MANY_USES: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [h]
  - Mul: {}
    in_variables: [h]
    out_variables: [square]
  - Linear: {in_features: 4, out_features: 4}
    input: h
  - Add: {}
    in_variables: [h, square]
  - Linear: {in_features: 4, out_features: 4}
  - Add: {}
    in_variables: [h]
  - Add: {}
    in_variables: [h]
";

/// A whole-number input that needs no gradient, used in two places, beside a floating-point one.
const TWO_INPUTS: &str = "
inputs:
  token: {shape: [batch], dtype: int64}
  x: [batch, 4]
layers:
  - Embedding: {num_embeddings: 10, embedding_dim: 4}
    input: token
  - Add: {}
    in_variables: [x]
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [h]
  - Embedding: {num_embeddings: 10, embedding_dim: 4}
    input: token
  - Mul: {}
    in_variables: [h, x]
  - Linear: {in_features: 4, out_features: 1}
";

/// The first output is used further on, so the second one gets no gradient from the loss.
const TWO_OUTPUTS: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [first]
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [twice]
  - Mul: {}
    in_variables: [first, twice]
    out_variables: [second]
outputs: [first, second]
";

/// The reverse: the loss is on the last layer, and the boss may send both gradients.
const EARLY_OUTPUT: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [early]
  - Linear: {in_features: 4, out_features: 4}
  - Add: {}
    in_variables: [early, early]
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    out_variables: [last]
outputs: [last, early]
";

/// Nothing before the third layer is trained, and one layer after it is not either.
const FROZEN: &str = "
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 4}
    freeze: true
    out_variables: [fixed]
  - ReLU
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    freeze: true
  - Add: {}
    in_variables: [fixed]
  - Linear: {in_features: 4, out_features: 1}
";

const TIED: &str = "
inputs:
  token: {shape: [batch], dtype: int64}
layers:
  - Embedding: {num_embeddings: 10, embedding_dim: 4}
    name: embed
  - Linear: {in_features: 4, out_features: 4}
    name: first
  - Linear: {in_features: 4, out_features: 4}
    name: second
    share: first
  - ReLU
  - Linear: {in_features: 4, out_features: 4}
  - Linear: {in_features: 4, out_features: 10}
";

/// Weights shared by layers far apart, by several layers, and one that only some share.
const SHARED: &str = "
inputs:
  token: {shape: [batch], dtype: int64}
layers:
  - Embedding: {num_embeddings: 10, embedding_dim: 4}
    name: embed
  - Linear: {in_features: 4, out_features: 4}
    name: first
  - Linear: {in_features: 4, out_features: 4}
    share: first
    name: second
  - Linear: {in_features: 4, out_features: 4, bias: false}
    share: first
    name: third
  - Linear: {in_features: 4, out_features: 4}
    freeze: true
    name: fixed
  - Linear: {in_features: 4, out_features: 4}
    share: fixed
    name: also-fixed
  - Linear: {in_features: 4, out_features: 4}
    share: first
    name: fourth
  - Linear: {in_features: 4, out_features: 10, bias: false}
    share: embed
    name: head
";

/// Every model with its name.
pub fn all() -> Vec<LayerGraph> {
    let texts = [
        ("chain", CHAIN),
        ("branchy", BRANCHY),
        ("skip", SKIP),
        ("many-uses", MANY_USES),
        ("two-inputs", TWO_INPUTS),
        ("two-outputs", TWO_OUTPUTS),
        ("early-output", EARLY_OUTPUT),
        ("frozen", FROZEN),
        ("tied", TIED),
        ("shared", SHARED),
    ];
    let read = |(name, text): (&str, &str)| LayerGraph::from_yaml(text, &format!("{name}.yaml"));
    texts.into_iter().map(|text| read(text).expect("a good model")).collect()
}

/// The model of this name.
pub fn model(name: &str) -> LayerGraph {
    all().into_iter().find(|graph| graph.name() == name).expect("a known model")
}
