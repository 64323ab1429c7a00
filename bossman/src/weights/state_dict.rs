//! Weights by PyTorch's names.

use crate::weights::shown_text::shown;
use crate::BossManError;
use layerspec::LayerGraph;
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use tch::Tensor;

/// Parameters and buffers by name, for example `0.weight`. A tied parameter stands once, under the
/// name of its owner.
#[derive(Debug, Default)]
pub struct StateDict(pub(crate) BTreeMap<String, Tensor>);

impl StateDict {
    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Sets a tensor. The memory is shared.
    pub fn insert(&mut self, name: &str, tensor: &Tensor) {
        self.0.insert(name.to_string(), tensor.shallow_clone());
    }

    /// Every tensor, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl StateDict {
    /// The names of a model's parameters and buffers, in alphabetical order. A tied parameter has
    /// the name of its owner.
    pub fn names(graph: &LayerGraph) -> Vec<String> {
        expected(graph).owned.into_keys().collect()
    }

    /// Converts the tensors to the types of a model, from another floating-point type (for example
    /// bfloat16 for float32).
    ///
    /// # Errors
    /// Tensors are missing, unknown or misshapen; all are listed.
    pub fn fit_to(&self, graph: &LayerGraph) -> Result<StateDict, BossManError> {
        self.fit_to_except(graph, &[])
    }

    /// As [`StateDict::fit_to`], where these parameters of the model must not be among them.
    pub(crate) fn fit_to_except(
        &self,
        graph: &LayerGraph,
        fresh: &[String],
    ) -> Result<StateDict, BossManError> {
        let expected = expected(graph);
        let (mut problems, mut fitting) = (Vec::new(), StateDict::default());
        for (name, want) in &expected.owned {
            // A tied parameter may stand under any of its names.
            let names = [name].into_iter().chain(expected.names_of(name));
            let found = names.into_iter().find_map(|name| self.get(name));
            if fresh.contains(name) {
                if found.is_some() {
                    problems.push(format!(
                        "`{name}`: in the weights, but `fresh` in the run file; list it in one of \
                         them"
                    ));
                }
                continue;
            }
            match found {
                Some(tensor) => match want.convert(tensor)? {
                    Ok(tensor) => fitting.insert(name, &tensor),
                    Err(found) => {
                        problems.push(format!("`{name}`: expected {}, got {found}", want.meta))
                    }
                },
                None => problems.push(format!("`{name}`: missing; expected {}", want.meta)),
            }
        }
        let unknown = self.iter().filter(|(name, _)| !expected.owned.contains_key(*name));
        for (name, _) in unknown.filter(|(name, _)| !expected.tied.contains_key(*name)) {
            problems.push(format!("`{}`: the model has no such parameter", shown(name)));
        }
        for (name, owner) in &expected.tied {
            if let (Some(one), Some(other)) = (self.get(name), self.get(owner)) {
                if one.size() != other.size() || !one.equal(other) {
                    problems.push(format!(
                        "`{name}`: tied to `{owner}` in the model, but different in the weights"
                    ));
                }
            }
        }
        match problems.is_empty() {
            true => Ok(fitting),
            false => Err(BossManError::StateDict(problems)),
        }
    }
}

impl ExpectedTensor {
    /// The tensor, converted if both types are floating-point. The inner error is the metadata of a
    /// tensor that does not fit.
    fn convert(&self, tensor: &Tensor) -> Result<Result<Tensor, TensorMeta>, BossManError> {
        let shape = tensor.size().into_iter().map(i64::unsigned_abs).collect();
        let found = TensorMeta { dtype: tensor::dtype_of(tensor)?, shape };
        let convertible = found.dtype.is_floating() && self.meta.dtype.is_floating();
        if found.shape != self.meta.shape || (found.dtype != self.meta.dtype && !convertible) {
            return Ok(Err(found));
        }
        let kind = tensor::kind_of(self.meta.dtype);
        Ok(Ok(tensor.f_to_kind(kind).map_err(tensor::TensorError::from)?))
    }
}

impl Expected {
    /// The other names of a tied parameter.
    pub(crate) fn names_of<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a String> {
        self.tied.iter().filter(move |(_, of)| *of == owner).map(|(name, _)| name)
    }
}

/// The parameters and buffers of a model, by their names in a complete state_dict.
pub(crate) struct Expected {
    pub(crate) owned: BTreeMap<String, ExpectedTensor>,
    /// Other names of tied parameters, with the owner's.
    pub(crate) tied: BTreeMap<String, String>,
}

pub(crate) struct ExpectedTensor {
    pub(crate) layer: layerspec::LayerId,
    /// Its name within the layer, which may have dots.
    pub(crate) parameter: &'static str,
    pub(crate) meta: TensorMeta,
}

pub(crate) fn expected(graph: &LayerGraph) -> Expected {
    let mut expected = Expected { owned: BTreeMap::new(), tied: BTreeMap::new() };
    for layer in graph.layers() {
        for param in graph.own_params(layer.id) {
            let meta = TensorMeta { dtype: param.dtype, shape: param.shape };
            let wanted = ExpectedTensor { layer: layer.id, parameter: param.name, meta };
            expected.owned.insert(format!("{}.{}", layer.name, param.name), wanted);
        }
        for name in graph.shared_params(layer.id) {
            let mut owner = layer.id;
            while let Some(next) =
                graph.layer(owner).share.filter(|_| graph.shared_params(owner).contains(&name))
            {
                owner = next;
            }
            expected.tied.insert(
                format!("{}.{name}", layer.name),
                format!("{}.{name}", graph.layer(owner).name),
            );
        }
    }
    expected
}
