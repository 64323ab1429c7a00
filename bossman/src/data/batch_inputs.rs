//! The user's tensors, checked against the model's inputs and cut into microbatches.

use crate::data::tensor_payload::to_payload;
use crate::data::{Contents, SampleIndices};
use crate::BossManError;
use crate::{Batch, Variables};
use layerspec::{Bindings, LayerGraph, ValueId};
use link::Payload;
use pipeline::samples::{part, Samples};
use tch::Tensor;

/// Tensors that fit the model's inputs.
pub(crate) struct Inputs {
    /// Empty if workers read them.
    tensors: Vec<(ValueId, Tensor, bool)>,
    /// The samples to read, if workers read them.
    read: Option<Samples>,
    /// The sizes of the model's named dimensions in this batch.
    sizes: Bindings,
    /// The name of the batch dimension, and the number of samples. `None` if the model has no batch
    /// dimension.
    samples: Option<(String, u64)>,
}

impl Inputs {
    /// The inputs of a batch, whether or not workers read them.
    pub(crate) fn of(graph: &LayerGraph, batch: &Batch) -> Result<Self, BossManError> {
        match batch.contents() {
            Contents::Tensors { x, variables, .. } => Self::check(graph, x, variables),
            Contents::Indices(numbers) => Self::read(graph, numbers),
        }
    }

    /// Samples that workers read. Their dtypes were checked when the data was opened.
    fn read(graph: &LayerGraph, numbers: &SampleIndices) -> Result<Self, BossManError> {
        let SampleIndices { data, batch, next, .. } = numbers;
        let unplaced = || {
            BossManError::Usage("these samples are no worker's; see Dataset::for_workers".into())
        };
        let mut bindings = Bindings::new();
        for (id, sizes) in graph.inputs().iter().zip(data.sizes(batch)?) {
            let value = graph.value(*id);
            let fits = value.ty.shape.match_sizes(&sizes, &mut bindings);
            let problem = fits
                .err()
                .map(|why| format!("expected {}, the data has {sizes:?} ({why})", value.ty));
            let first = value.ty.shape.dims().first().map(ToString::to_string);
            let whole = graph.batch().is_some() && first.as_deref() != graph.batch();
            let whole = whole.then(|| {
                "workers read inputs sample by sample, but it has no batch dimension".to_string()
            });
            if let Some(problem) = problem.or(whole) {
                return Err(BossManError::Input { name: value.name.clone(), problem });
            }
        }
        let data = data.id().ok_or_else(unplaced)?;
        let read = Samples { data, batches: vec![batch.clone()], next: next.clone() };
        Self::with(graph, bindings, Vec::new(), Some(read))
    }

    fn with(
        graph: &LayerGraph,
        sizes: Bindings,
        tensors: Vec<(ValueId, Tensor, bool)>,
        read: Option<Samples>,
    ) -> Result<Self, BossManError> {
        let samples = graph.batch().and_then(|word| Some((word.to_string(), sizes.get(word)?)));
        if samples.as_ref().is_some_and(|(_, samples)| *samples == 0) {
            return Err(BossManError::Usage("the batch is empty; give at least one sample".into()));
        }
        Ok(Inputs { tensors, read, sizes, samples })
    }

    /// Checks names, dtypes and shapes.
    pub(crate) fn check(
        graph: &LayerGraph,
        x: &Tensor,
        variables: &Variables,
    ) -> Result<Self, BossManError> {
        let mut bindings = Bindings::new();
        let mut tensors = Vec::new();
        let names: Vec<&str> =
            graph.inputs().iter().map(|id| graph.value(*id).name.as_str()).collect();
        for name in variables.names() {
            if !names.iter().skip(1).any(|known| *known == name) {
                let problem = format!(
                    "the model has no further input of this name; its inputs are {}",
                    names.join(", ")
                );
                return Err(BossManError::Input { name: name.into(), problem });
            }
        }
        for (place, id) in graph.inputs().iter().enumerate() {
            let value = graph.value(*id);
            let error = |problem: String| BossManError::Input { name: value.name.clone(), problem };
            let tensor = if place == 0 { Some(x) } else { variables.get(&value.name) };
            let tensor =
                tensor.ok_or_else(|| error("missing; give it with Variables::with".into()))?;
            let dtype = tensor::dtype_of(tensor)?;
            let sizes: Vec<u64> = tensor.size().into_iter().map(i64::unsigned_abs).collect();
            let fits = value.ty.shape.match_sizes(&sizes, &mut bindings);
            if dtype != value.ty.dtype || fits.is_err() {
                let expected = format!("{} {}", value.ty.dtype, value.ty.shape);
                let why = fits.err().map(|why| format!(" ({why})")).unwrap_or_default();
                return Err(error(format!("expected {expected}, got {dtype} {sizes:?}{why}")));
            }
            let first = value.ty.shape.dims().first().map(ToString::to_string);
            let batched = graph.batch().is_some() && first.as_deref() == graph.batch();
            tensors.push((*id, tensor.shallow_clone(), batched));
        }
        Self::with(graph, bindings, tensors, None)
    }

    /// The samples that workers read.
    pub(crate) fn samples_to_read(&self) -> Option<&Samples> {
        self.read.as_ref()
    }

    /// The samples in the batch, or 1 if the model has no batch dimension.
    pub(crate) fn samples(&self) -> u64 {
        self.samples.as_ref().map_or(1, |(_, samples)| *samples)
    }

    /// The sizes of the model's named dimensions in the whole batch.
    pub(crate) fn sizes(&self) -> &Bindings {
        &self.sizes
    }

    /// The sizes of the model's named dimensions in a microbatch.
    pub(crate) fn sizes_of(&self, range: &SampleRange) -> Bindings {
        let mut sizes = self.sizes.clone();
        if let Some((word, _)) = &self.samples {
            sizes.set(word, range.len);
        }
        sizes
    }

    /// Cuts the batch into `count` microbatches as `torch.tensor_split` does: the first ones are
    /// one sample larger if the batch does not divide evenly. Fewer if there are fewer samples.
    pub(crate) fn microbatches(&self, count: u32) -> Result<Vec<SampleRange>, BossManError> {
        let Some((_, samples)) = self.samples else {
            return match count {
                1 => Ok(vec![SampleRange { start: 0, len: 1 }]),
                _ => Err(BossManError::Usage(
                    "this model's inputs have no batch dimension to cut into microbatches; use 1 \
                     microbatch"
                        .into(),
                )),
            };
        };
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        let count = count.clamp(1, u32::try_from(samples).unwrap_or(u32::MAX));
        let parts = (0..count).filter_map(|index| part(samples, index, count));
        Ok(parts
            .map(|part| SampleRange { start: part.start as u64, len: part.len() as u64 })
            .collect())
    }

    /// The payload of every input for every microbatch. Inputs without the batch dimension are sent
    /// whole.
    pub(crate) fn payloads(
        &self,
        ranges: &[SampleRange],
    ) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
        let mut payloads = Vec::new();
        for (index, range) in (0u32..).zip(ranges) {
            for (id, tensor, batched) in &self.tensors {
                let part = if *batched { range.of(tensor)? } else { tensor.shallow_clone() };
                payloads.push((index, *id, to_payload(&part)?));
            }
        }
        Ok(payloads)
    }

    /// The target's payload for every microbatch. Empty if workers read them.
    pub(crate) fn targets(
        &self,
        batch: &Batch,
        ranges: &[SampleRange],
    ) -> Result<Vec<(u32, Payload)>, BossManError> {
        let (Some(target), None) = (batch.target(), &self.read) else { return Ok(Vec::new()) };
        let size = target.size();
        let samples = size.first().copied().unwrap_or(0).unsigned_abs();
        if self.samples.is_some() && self.samples() != samples {
            let problem =
                format!("expected {} samples as in the inputs, got {size:?}", self.samples());
            return Err(BossManError::Input { name: "target".into(), problem });
        }
        let whole = self.samples.is_none();
        let part =
            |range: &SampleRange| if whole { Ok(target.shallow_clone()) } else { range.of(target) };
        (0u32..).zip(ranges).map(|(index, range)| Ok((index, to_payload(&part(range)?)?))).collect()
    }
}

/// The samples of a microbatch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampleRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl SampleRange {
    /// These samples of a tensor, in its memory.
    pub(crate) fn of(&self, tensor: &Tensor) -> Result<Tensor, tensor::TensorError> {
        let (start, len) = (self.start.cast_signed(), self.len.cast_signed());
        Ok(tensor.f_narrow(0, start, len)?)
    }
}
