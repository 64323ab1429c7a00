//! The parameters and buffers of a stage: made, named, shared.

use super::error::{in_layer, EngineError, LayerPhase};
use super::stage::StageConfig;
use layerspec::{Init, Layer, LayerId, ParamSpec, Role};
use pipeline::ids::StageId;
use pipeline::plan::TiedCopy;
use std::collections::BTreeMap;
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
    /// Whether it has gradients: a parameter whose owner is not frozen.
    pub(super) trained: bool,
    /// The layer that owns it.
    pub(super) owner: LayerId,
    /// Its place among the parameters and buffers of that layer.
    pub(super) number: u32,
    /// The stage that owns it, if this one holds a copy.
    pub(super) owner_stage: Option<StageId>,
    /// The layers of the stage that use it and its place among the parameters of each, ascending.
    pub(super) uses: Vec<(usize, usize)>,
}

/// A layer's own name for one of the stage's parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Binding {
    pub(super) name: &'static str,
    pub(super) index: usize,
}

/// All parameters and buffers, in the order of the layers that own them; what others own comes first.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) all: Vec<Param>,
    /// By layer of the stage.
    pub(super) bindings: Vec<Vec<Binding>>,
}

impl Params {
    /// Makes what the layers need, filled as they say. Depends on the seed and on names, not on
    /// which other layers there are, so that the cut does not show.
    pub(super) fn new(stage: &StageConfig) -> Result<Self, EngineError> {
        let StageConfig { layers, tied_copies, custom_layers, seed, device, .. } = stage;
        let begin = |layer: &Layer| {
            let file = custom_layers.initial_params(layer).map_err(in_layer(layer, LayerPhase::Initialisation))?;
            Ok::<_, EngineError>(InitSource { seed: *seed, device: *device, file })
        };
        let mut params = Params { all: Vec::new(), bindings: Vec::with_capacity(layers.len()) };
        for TiedCopy { owner, from, users } in tied_copies {
            let users = || layers.iter().filter(|layer| users.contains(&layer.id));
            let begin = begin(owner)?;
            for (number, spec) in shared_params(owner, users()) {
                let param =
                    make_param(owner, number, &spec, &begin).map_err(in_layer(owner, LayerPhase::Initialisation))?;
                params.all.push(Param { owner_stage: Some(*from), ..param });
            }
        }
        for (place, layer) in layers.iter().enumerate() {
            let shared = params.shared(layer, layers, place, tied_copies)?;
            let mut own = Vec::new();
            let begin = begin(layer)?;
            for (number, spec) in (0..).zip(layer.kind.params()) {
                let index = match shared.iter().find(|binding| binding.name == spec.name) {
                    Some(binding) => {
                        params.all[binding.index].aliases.push(full_name(layer, &spec));
                        binding.index
                    }
                    None => {
                        let made = make_param(layer, number, &spec, &begin);
                        params.all.push(made.map_err(in_layer(layer, LayerPhase::Initialisation))?);
                        params.all.len() - 1
                    }
                };
                params.all[index].uses.push((place, own.len()));
                own.push(Binding { name: spec.name, index });
            }
            params.bindings.push(own);
        }
        Ok(params)
    }

    /// What the layer uses of the parameters of another, which is above it in this stage or tied copies.
    fn shared(
        &self,
        layer: &Layer,
        layers: &[Layer],
        place: usize,
        tied_copies: &[TiedCopy],
    ) -> Result<Vec<Binding>, EngineError> {
        let Some(owner) = layer.share else { return Ok(Vec::new()) };
        if let Some(above) = layers[..place].iter().position(|other| other.id == owner) {
            let tied = layer.kind.tied_params(&layers[above].kind);
            let bindings = self.bindings[above].iter();
            return Ok(bindings.filter(|binding| tied.contains(&binding.name)).copied().collect());
        }
        let Some(tied_copy) =
            tied_copies.iter().find(|tied_copy| tied_copy.owner.id == owner && tied_copy.users.contains(&layer.id))
        else {
            return Err(EngineError::UnknownOwner { layer: layer.name.clone(), owner });
        };
        let binding = |name: &'static str| {
            let full = format!("{}.{name}", tied_copy.owner.name);
            let index = self.all.iter().position(|param| param.owner_stage.is_some() && param.name == full)?;
            Some(Binding { name, index })
        };
        Ok(layer.kind.tied_params(&tied_copy.owner.kind).into_iter().filter_map(binding).collect())
    }

    /// The parameter that a layer of the stage uses under this number.
    pub(super) fn of_use(&self, (layer, number): (usize, usize)) -> &Tensor {
        &self.all[self.bindings[layer][number].index].tensor
    }

    /// The same, to be replaced.
    pub(super) fn of_use_mut(&mut self, (layer, number): (usize, usize)) -> &mut Tensor {
        &mut self.all[self.bindings[layer][number].index].tensor
    }

    /// The parameter that a layer owns under this name.
    pub(super) fn index_of(&self, owner: LayerId, number: u32) -> Option<usize> {
        self.all.iter().position(|param| param.owner == owner && param.number == number)
    }
}

/// The parameters of `owner` that any of `users` shares, with their places among all of the owner's.
pub(super) fn shared_params<'a>(
    owner: &Layer,
    users: impl Iterator<Item = &'a Layer>,
) -> impl Iterator<Item = (u32, ParamSpec)> {
    let tied: Vec<&str> = users.flat_map(|user| user.kind.tied_params(&owner.kind)).collect();
    (0..).zip(owner.kind.params()).filter(move |(_, spec)| tied.contains(&spec.name))
}

/// The source of initial parameters.
struct InitSource {
    seed: u64,
    device: Device,
    /// Those that come from a file, by the layer's names.
    file: BTreeMap<String, Tensor>,
}

fn make_param(layer: &Layer, number: u32, spec: &ParamSpec, begin: &InitSource) -> Result<Param, TensorError> {
    let key = Key::new(begin.seed).text("init").text(&layer.name).text(spec.name);
    Ok(Param {
        name: full_name(layer, spec),
        aliases: Vec::new(),
        // Drawn on the CPU whatever the device, so that the device does not show either.
        tensor: filled(spec, &key, &begin.file)?.f_to_device(begin.device)?,
        trained: spec.role == Role::Parameter && !layer.frozen,
        owner: layer.id,
        number,
        owner_stage: None,
        uses: Vec::new(),
    })
}

fn full_name(layer: &Layer, spec: &ParamSpec) -> String {
    format!("{}.{}", layer.name, spec.name)
}

fn filled(spec: &ParamSpec, key: &Key, file: &BTreeMap<String, Tensor>) -> Result<Tensor, TensorError> {
    let kind = kind_of(spec.dtype);
    let shape = super::modules::sizes(&spec.shape)?;
    let draw = || key.stream(Device::Cpu);
    match spec.init {
        Init::Zeros => Ok(Tensor::f_zeros(shape, (kind, Device::Cpu))?),
        Init::Ones => Ok(Tensor::f_ones(shape, (kind, Device::Cpu))?),
        Init::Constant { value } => Ok(Tensor::f_full(shape, value, (kind, Device::Cpu))?),
        Init::Uniform { low, high } => draw()?.uniform(&shape, kind, low, high),
        Init::Normal { mean, std } => draw()?.normal(&shape, kind, mean, std),
        Init::File => match file.get(spec.name) {
            // A file's may lie in memory in another order.
            Some(tensor) => super::layout::canonical_layout(super::state::copy(tensor)?),
            None => Err(TensorError::invalid("the layer's file", format!("has no `{}`", spec.name))),
        },
        Init::NormalZeroRow { mean, std, zero_row } => {
            let tensor = draw()?.normal(&shape, kind, mean, std)?;
            let row = i64::try_from(zero_row).unwrap_or(i64::MAX);
            let _row = tensor.f_select(0, row)?.f_zero_()?;
            Ok(tensor)
        }
    }
}
