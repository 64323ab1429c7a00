//! What a model is: the YAML as written, layer kinds with checked arguments, the graph, shapes and costs

mod build;
mod check;
mod cost;
mod dim;
mod dtype;
mod error;
mod expression;
mod graph;
mod ids;
pub mod layers;
mod manual;
mod params;
mod shape;
mod spec;
mod suggest;
mod vars;
pub mod yaml;

pub use cost::Cost;
pub use dim::{Bindings, Dim, OutOfRange};
pub use dtype::{DType, UnknownDType};
pub use error::{Fault, LayerLabel, SpecError, Warning};
pub use graph::{Layer, LayerGraph, Source, Use, Value};
pub use ids::{LayerId, Place, ValueId};
pub use layers::LayerKind;
pub use manual::layer_manual;
pub use params::{Init, ParamSpec, Role};
pub use shape::{Shape, TensorType};
pub use suggest::nearest;
