//! The parameters and buffers of a stage: made, named, tied, with their gradients.

use super::error::{in_layer, Doing, EngineError};
use super::sum::Sum;
use layerspec::{Init, Layer, ParamSpec, Role};
use tch::{Device, Tensor};
use tensor::random::Key;
use tensor::{kind_of, TensorError};

/// One parameter or buffer.
#[derive(Debug)]
pub(super) struct Param {
    /// `<layer>.<name>` of the layer that owns it.
    pub(super) name: String,
    /// The names under which other layers use it.
    pub(super) aliases: Vec<String>,
    pub(super) tensor: Tensor,
    /// Whether the optimizer changes it: a parameter whose owner is not frozen.
    pub(super) trained: bool,
    /// Its gradient: the sum over the microbatches so far.
    pub(super) grad: Sum,
}

/// A layer's own name for one of the stage's parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Binding {
    pub(super) name: &'static str,
    pub(super) index: usize,
}

/// All parameters and buffers, in the order of the layers that own them.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) all: Vec<Param>,
    /// By layer of the stage.
    pub(super) bindings: Vec<Vec<Binding>>,
}

impl Params {
    /// Makes what the layers need, filled as they say. Depends on the seed and on names, not on
    /// which other layers there are, so that the cut does not show.
    pub(super) fn new(layers: &[Layer], seed: u64, device: Device) -> Result<Self, EngineError> {
        let mut params = Params { all: Vec::new(), bindings: Vec::with_capacity(layers.len()) };
        for (place, layer) in layers.iter().enumerate() {
            let shared = params.shared(layer, &layers[..place])?;
            let mut own = Vec::new();
            for spec in layer.kind.params() {
                let index = match shared.iter().find(|binding| binding.name == spec.name) {
                    Some(binding) => params.tie(binding.index, layer, &spec),
                    None => params.make(layer, &spec, seed, device).map_err(in_layer(layer, Doing::Initialisation))?,
                };
                own.push(Binding { name: spec.name, index });
            }
            params.bindings.push(own);
        }
        for param in params.all.iter().filter(|param| param.trained) {
            let _same = param.tensor.f_set_requires_grad(true).map_err(TensorError::from)?;
        }
        Ok(params)
    }

    /// What the layer uses of the parameters of another, which must be above it in this stage.
    fn shared(&self, layer: &Layer, above: &[Layer]) -> Result<Vec<Binding>, EngineError> {
        let Some(owner) = layer.share else { return Ok(Vec::new()) };
        let Some(place) = above.iter().position(|other| other.id == owner) else {
            return Err(EngineError::SharedElsewhere { layer: layer.name.clone(), owner });
        };
        let tied = layer.kind.tied_params(&above[place].kind);
        Ok(self.bindings[place].iter().filter(|binding| tied.contains(&binding.name)).copied().collect())
    }

    fn tie(&mut self, index: usize, layer: &Layer, spec: &ParamSpec) -> usize {
        self.all[index].aliases.push(full_name(layer, spec));
        index
    }

    fn make(&mut self, layer: &Layer, spec: &ParamSpec, seed: u64, device: Device) -> Result<usize, TensorError> {
        let key = Key::new(seed).text("init").text(&layer.name).text(spec.name);
        // Drawn on the CPU whatever the device, so that the device does not show either.
        let tensor = filled(spec, &key)?.f_to_device(device)?;
        self.all.push(Param {
            name: full_name(layer, spec),
            aliases: Vec::new(),
            tensor,
            trained: spec.role == Role::Parameter && !layer.frozen,
            grad: Sum::default(),
        });
        Ok(self.all.len() - 1)
    }

    /// Whether the optimizer changes any parameter of the stage's layer at `place`.
    pub(super) fn any_trained(&self, place: usize) -> bool {
        self.bindings[place].iter().any(|binding| self.all[binding.index].trained)
    }

    pub(super) fn zero_grad(&mut self) {
        for param in &mut self.all {
            param.grad = Sum::default();
        }
    }
}

fn full_name(layer: &Layer, spec: &ParamSpec) -> String {
    format!("{}.{}", layer.name, spec.name)
}

fn filled(spec: &ParamSpec, key: &Key) -> Result<Tensor, TensorError> {
    let kind = kind_of(spec.dtype);
    let shape = super::modules::sizes(&spec.shape)?;
    let draw = || key.stream(Device::Cpu);
    match spec.init {
        Init::Zeros => Ok(Tensor::f_zeros(shape, (kind, Device::Cpu))?),
        Init::Ones => Ok(Tensor::f_ones(shape, (kind, Device::Cpu))?),
        Init::Uniform { low, high } => draw()?.uniform(&shape, kind, low, high),
        Init::Normal { mean, std } => draw()?.normal(&shape, kind, mean, std),
        Init::NormalZeroRow { mean, std, zero_row } => {
            let tensor = draw()?.normal(&shape, kind, mean, std)?;
            let row = i64::try_from(zero_row).unwrap_or(i64::MAX);
            let _row = tensor.f_select(0, row)?.f_zero_()?;
            Ok(tensor)
        }
    }
}
