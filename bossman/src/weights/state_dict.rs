//! Weights by PyTorch's names, and their ways to and from the workers.

use crate::data::tensor_payload::{from_payload, to_payload};
use crate::session::boss::BossMan;
use crate::BossManError;
use layerspec::LayerGraph;
use link::Payload;
use pipeline::boss::{Request, RunRequest};
use pipeline::ids::StageId;
use pipeline::schedule::Action;
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use tch::Tensor;

/// Parameters and buffers by name, as `0.weight`; shared parameters stand once, under the name of the
/// layer that owns them.
#[derive(Debug, Default)]
pub struct StateDict(BTreeMap<String, Tensor>);

impl StateDict {
    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Sets a tensor; shared, not copied.
    pub fn insert(&mut self, name: &str, tensor: &Tensor) {
        self.0.insert(name.to_string(), tensor.shallow_clone());
    }

    /// Every tensor, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl BossMan {
    /// Gathers parameters and buffers from all workers.
    ///
    /// ```
    /// # use bossman::{BossMan, Model, StateDict};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let model = Model::from_file("../examples/models/residual.yaml")?;
    /// # let mut boss = BossMan::new(BossMan::setup_local(2).await?, model)?;
    /// # boss.distribute_model().await?;
    /// let weights = boss.state_dict().await?;
    /// assert_eq!(weights.get("0.weight").unwrap().size(), [512, 1]);
    /// # let path = std::env::temp_dir().join(format!("doc-{}.safetensors", std::process::id()));
    /// weights.save(&path)?; // opens in PyTorch: safetensors.torch.load_file
    /// boss.load_state_dict(&StateDict::load(&path)?).await?;
    /// # std::fs::remove_file(path)?;
    /// # boss.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn state_dict(&mut self) -> Result<StateDict, BossManError> {
        if self.plan.stage_placement.is_replicated() {
            self.compare_replicas().await?;
        }
        let mut tensors = BTreeMap::new();
        let layout = self.plan.layout();
        let stages: Vec<StageId> = self.plan.stages.iter().map(|spec| spec.stage).collect();
        if stages.iter().all(|stage| !layout.shards_parameters(*stage)) {
            self.fetch_state(None, &mut tensors).await?;
            return Ok(StateDict(tensors));
        }
        // Stage by stage, for no worker may have room for all.
        for stage in stages {
            let [gather, let_go] = layout.whole(stage).unwrap_or_default();
            self.run_actions(gather).await?;
            let taken = self.fetch_state(Some(stage), &mut tensors).await;
            self.run_actions(let_go).await?;
            taken?;
        }
        Ok(StateDict(tensors))
    }

    /// Adds the parameters and buffers of a stage, or of all.
    async fn fetch_state(
        &self,
        stage: Option<StageId>,
        tensors: &mut BTreeMap<String, Tensor>,
    ) -> Result<(), BossManError> {
        for (name, slot) in self.call(Request::SendState { stage, optimizer: false }).await?.state {
            if let Some(payload) = self.handle.slots.remove(slot) {
                tensors.insert(name, from_payload(&payload)?);
            }
        }
        Ok(())
    }

    /// Has workers do these, where there are some.
    pub(crate) async fn run_actions(&mut self, actions: Vec<Vec<Action>>) -> Result<(), BossManError> {
        if actions.is_empty() {
            return Ok(());
        }
        self.batch += 1;
        self.run_round(RunRequest::of(self.batch, actions, self.settings.reduction())).await.map(drop)
    }

    /// Replaces parameters and buffers on all workers. A tied parameter may also stand under the names
    /// of the layers that share it, as in a PyTorch state_dict.
    ///
    /// # Errors
    /// Tensors are missing, unknown or misshapen; all are listed, and nothing is changed.
    pub fn load_state_dict<'a>(
        &'a mut self,
        weights: &StateDict,
    ) -> impl std::future::Future<Output = Result<(), BossManError>> + Send + 'a {
        let payloads = self.refuse_in_pool("load_state_dict").and_then(|()| self.weights_by_stage(weights));
        async move {
            let hold =
                |(stage, name, payload): (StageId, String, Payload)| (stage, name, self.handle.slots.insert(payload));
            let tensors = payloads?.into_iter().map(hold).collect();
            self.loaded = true;
            self.invalidate_replay();
            self.call(Request::LoadState { tensors, optimizer: false }).await.map(drop)
        }
    }

    /// Each tensor once for each stage that keeps it: its replicas pass it on.
    pub(crate) fn weights_by_stage(
        &self,
        weights: &StateDict,
    ) -> Result<Vec<(StageId, String, Payload)>, BossManError> {
        let fitting = weights.fit_to(self.model.graph())?;
        let mut payloads = Vec::new();
        for (name, ExpectedTensor { layer, parameter, .. }) in expected(self.model.graph()).owned {
            if let Some(tensor) = fitting.get(&name) {
                let payload = to_payload(tensor)?;
                let holders = self.plan.holders(layer, parameter).into_iter();
                payloads.extend(holders.map(|stage| (stage, name.clone(), payload.clone())));
            }
        }
        Ok(payloads)
    }
}

impl StateDict {
    /// The names of a model's parameters and buffers, in alphabetical order; tied ones once, by their owner.
    pub fn names(graph: &LayerGraph) -> Vec<String> {
        expected(graph).owned.into_keys().collect()
    }

    /// The same as a model takes it: numbers of another floating-point type (as bfloat16 for float32) are converted.
    ///
    /// # Errors
    /// Tensors are missing, unknown or misshapen; all are listed.
    pub fn fit_to(&self, graph: &LayerGraph) -> Result<StateDict, BossManError> {
        self.fit_to_except(graph, &[])
    }

    /// As [`StateDict::fit_to`], where these parameters of the model must not be among them.
    pub(crate) fn fit_to_except(&self, graph: &LayerGraph, fresh: &[String]) -> Result<StateDict, BossManError> {
        let expected = expected(graph);
        let (mut problems, mut fitting) = (Vec::new(), StateDict::default());
        for (name, want) in &expected.owned {
            // A tied parameter may stand under any of its names.
            let names = [name].into_iter().chain(expected.names_of(name));
            let found = names.into_iter().find_map(|name| self.get(name));
            if fresh.contains(name) {
                if found.is_some() {
                    problems
                        .push(format!("`{name}`: in the weights, but `fresh` in the run file; list it in one of them"));
                }
                continue;
            }
            match found {
                Some(tensor) => match want.convert(tensor)? {
                    Ok(tensor) => fitting.insert(name, &tensor),
                    Err(found) => problems.push(format!("`{name}`: expected {}, got {found}", want.meta)),
                },
                None => problems.push(format!("`{name}`: missing; expected {}", want.meta)),
            }
        }
        let unknown = self.iter().filter(|(name, _)| !expected.owned.contains_key(*name));
        for (name, _) in unknown.filter(|(name, _)| !expected.tied.contains_key(*name)) {
            problems.push(format!("`{name}`: the model has no such parameter"));
        }
        for (name, owner) in &expected.tied {
            if let (Some(one), Some(other)) = (self.get(name), self.get(owner)) {
                if one.size() != other.size() || !one.equal(other) {
                    problems.push(format!("`{name}`: tied to `{owner}` in the model, but different in the weights"));
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
    /// The tensor, converted where both are floating-point; or what it is where it does not fit.
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
    fn names_of<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a String> {
        self.tied.iter().filter(move |(_, of)| *of == owner).map(|(name, _)| name)
    }
}

/// The entries of a complete state_dict. The parameters and buffers of a model, by their names.
pub(crate) struct Expected {
    pub(crate) owned: BTreeMap<String, ExpectedTensor>,
    /// Other names of tied parameters, with the owner's.
    tied: BTreeMap<String, String>,
}

pub(crate) struct ExpectedTensor {
    pub(crate) layer: layerspec::LayerId,
    /// Its name within the layer, which may have dots.
    pub(crate) parameter: &'static str,
    meta: TensorMeta,
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
            while let Some(next) = graph.layer(owner).share.filter(|_| graph.shared_params(owner).contains(&name)) {
                owner = next;
            }
            expected.tied.insert(format!("{}.{name}", layer.name), format!("{}.{name}", graph.layer(owner).name));
        }
    }
    expected
}
