//! The table that `bossman check` prints.

mod text_table;

use crate::human::size;
use crate::{Bindings, Dim, Layer, LayerGraph, Role, TensorType};
use std::fmt::Write;

use text_table::{Align, TextTable};

/// The sums of a table's numbers.
#[derive(Default)]
struct Totals {
    trained: u64,
    frozen: u64,
    parameter_bytes: u64,
    trained_bytes: u64,
    buffer_bytes: u64,
    flops: Option<Dim>,
    activation_bytes: Option<Dim>,
}

impl LayerGraph {
    /// One row for each layer (output, parameters, FLOPs of a forward pass, bytes of its output),
    /// and the totals. Numbers are per sample unless `bindings` bind the batch's symbol; what
    /// depends on other symbols that are not bound is shown as a formula.
    pub fn summary(&self, bindings: &Bindings) -> String {
        let mut costs = bindings.clone();
        if let Some(batch) = self.batch().filter(|batch| bindings.get(batch).is_none()) {
            costs.set(batch, 1);
        }
        let mut columns = TextTable::new([
            ("layer", Align::Left),
            ("kind", Align::Left),
            ("output", Align::Left),
            ("parameters", Align::Right),
            ("FLOPs", Align::Right),
            ("activation bytes", Align::Right),
            ("", Align::Left),
        ]);
        let mut totals = Totals {
            flops: Some(Dim::Fixed(0)),
            activation_bytes: Some(Dim::Fixed(0)),
            ..Totals::default()
        };
        for layer in self.layers() {
            let row = self.row(layer, bindings, &costs, &mut totals);
            columns.push(row);
        }
        let inputs = self
            .inputs()
            .iter()
            .map(|id| format!("{} {}", self.value(*id).name, self.value(*id).ty));
        let outputs = self.outputs().iter().map(|id| self.value(*id).ty.to_string());
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        let mut text =
            format!("{}: {} -> {}\n\n", self.name(), inputs.join(", "), outputs.join(", "));
        text.push_str(&columns.to_string());
        text.push('\n');
        self.write_totals(&totals, bindings, &mut text);
        text
    }

    fn row(
        &self,
        layer: &Layer,
        bindings: &Bindings,
        costs: &Bindings,
        totals: &mut Totals,
    ) -> [String; 7] {
        let (inputs, outputs) = (self.types(&layer.inputs), self.types(&layer.outputs));
        let mut own = 0;
        for param in self.own_params(layer.id) {
            // The graph is checked: these numbers exist, and their sums fit.
            let (elements, bytes) = (param.elements().unwrap_or(0), param.bytes().unwrap_or(0));
            if param.role == Role::Buffer {
                totals.buffer_bytes = totals.buffer_bytes.saturating_add(bytes);
                continue;
            }
            own += elements;
            totals.parameter_bytes += bytes;
            if layer.frozen {
                totals.frozen += elements;
            } else {
                totals.trained += elements;
                totals.trained_bytes += bytes;
            }
        }
        let bound = |dim: Option<Dim>| dim.and_then(|dim| dim.bind(costs).ok());
        let flops = bound(layer.kind.flops(&inputs, &outputs).ok());
        let bytes = bound(total_bytes(&outputs));
        add(&mut totals.flops, &flops);
        add(&mut totals.activation_bytes, &bytes);
        let shapes: Vec<String> = outputs.iter().map(|ty| shown_type(ty, bindings)).collect();
        let kind = layer.kind.name().to_owned();
        [
            layer.name.clone(),
            kind,
            shapes.join(", "),
            grouped(own),
            shown(&flops),
            shown(&bytes),
            self.note(layer, own),
        ]
    }

    fn note(&self, layer: &Layer, own: u64) -> String {
        let shared = layer.share.map(|other| {
            let other = &self.layer(other).name;
            let names = self.shared_params(layer.id);
            let names: Vec<String> = names.iter().map(|name| format!("{other}.{name}")).collect();
            format!("shares {}", names.join(", "))
        });
        let frozen = (layer.frozen && own > 0).then(|| "frozen".to_owned());
        shared.into_iter().chain(frozen).collect::<Vec<_>>().join(", ")
    }

    fn write_totals(&self, totals: &Totals, bindings: &Bindings, text: &mut String) {
        let per = match self.batch().map(|batch| (batch, bindings.get(batch))) {
            Some((_, None)) => "per sample".to_owned(),
            Some((_, Some(size))) => format!("per batch of {size}"),
            None => "per batch".to_owned(),
        };
        // Adam keeps two moments beside every trained weight and its gradient.
        let adam = totals.trained_bytes.saturating_mul(3);
        let memory =
            totals.parameter_bytes.saturating_add(totals.buffer_bytes).saturating_add(adam);
        let lines = [
            (
                "parameters",
                format!("{} trained, {} frozen", grouped(totals.trained), grouped(totals.frozen)),
            ),
            ("parameter bytes", with_unit(totals.parameter_bytes)),
            ("with Adam", format!("{} for weights, gradients and two moments", with_unit(memory))),
            (&per, format!("{} FLOPs forward", shown(&totals.flops))),
            (&per, format!("{} bytes of activations", shown(&totals.activation_bytes))),
        ];
        let mut columns = TextTable::new([("total", Align::Left), ("", Align::Left)]);
        lines.into_iter().for_each(|(name, value)| columns.push([name.to_owned(), value]));
        text.push_str(&columns.to_string());
        let mut open = self.symbols();
        open.retain(|symbol| {
            bindings.get(symbol).is_none() && Some(symbol.as_str()) != self.batch()
        });
        if !open.is_empty() {
            let symbols: Vec<String> = open.into_iter().collect();
            let _ = writeln!(
                text,
                "\nNot fixed by the file: {}; bind sizes to see numbers.",
                symbols.join(", ")
            );
        }
    }
}

fn total_bytes(types: &[TensorType]) -> Option<Dim> {
    types.iter().try_fold(Dim::Fixed(0), |total, ty| {
        let elements = Dim::product(ty.dims()).ok()?;
        total.plus(&elements.times_number(ty.dtype.size_bytes()).ok()?).ok()
    })
}

fn add(total: &mut Option<Dim>, more: &Option<Dim>) {
    *total = total.as_ref().zip(more.as_ref()).and_then(|(total, more)| total.plus(more).ok());
}

fn shown(dim: &Option<Dim>) -> String {
    match dim {
        Some(Dim::Fixed(number)) => grouped(*number),
        Some(formula) => formula.to_string(),
        None => "out of range".to_owned(),
    }
}

fn shown_type(ty: &TensorType, bindings: &Bindings) -> String {
    let dims = ty.dims().iter().map(|dim| dim.bind(bindings).unwrap_or_else(|_| dim.clone()));
    TensorType::new(ty.dtype, dims.collect()).to_string()
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `3158020` as `3,158,020 (3.0 MiB)`.
fn with_unit(bytes: u64) -> String {
    match bytes {
        0..1024 => size(bytes),
        _ => format!("{} ({})", grouped(bytes), size(bytes)),
    }
}
