//! The parameters and buffers of a stage: their values, names and uses.

use crate::engine::config::StageConfig;
use crate::engine::error::{in_layer, EngineError, LayerPhase, PlanError};
use crate::engine::layer_files::LayerFiles;
use crate::engine::layout::{canonical_layout, deep_copy};
use crate::engine::params::undrawn::{Left, Undrawn};
use crate::engine::sizes::sizes;
use layerspec::{Init, Layer, LayerId, LayerKind, ParamSpec, Role};
use pipeline::ids::StageId;
use pipeline::plan::TiedCopy;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::{Device, Tensor};
use tensor::random::Key;
use tensor::{kind_of, TensorError};

/// One parameter or buffer.
#[derive(Debug)]
pub(crate) struct Param {
    /// `<layer>.<name>` of the layer that owns it.
    pub(crate) name: String,
    /// The names under which other layers use it.
    pub(crate) aliases: Vec<String>,
    pub(crate) tensor: Tensor,
    /// How to draw the values that `tensor` lacks. `None` if it has all.
    pub(crate) undrawn: Option<Undrawn>,
    /// Its copy in a 16-bit type, made by the first op that computes in it and kept until the
    /// parameters change.
    pub(crate) rounded: OnceCell<Tensor>,
    /// Whether it has gradients: a parameter whose owner is not frozen.
    pub(crate) trained: bool,
    /// Whether no pass writes to it. Passes write to buffers, and the user's code may write to
    /// anything that it is given.
    pub(crate) passes_only_read: bool,
    /// The layer that owns it.
    pub(crate) owner: LayerId,
    /// Its place among the parameters and buffers of that layer.
    pub(crate) number: u32,
    /// The stage that owns it, if this one holds a copy.
    pub(crate) owner_stage: Option<StageId>,
    /// Its uses by layers of the stage, ascending.
    pub(crate) uses: Vec<ParamUse>,
}

impl Param {
    /// Whether a layer uses it under this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Draws the values that it lacks.
    pub(crate) fn draw(&mut self) -> Result<(), TensorError> {
        if let Some(undrawn) = &self.undrawn {
            undrawn.draw(&self.tensor)?;
            self.undrawn = None;
        }
        Ok(())
    }

    /// Call this before these elements are set: it draws what must not be drawn later.
    pub(crate) fn before_set(&mut self, elements: &Range<i64>) -> Result<(), TensorError> {
        let all = self.tensor.numel() as i64;
        match self.undrawn.as_mut().map(|undrawn| undrawn.note_set(elements, all)) {
            Some(Left::Nothing) => self.undrawn = None,
            Some(Left::Gap) => self.draw()?,
            Some(Left::Rest) | None => {}
        }
        Ok(())
    }
}

/// The use of a parameter by a layer of the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParamUse {
    /// The layer's place in the stage.
    pub(crate) layer: usize,
    /// The parameter's place among the layer's.
    pub(crate) number: usize,
}

/// A layer's own name for one of the stage's parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding {
    pub(crate) name: &'static str,
    pub(crate) index: usize,
}

/// All parameters and buffers, in the order of the layers that own them. Those of other stages come
/// first.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) all: Vec<Param>,
    /// By layer of the stage.
    pub(crate) bindings: Vec<Vec<Binding>>,
}

impl Params {
    /// Makes the parameters and buffers of the layers. Initial values depend on the seed and on
    /// names, not on the other layers, so that the cut does not show. Random ones are drawn by
    /// [`Params::draw`].
    pub(crate) fn new(stage: &StageConfig, files: &LayerFiles) -> Result<Self, EngineError> {
        let StageConfig { layers, tied_copies, seed, device, .. } = stage;
        let begin = |layer: &Layer| {
            let file =
                files.initial_params(layer).map_err(in_layer(layer, LayerPhase::Initialisation))?;
            Ok::<_, EngineError>(InitSource { seed: *seed, device: *device, file })
        };
        let mut params = Params { all: Vec::new(), bindings: Vec::with_capacity(layers.len()) };
        for TiedCopy { owner, from, users } in tied_copies {
            let users = || layers.iter().filter(|layer| users.contains(&layer.id));
            let begin = begin(owner)?;
            for (number, spec) in shared_params(owner, users()) {
                let param = make_param(owner, number, &spec, &begin)
                    .map_err(in_layer(owner, LayerPhase::Initialisation))?;
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
                        let param = &mut params.all[binding.index];
                        param.aliases.push(full_name(layer, &spec));
                        param.passes_only_read &= !runs_code_of_the_user(layer);
                        binding.index
                    }
                    None => {
                        let made = make_param(layer, number, &spec, &begin);
                        params.all.push(made.map_err(in_layer(layer, LayerPhase::Initialisation))?);
                        params.all.len() - 1
                    }
                };
                params.all[index].uses.push(ParamUse { layer: place, number: own.len() });
                own.push(Binding { name: spec.name, index });
            }
            params.bindings.push(own);
        }
        Ok(params)
    }

    /// Draws all values that are neither drawn nor set.
    pub(crate) fn draw(&mut self) -> Result<(), TensorError> {
        self.all.iter_mut().try_for_each(Param::draw)
    }

    /// The parameters of another layer that this one uses: of a layer above it in this stage, or
    /// tied copies.
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
        let Some(tied_copy) = tied_copies
            .iter()
            .find(|tied_copy| tied_copy.owner.id == owner && tied_copy.users.contains(&layer.id))
        else {
            return Err(PlanError::UnknownOwner { layer: layer.name.clone(), owner }.into());
        };
        let binding = |name: &'static str| {
            let full = format!("{}.{name}", tied_copy.owner.name);
            let index = self
                .all
                .iter()
                .position(|param| param.owner_stage.is_some() && param.name == full)?;
            Some(Binding { name, index })
        };
        Ok(layer.kind.tied_params(&tied_copy.owner.kind).into_iter().filter_map(binding).collect())
    }

    /// The parameter that a layer of the stage uses under this number.
    pub(crate) fn of_use(&self, used: ParamUse) -> &Tensor {
        &self.all[self.bindings[used.layer][used.number].index].tensor
    }

    /// The same, to replace it.
    pub(crate) fn of_use_mut(&mut self, used: ParamUse) -> &mut Tensor {
        &mut self.all[self.bindings[used.layer][used.number].index].tensor
    }

    /// The parameter that a layer owns under this name.
    pub(crate) fn index_of(&self, owner: LayerId, number: u32) -> Option<usize> {
        self.all.iter().position(|param| param.owner == owner && param.number == number)
    }
}

/// The parameters of `owner` that any of `users` shares, with their places among all of the
/// owner's.
pub(crate) fn shared_params<'a>(
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
    /// The parameters from a file, by the layer's names.
    file: BTreeMap<String, Tensor>,
}

fn make_param(
    layer: &Layer,
    number: u32,
    spec: &ParamSpec,
    begin: &InitSource,
) -> Result<Param, TensorError> {
    let key = Key::new(begin.seed).text("init").text(&layer.name).text(spec.name);
    let undrawn = Undrawn::new(&spec.init, key);
    Ok(Param {
        name: full_name(layer, spec),
        aliases: Vec::new(),
        tensor: initial(spec, begin)?,
        undrawn,
        rounded: OnceCell::new(),
        trained: spec.role == Role::Parameter && !layer.frozen,
        passes_only_read: spec.role == Role::Parameter && !runs_code_of_the_user(layer),
        owner: layer.id,
        number,
        owner_stage: None,
        uses: Vec::new(),
    })
}

fn runs_code_of_the_user(layer: &Layer) -> bool {
    matches!(layer.kind, LayerKind::Custom(_) | LayerKind::TorchScript(_))
}

fn full_name(layer: &Layer, spec: &ParamSpec) -> String {
    format!("{}.{}", layer.name, spec.name)
}

/// The initial tensor. One that is to be drawn has memory without values.
fn initial(spec: &ParamSpec, begin: &InitSource) -> Result<Tensor, TensorError> {
    let options = (kind_of(spec.dtype), begin.device);
    let shape = sizes(&spec.shape)?;
    match spec.init {
        Init::Zeros => Ok(Tensor::f_zeros(shape, options)?),
        Init::Ones => Ok(Tensor::f_ones(shape, options)?),
        Init::Constant { value } => Ok(Tensor::f_full(shape, value, options)?),
        Init::Uniform { .. } | Init::Normal { .. } | Init::NormalZeroRow { .. } => {
            Ok(Tensor::f_empty(shape, options)?)
        }
        Init::File => match begin.file.get(spec.name) {
            // A tensor of a file may have another memory layout.
            Some(tensor) => Ok(canonical_layout(deep_copy(tensor)?)?.f_to_device(begin.device)?),
            None => {
                Err(TensorError::invalid("the layer's file", format!("has no `{}`", spec.name)))
            }
        },
    }
}
