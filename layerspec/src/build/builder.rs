//! Layers and values, one after the other.

use super::names::{Maker, Names};
use crate::graph::{Layer, Source, Use, Value};
use crate::layers::LayerKind;
use crate::spec::{Flat, Input, Name, MAX_RANK};
use crate::{nearest, Fault, LayerGraph, LayerId, Place, Precision, Recompute, Role, TensorType, ValueId};
use std::collections::HashMap;

/// The graph so far.
#[derive(Default)]
pub(super) struct Builder {
    layers: Vec<Layer>,
    values: Vec<Value>,
    inputs: Vec<ValueId>,
    requires_grad: Vec<bool>,
    by_name: HashMap<String, LayerId>,
    /// The outputs of each layer as written; its merge has none of its own here.
    made: Vec<Vec<ValueId>>,
    param_count: u64,
}

/// A layer whose types are not known yet.
struct Draft<'a> {
    name: String,
    kind: LayerKind,
    place: Place,
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
            let source = Source::Input(position);
            let id = builder.add_value(input.name.text.clone(), input.ty.clone(), source, false);
            builder.inputs.push(id);
        }
        builder
    }

    /// Adds the layer at `index` of the unrolled list, and its merge before it.
    pub(super) fn add(&mut self, index: usize, names: &mut Names<'_>) -> Result<(), Fault> {
        let flat = &names.flats[index];
        let label = |fault: Fault| fault.in_layer(&flat.name, Some(flat.written.kind.name()));
        let inputs = self.find_inputs(index, names).map_err(label)?;
        let outputs = self.add_written(flat, inputs).map_err(label)?;
        self.made.push(outputs);
        Ok(())
    }

    fn find_inputs(&self, index: usize, names: &mut Names<'_>) -> Result<Vec<ValueId>, Fault> {
        let written = &names.flats[index].written;
        let main = match (&written.input, index.checked_sub(1)) {
            (Some(name), _) => names.find(name, index)?,
            (None, Some(index)) => {
                names.use_first_of(index);
                Maker::Layer { index, port: 0 }
            }
            (None, None) => {
                names.use_input(0);
                Maker::Input(0)
            }
        };
        let others = written.in_variables.iter().map(|name| names.find(name, index));
        let makers = std::iter::once(Ok(main)).chain(others);
        makers.map(|maker| self.made_by(maker?, written.place)).collect()
    }

    fn made_by(&self, maker: Maker, place: Place) -> Result<ValueId, Fault> {
        let id = match maker {
            Maker::Input(position) => self.inputs.get(position),
            Maker::Layer { index, port } => self.made.get(index).and_then(|made| made.get(port)),
        };
        id.copied().ok_or_else(|| Fault::new(place, "the value it takes is never made"))
    }

    fn add_written(&mut self, flat: &Flat, inputs: Vec<ValueId>) -> Result<Vec<ValueId>, Fault> {
        let written = &flat.written;
        let inputs = match &written.merge {
            None => inputs,
            Some(merge) => self.add_layer(Draft {
                name: format!("{}.merge", flat.name),
                kind: merge.kind.clone(),
                place: merge.place,
                inputs,
                out_variables: &[],
                share: None,
                frozen: false,
                recompute: flat.recompute,
            })?,
        };
        self.add_layer(Draft {
            name: flat.name.clone(),
            kind: written.kind.clone(),
            place: written.place,
            inputs,
            out_variables: &written.out_variables,
            share: written.share.as_ref(),
            frozen: flat.frozen,
            recompute: flat.recompute,
        })
    }

    fn add_layer(&mut self, mut draft: Draft<'_>) -> Result<Vec<ValueId>, Fault> {
        let id = LayerId(self.layers.len() as u32);
        let at_layer = |message: String| Fault::new(draft.place, message);
        self.claim_name(&draft, id)?;
        let share = draft.share.map(|name| self.find_shared(name, &draft.kind)).transpose()?;
        let inputs: Vec<TensorType> = draft.inputs.iter().map(|id| self.ty(*id).clone()).collect();
        let types = draft.kind.infer(&inputs).map_err(at_layer)?;
        draft.kind.meet_inputs(&inputs);
        draft.kind.flops(&inputs, &types).map_err(|error| at_layer(format!("its FLOPs: {error}")))?;
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
            return Err(Fault::new(extra.place, message));
        }
        let grad = self.trains(&draft, share)? || draft.inputs.iter().any(|id| self.grad(*id));
        let named = |port: usize| draft.out_variables.get(port).map(|name| &name.text);
        let outputs = types.into_iter().enumerate().map(|(port, ty)| {
            let name = match (named(port), port) {
                (Some(name), _) => name.clone(),
                (None, 0) => draft.name.clone(),
                (None, _) => format!("{}.{port}", draft.name),
            };
            self.add_value(name, ty, Source::Layer { layer: id, port }, grad)
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
            place: draft.place,
        });
        Ok(outputs)
    }

    fn claim_name(&mut self, draft: &Draft<'_>, id: LayerId) -> Result<(), Fault> {
        match self.by_name.insert(draft.name.clone(), id) {
            None => Ok(()),
            Some(first) => {
                let line = self.layers[first.index()].place.line;
                let message = format!("a second layer of this name, the first is in line {line}");
                Err(Fault::new(draft.place, message))
            }
        }
    }

    fn find_shared(&self, name: &Name, kind: &LayerKind) -> Result<LayerId, Fault> {
        let wrong = |message: String| Fault::new(name.place, message);
        let text = &name.text;
        let known = self.by_name.get(text).and_then(|id| self.layers.get(id.index()));
        let other = known.ok_or_else(|| {
            let names = self.layers.iter().map(|layer| layer.name.as_str());
            wrong(format!("`share`: no layer `{text}` above this one")).suggesting(nearest(text, names))
        })?;
        if let Some(first) = other.share {
            let first = &self.layers[first.index()].name;
            return Err(wrong(format!("`share`: `{text}` itself shares those of `{first}`; name that one")));
        }
        if kind.tied_params(&other.kind).is_empty() {
            return Err(wrong(format!(
                "`share`: `{text}` ({}) and this layer have no parameter of the same name and shape",
                other.kind.name()
            )));
        }
        Ok(other.id)
    }

    /// Counts the layer's own parameters; whether any parameter it uses is trained.
    fn trains(&mut self, draft: &Draft<'_>, share: Option<LayerId>) -> Result<bool, Fault> {
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
                Fault::new(draft.place, format!("`{}` makes the model too large to count", param.name))
            })?;
            trains |= !draft.frozen;
        }
        Ok(trains)
    }

    /// Refuses two tensors of one full name. Layers' names differ, so one of the two has dots within its layer, as
    /// `self_attn.out_proj.weight`, and another layer's name runs into it.
    pub(super) fn refuse_clashes(&self) -> Result<(), Fault> {
        for layer in &self.layers {
            for param in layer.kind.params() {
                for (dot, _) in param.name.match_indices('.') {
                    let (within, name) = (&param.name[..dot], &param.name[dot + 1..]);
                    let other = self.by_name.get(&format!("{}.{within}", layer.name));
                    let Some(other) = other.map(|other| &self.layers[other.index()]) else { continue };
                    if other.kind.params().iter().any(|other| other.name == name) {
                        let full = format!("{}.{}", layer.name, param.name);
                        let message =
                            format!("its `{full}` is also layer {}'s (line {})", layer.name, layer.place.line);
                        return Err(Fault::new(other.place, format!("{message}; give one of them another name"))
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

    fn add_value(&mut self, name: String, ty: TensorType, made_by: Source, grad: bool) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.requires_grad.push(grad && ty.dtype.is_floating());
        self.values.push(Value { id, name, ty, made_by });
        id
    }

    /// The model's outputs: those the file names, or the last layer's.
    pub(super) fn find_outputs(&self, named: Option<&[Name]>, names: &mut Names<'_>) -> Result<Vec<ValueId>, Fault> {
        let Some(named) = named else {
            return Ok(self.layers.last().map(|layer| layer.outputs.clone()).unwrap_or_default());
        };
        let mut outputs = Vec::new();
        for name in named {
            let id = match names.find_output(name)? {
                Maker::Input(_) => {
                    let message = format!("`outputs`: `{}` is an input, which no layer makes", name.text);
                    return Err(Fault::new(name.place, message));
                }
                maker => self.made_by(maker, name.place)?,
            };
            if outputs.contains(&id) {
                return Err(Fault::new(name.place, format!("`outputs`: `{}` is named twice", name.text)));
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
