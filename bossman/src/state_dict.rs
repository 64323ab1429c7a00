//! Weights by PyTorch's names, in and out as safetensors.

use crate::boss::BossMan;
use crate::payload::{from_payload, to_payload};
use crate::BossManError;
use bytes::Bytes;
use layerspec::{DType, LayerGraph};
use link::Payload;
use pipeline::boss::Request;
use pipeline::ids::WorkerId;
use pipeline::TensorMeta;
use safetensors::tensor::{Dtype, SafeTensors, View};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use tch::Tensor;

/// Parameters and buffers by name, as `0.weight`; shared parameters stand once, under the name of the
/// layer that owns them.
#[derive(Debug, Default)]
pub struct StateDict(BTreeMap<String, Tensor>);

impl StateDict {
    /// Reads a safetensors file.
    ///
    /// # Errors
    /// It cannot be read, or is no safetensors file, or holds a dtype that BossMan has not.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        let path = path.as_ref();
        let bytes = Bytes::from(std::fs::read(path).map_err(|e| BossManError::file(path, e))?);
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|e| BossManError::file(path, format!("not a safetensors file: {e}")))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let dtype = dtype(view.dtype()).ok_or_else(|| {
                BossManError::file(
                    path,
                    format!("tensor `{name}` has dtype {:?}, which BossMan cannot use", view.dtype()),
                )
            })?;
            let meta = TensorMeta { dtype, shape: view.shape().iter().map(|d| *d as u64).collect() };
            let payload = Payload { meta, bytes: bytes.slice_ref(view.data()) };
            tensors.insert(name.to_string(), from_payload(&payload)?);
        }
        Ok(StateDict(tensors))
    }

    /// Whether a file can be written there; to be known before the work that makes it.
    pub fn can_save(path: &Path) -> Result<(), BossManError> {
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        if path.is_dir() {
            return Err(BossManError::file(path, "is a folder; name a file for the weights"));
        }
        if !folder.is_dir() {
            return Err(BossManError::file(path, format!("there is no folder {}; make it first", folder.display())));
        }
        Ok(())
    }

    /// Writes a safetensors file; it appears whole under its name or not at all.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), BossManError> {
        let path = path.as_ref();
        let views = self.0.iter().map(|(name, tensor)| Ok((name.clone(), Stored::new(tensor)?)));
        let views: Vec<(String, Stored)> = views.collect::<Result<_, BossManError>>()?;
        // The library writes a file beside it and renames that.
        safetensors::serialize_to_file(views, None, path).map_err(|e| BossManError::file(path, e))
    }

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
        let answer = self.call(Request::SendState).await?;
        let mut tensors = BTreeMap::new();
        for (name, slot) in answer.state {
            if let Some(payload) = self.handle.slots.take(slot) {
                tensors.insert(name, from_payload(&payload)?);
            }
        }
        Ok(StateDict(tensors))
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
        let payloads = self.place(weights);
        async move {
            let hold =
                |(worker, name, payload): (WorkerId, String, Payload)| (worker, name, self.handle.slots.put(payload));
            let tensors = payloads?.into_iter().map(hold).collect();
            self.loaded = true;
            self.call(Request::LoadState(tensors)).await.map(drop)
        }
    }

    fn place(&self, weights: &StateDict) -> Result<Vec<(WorkerId, String, Payload)>, BossManError> {
        let expected = expected(self.model.graph());
        let mut problems = Vec::new();
        let mut payloads = Vec::new();
        for (name, want) in &expected.owned {
            match weights.get(name) {
                Some(tensor) => {
                    let payload = to_payload(tensor)?;
                    if payload.meta == want.meta {
                        let holders = self.plan.holders(want.layer, want.parameter).into_iter();
                        payloads.extend(holders.map(|worker| (worker, name.clone(), payload.clone())));
                    } else {
                        problems.push(format!("`{name}`: expected {}, got {}", want.meta, payload.meta));
                    }
                }
                None => problems.push(format!("`{name}`: missing; expected {}", want.meta)),
            }
        }
        let unknown = weights.iter().filter(|(name, _)| !expected.owned.contains_key(*name));
        for (name, _) in unknown.filter(|(name, _)| !expected.tied.contains_key(*name)) {
            problems.push(format!("`{name}`: the model has no such parameter"));
        }
        for (name, owner) in &expected.tied {
            if let (Some(one), Some(other)) = (weights.get(name), weights.get(owner)) {
                if one.size() != other.size() || !one.equal(other) {
                    problems.push(format!("`{name}`: tied to `{owner}` in the model, but different in the weights"));
                }
            }
        }
        match problems.is_empty() {
            true => Ok(payloads),
            false => Err(BossManError::StateDict(problems)),
        }
    }
}

/// What a complete state_dict holds.
struct Expected {
    owned: BTreeMap<String, Wanted>,
    /// Other names of tied parameters, with the owner's.
    tied: BTreeMap<String, String>,
}

struct Wanted {
    layer: layerspec::LayerId,
    /// Its name within the layer.
    parameter: &'static str,
    meta: TensorMeta,
}

fn expected(graph: &LayerGraph) -> Expected {
    let mut expected = Expected { owned: BTreeMap::new(), tied: BTreeMap::new() };
    for layer in graph.layers() {
        for param in graph.own_params(layer.id) {
            let meta = TensorMeta { dtype: param.dtype, shape: param.shape };
            let wanted = Wanted { layer: layer.id, parameter: param.name, meta };
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

/// A tensor as the safetensors crate wants to see it.
struct Stored {
    payload: Payload,
    shape: Vec<usize>,
}

impl Stored {
    fn new(tensor: &Tensor) -> Result<Self, BossManError> {
        let payload = to_payload(tensor)?;
        let shape = payload.meta.shape.iter().map(|d| *d as usize).collect();
        Ok(Stored { payload, shape })
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        match self.payload.meta.dtype {
            DType::Float32 => Dtype::F32,
            DType::Float64 => Dtype::F64,
            DType::Float16 => Dtype::F16,
            DType::BFloat16 => Dtype::BF16,
            DType::Int64 => Dtype::I64,
            DType::Int32 => Dtype::I32,
            DType::UInt8 => Dtype::U8,
            DType::Bool => Dtype::BOOL,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.payload.bytes)
    }

    fn data_len(&self) -> usize {
        self.payload.bytes.len()
    }
}

fn dtype(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::F32 => DType::Float32,
        Dtype::F64 => DType::Float64,
        Dtype::F16 => DType::Float16,
        Dtype::BF16 => DType::BFloat16,
        Dtype::I64 => DType::Int64,
        Dtype::I32 => DType::Int32,
        Dtype::U8 => DType::UInt8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}
