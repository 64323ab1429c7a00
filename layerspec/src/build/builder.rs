//! Builds layers and values one by one.

use super::names::{Names, Origin};
use crate::graph::{Layer, Producer, Use, Value};
use crate::layers::LayerKind;
use crate::spec::{Input, Name, UnrolledLayer, MAX_RANK};
use crate::{
    nearest, Diagnostic, LayerGraph, LayerId, Location, Precision, Recompute, Role, TensorType,
    ValueId,
};
use std::collections::HashMap;

/// The graph so far.
#[derive(Default)]
pub(super) struct Builder {
    layers: Vec<Layer>,
    values: Vec<Value>,
    inputs: Vec<ValueId>,
    requires_grad: Vec<bool>,
    by_name: HashMap<String, LayerId>,
    /// The outputs of each layer entry; outputs of its merge are not included.
    outputs: Vec<Vec<ValueId>>,
    param_count: u64,
}

/// A layer whose types are not known yet.
struct Draft<'a> {
    name: String,
    kind: LayerKind,
    location: Location,
    inputs: Vec<ValueId>,
    /// Names of its outputs, as far as the file gives them.
    out_variables: &'a [Name],
    share: Option<&'a Name>,
    frozen: bool,
    recompute: Option<Recompute>,
}

impl Builder {
    pub(super) fn new(inputs: &[Input]) -> Builder {
        let mut builder = Builder::default();
        for (position, input) in inputs.iter().enumerate() {
            let source = Producer::Input(position);
            let id = builder.add_value(input.name.text.clone(), input.ty.clone(), source, false);
            builder.inputs.push(id);
        }
        builder
    }

    /// Adds the layer at `index` of the unrolled list, and its merge before it.
    pub(super) fn add(&mut self, index: usize, names: &mut Names<'_>) -> Result<(), Diagnostic> {
        let layer = &names.layers[index];
        let label = |error: Diagnostic| error.in_layer(&layer.name, Some(layer.entry.kind.name()));
        let inputs = self.find_inputs(index, names).map_err(label)?;
        let outputs = self.add_entry(layer, inputs).map_err(label)?;
        self.outputs.push(outputs);
        Ok(())
    }

    fn find_inputs(&self, index: usize, names: &mut Names<'_>) -> Result<Vec<ValueId>, Diagnostic> {
        let entry = &names.layers[index].entry;
        let main = match (&entry.input, index.checked_sub(1)) {
            (Some(name), _) => names.find(name, index)?,
            (None, Some(index)) => {
                names.mark_first_output_used(index);
                Origin::Layer { index, port: 0 }
            }
            (None, None) => {
                names.mark_input_used(0);
                Origin::Input(0)
            }
        };
        let others = entry.in_variables.iter().map(|name| names.find(name, index));
        let origins = std::iter::once(Ok(main)).chain(others);
        origins.map(|origin| self.value_of(origin?, entry.location)).collect()
    }

    fn value_of(&self, origin: Origin, location: Location) -> Result<ValueId, Diagnostic> {
        let id = match origin {
            Origin::Input(position) => self.inputs.get(position),
            Origin::Layer { index, port } => {
                self.outputs.get(index).and_then(|outputs| outputs.get(port))
            }
        };
        id.copied().ok_or_else(|| Diagnostic::new(location, "the value it takes is never made"))
    }

    fn add_entry(
        &mut self,
        layer: &UnrolledLayer,
        inputs: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let entry = &layer.entry;
        let inputs = match &entry.merge {
            None => inputs,
            Some(merge) => self.add_layer(Draft {
                name: format!("{}.merge", layer.name),
                kind: merge.kind.clone(),
                location: merge.location,
                inputs,
                out_variables: &[],
                share: None,
                frozen: false,
                recompute: layer.recompute,
            })?,
        };
        self.add_layer(Draft {
            name: layer.name.clone(),
            kind: entry.kind.clone(),
            location: entry.location,
            inputs,
            out_variables: &entry.out_variables,
            share: entry.share.as_ref(),
            frozen: layer.frozen,
            recompute: layer.recompute,
        })
    }

    fn add_layer(&mut self, mut draft: Draft<'_>) -> Result<Vec<ValueId>, Diagnostic> {
        let id = LayerId(self.layers.len() as u32);
        let at_layer = |message: String| Diagnostic::new(draft.location, message);
        self.claim_name(&draft, id)?;
        let share = draft.share.map(|name| self.find_shared(name, &draft.kind)).transpose()?;
        let inputs: Vec<TensorType> = draft.inputs.iter().map(|id| self.ty(*id).clone()).collect();
        let types = draft.kind.infer(&inputs).map_err(at_layer)?;
        draft.kind.locate_symbols(&inputs);
        draft
            .kind
            .flops(&inputs, &types)
            .map_err(|error| at_layer(format!("its FLOPs: {error}")))?;
        if let Some(ty) = types.iter().find(|ty| ty.shape.rank() > MAX_RANK) {
            return Err(at_layer(format!("its output {ty} has more than {MAX_RANK} dimensions")));
        }
        if let Some(extra) = draft.out_variables.get(types.len()) {
            let message = format!(
                "`{}` is one name too many: it has {} output{}",
                extra.text,
                types.len(),
                if types.len() == 1 { "" } else { "s" }
            );
            return Err(Diagnostic::new(extra.location, message));
        }
        let trains = self.trains(&draft, share)?;
        let reaches = trains || draft.inputs.iter().any(|id| self.grad(*id));
        let grad = reaches && draft.kind.passes_gradients();
        let named = |port: usize| draft.out_variables.get(port).map(|name| &name.text);
        let outputs = types.into_iter().enumerate().map(|(port, ty)| {
            let name = match (named(port), port) {
                (Some(name), _) => name.clone(),
                (None, 0) => draft.name.clone(),
                (None, _) => format!("{}.{port}", draft.name),
            };
            self.add_value(name, ty, Producer::Layer { layer: id, port }, grad)
        });
        let outputs: Vec<ValueId> = outputs.collect();
        self.layers.push(Layer {
            id,
            name: draft.name,
            kind: draft.kind,
            inputs: draft.inputs,
            outputs: outputs.clone(),
            share,
            frozen: draft.frozen,
            recompute: draft.recompute,
            precision: Precision::default(),
            location: draft.location,
        });
        Ok(outputs)
    }

    fn claim_name(&mut self, draft: &Draft<'_>, id: LayerId) -> Result<(), Diagnostic> {
        match self.by_name.insert(draft.name.clone(), id) {
            None => Ok(()),
            Some(first) => {
                let line = self.layers[first.index()].location.line;
                let message = format!("a second layer of this name, the first is in line {line}");
                Err(Diagnostic::new(draft.location, message))
            }
        }
    }

    fn find_shared(&self, name: &Name, kind: &LayerKind) -> Result<LayerId, Diagnostic> {
        let wrong = |message: String| Diagnostic::new(name.location, message);
        let text = &name.text;
        let known = self.by_name.get(text).and_then(|id| self.layers.get(id.index()));
        let other = known.ok_or_else(|| {
            let names = self.layers.iter().map(|layer| layer.name.as_str());
            wrong(format!("`share`: no layer `{text}` above this one"))
                .suggesting(nearest(text, names))
        })?;
        if let Some(first) = other.share {
            let first = &self.layers[first.index()].name;
            return Err(wrong(format!(
                "`share`: `{text}` itself shares those of `{first}`; name that one"
            )));
        }
        if kind.tied_params(&other.kind).is_empty() {
            return Err(wrong(format!(
                "`share`: `{text}` ({}) and this layer have no parameter of the same name and \
                 shape",
                other.kind.name()
            )));
        }
        Ok(other.id)
    }

    /// Counts the layer's own parameters; whether any parameter it uses is trained.
    fn trains(&mut self, draft: &Draft<'_>, share: Option<LayerId>) -> Result<bool, Diagnostic> {
        let other = share.map(|id| &self.layers[id.index()]);
        let tied = other.map_or(Vec::new(), |other| draft.kind.tied_params(&other.kind));
        let mut trains = other.is_some_and(|other| !other.frozen);
        for param in draft.kind.params() {
            if param.role == Role::Buffer || tied.contains(&param.name) {
                continue;
            }
            // Counted in bytes too, so that no later sum of them can overflow.
            let count = param.bytes().and(param.elements());
            let total = count.and_then(|count| self.param_count.checked_add(count));
            self.param_count = total.filter(|total| *total < u64::MAX / 64).ok_or_else(|| {
                Diagnostic::new(
                    draft.location,
                    format!("`{}` makes the model too large to count", param.name),
                )
            })?;
            trains |= !draft.frozen;
        }
        Ok(trains)
    }

    /// Refuses two tensors of one full name. Layers' names differ, so one of the two has dots
    /// within its layer, as `self_attn.out_proj.weight`, and another layer's name runs into it.
    pub(super) fn check_parameter_names(&self) -> Result<(), Diagnostic> {
        for layer in &self.layers {
            for param in layer.kind.params() {
                for (dot, _) in param.name.match_indices('.') {
                    let (within, name) = (&param.name[..dot], &param.name[dot + 1..]);
                    let other = self.by_name.get(&format!("{}.{within}", layer.name));
                    let Some(other) = other.map(|other| &self.layers[other.index()]) else {
                        continue;
                    };
                    if other.kind.params().iter().any(|other| other.name == name) {
                        let full = format!("{}.{}", layer.name, param.name);
                        let message = format!(
                            "its `{full}` is also layer {}'s (line {})",
                            layer.name, layer.location.line
                        );
                        return Err(Diagnostic::new(
                            other.location,
                            format!("{message}; give one of them another name"),
                        )
                        .in_layer(&other.name, Some(other.kind.name())));
                    }
                }
            }
        }
        Ok(())
    }

    fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.index()].ty
    }

    fn grad(&self, id: ValueId) -> bool {
        self.requires_grad[id.index()]
    }

    fn add_value(
        &mut self,
        name: String,
        ty: TensorType,
        producer: Producer,
        grad: bool,
    ) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.requires_grad.push(grad && ty.dtype.is_floating());
        self.values.push(Value { id, name, ty, producer });
        id
    }

    /// The model's outputs: those the file names, or the last layer's.
    pub(super) fn find_outputs(
        &self,
        named: Option<&[Name]>,
        names: &mut Names<'_>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let Some(named) = named else {
            return Ok(self.layers.last().map(|layer| layer.outputs.clone()).unwrap_or_default());
        };
        let mut outputs = Vec::new();
        for name in named {
            let id = match names.find_output(name)? {
                Origin::Input(_) => {
                    let message =
                        format!("`outputs`: `{}` is an input, which no layer makes", name.text);
                    return Err(Diagnostic::new(name.location, message));
                }
                origin => self.value_of(origin, name.location)?,
            };
            if outputs.contains(&id) {
                return Err(Diagnostic::new(
                    name.location,
                    format!("`outputs`: `{}` is named twice", name.text),
                ));
            }
            outputs.push(id);
        }
        Ok(outputs)
    }

    pub(super) fn finish(self, name: String, outputs: Vec<ValueId>) -> LayerGraph {
        let mut users = vec![Vec::new(); self.values.len()];
        for layer in &self.layers {
            for (port, input) in layer.inputs.iter().enumerate() {
                users[input.index()].push(Use { layer: layer.id, port });
            }
        }
        LayerGraph {
            name,
            layers: self.layers,
            values: self.values,
            inputs: self.inputs,
            outputs,
            users,
            requires_grad: self.requires_grad,
            param_count: self.param_count,
            warnings: Vec::new(),
        }
    }
}
