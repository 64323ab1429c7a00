//! A model, from its YAML file alone: layers with checked arguments, the graph they form, shapes,
//! element types, parameters and costs. There is no tensor here.
//!
//! ```
//! use layerspec::{Bindings, LayerGraph};
//!
//! let graph = LayerGraph::from_yaml(
//!     "inputs: {x: [batch, 4]}
//! layers:
//!   - Linear: {in_features: 4, out_features: 2}
//!   - ReLU
//! ",
//!     "model.yaml",
//! )?;
//! let output = graph.value(graph.outputs()[0]);
//! assert_eq!(output.ty.to_string(), "[batch, 2]");
//! assert_eq!(graph.param_count(), 10);
//! let cost = graph.cost(graph.layers()[0].id, &Bindings::new().with("batch", 32));
//! assert_eq!(cost.map(|cost| cost.flops), Some(2 * 32 * 4 * 2));
//!
//! let typo = LayerGraph::from_yaml("inputs: {x: [batch, 4]}\nlayers: [Rleu]\n", "model.yaml");
//! assert_eq!(
//!     typo.map(|_| ()).map_err(|error| error.to_string()),
//!     Err("model.yaml:2:10: layer 0: unknown layer `Rleu`; did you mean `ReLU`?".to_owned()),
//! );
//! # Ok::<(), layerspec::SpecError>(())
//! ```
//!
//! A file passes through four steps. After them nothing in the model can be wrong:
//!
//! ```text
//! yaml      text -> nodes with line and column
//!   |
//! spec      nodes -> the model as written, repeats unrolled    <- vars, expression
//!   |
//! build     names looked up, types inferred                    <- layers, shape, dim
//!   |
//! graph     LayerGraph: layers and values, checked             -> cost, params, summary,
//!                                                                 incremental
//! ```

mod batch_sizes;
mod build;
mod cost;
mod dim;
mod dtype;
mod error;
mod expression;
mod graph;
pub mod human;
mod ids;
mod incremental;
pub mod layers;
mod manual;
mod model_file;
mod params;
mod precision;
mod recompute;
mod shape;
mod spec;
mod suggest;
mod summary;
mod vars;
pub mod yaml;

pub use cost::Cost;
pub use dim::{Bindings, Dim, OutOfRange};
pub use dtype::{DType, UnknownDType};
pub use error::{Diagnostic, LayerLabel, SpecError, Warning};
pub use graph::{Layer, LayerGraph, Producer, Use, Value};
pub use ids::{LayerId, Location, ValueId};
pub use incremental::NotIncremental;
pub use layers::LayerKind;
pub use manual::layer_manual;
pub use params::{Init, ParamSpec, Role};
pub use precision::Precision;
pub use recompute::Recompute;
pub use shape::{Shape, TensorType};
pub use suggest::nearest;
