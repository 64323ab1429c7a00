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
//! The way of a file: [`yaml`] makes it a tree of nodes with places; `spec` reads the tree as
//! written, unrolling repeats; `build` looks names up and infers types; [`LayerGraph`] is the
//! result, and nothing past it can be wrong.

mod build;
mod check;
mod cost;
mod dim;
mod dtype;
mod error;
mod expression;
mod graph;
mod growing;
mod ids;
pub mod layers;
mod manual;
mod params;
mod precision;
mod shape;
mod spec;
mod suggest;
mod vars;
pub mod yaml;

pub use cost::Cost;
pub use dim::{Bindings, Dim, OutOfRange};
pub use dtype::{DType, UnknownDType};
pub use error::{Fault, LayerLabel, SpecError, Warning};
pub use graph::{Layer, LayerGraph, Recompute, Source, Use, Value};
pub use growing::NeedsAll;
pub use ids::{LayerId, Place, ValueId};
pub use layers::LayerKind;
pub use manual::layer_manual;
pub use params::{Init, ParamSpec, Role};
pub use precision::Precision;
pub use shape::{Shape, TensorType};
pub use suggest::nearest;
