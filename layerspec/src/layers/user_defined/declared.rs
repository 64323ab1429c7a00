//! The declarations in a model file about a layer whose code only workers have: its parameters and
//! outputs.

use super::ParamName;
use crate::layers::spatial::each_of;
use crate::spec::MAX_RANK;
use crate::vars::is_identifier;
use crate::yaml::{Entry, Kind, Node, Reader, NUMBER, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most parameters, or outputs, of one layer.
const MOST: usize = 1024;

/// A parameter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeclaredParam {
    /// Its name within the layer.
    pub name: ParamName,
    /// Its sizes.
    pub shape: Vec<u64>,
    /// How it is filled before training.
    pub init: Init,
}

/// A size of an output: a number, or a symbol of the model's inputs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Size {
    /// Always the same.
    Number(u64),
    /// As in the inputs.
    Symbol {
        /// The symbol.
        symbol: String,
        /// The input of the layer, and its dimension, that has this size; None before the inputs'
        /// shapes are known, or if the symbol is only a part of sizes, as in `2*seq`.
        of: Option<(usize, usize)>,
    },
}

/// An output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeclaredOutput {
    /// Its sizes.
    pub shape: Vec<Size>,
    /// Its element type.
    pub dtype: DType,
}

fn shape<T>(node: &Node, least: usize, one: fn(&Node) -> Option<T>) -> Option<Vec<T>> {
    let Kind::List(items) = &node.kind else { return None };
    (least..=MAX_RANK).contains(&items.len()).then(|| items.iter().map(one).collect())?
}

fn size(node: &Node) -> Option<Size> {
    match node.as_text() {
        Some(symbol) if is_identifier(symbol) => {
            Some(Size::Symbol { symbol: symbol.to_owned(), of: None })
        }
        _ => (SIZE.read)(node).map(Size::Number),
    }
}

/// The values of these keys, in their order; None if there are other keys, or one twice.
fn fields<'n, const N: usize>(node: &'n Node, keys: [&str; N]) -> Option<[Option<&'n Node>; N]> {
    let Kind::Map(entries) = &node.kind else { return None };
    let mut found = [None; N];
    for Entry { key, value } in entries {
        let place = keys.iter().position(|known| *known == key.text)?;
        if found[place].replace(value).is_some() {
            return None;
        }
    }
    Some(found)
}

/// `[16, 8]`, or `{shape: [16, 8], init: ..}`.
fn declared(entry: &Entry, default: fn(&[u64]) -> Init) -> Option<DeclaredParam> {
    let (sizes, init) = match &entry.value.kind {
        Kind::Map(_) => {
            let [shape, init] = fields(&entry.value, ["shape", "init"])?;
            (shape?, init)
        }
        _ => (&entry.value, None),
    };
    let shape = shape(sizes, 0, SIZE.read)?;
    let init = init.map_or_else(|| Some(default(&shape)), self::init)?;
    Some(DeclaredParam { name: ParamName::new(&entry.key.text)?, shape, init })
}

fn init(node: &Node) -> Option<Init> {
    if let Some(symbol) = node.as_text() {
        return match symbol {
            "zeros" => Some(Init::Zeros),
            "ones" => Some(Init::Ones),
            _ => None,
        };
    }
    let pair = |node: &Node| {
        each_of::<f64, 2>(node, &NUMBER).filter(|_| matches!(node.kind, Kind::List(_)))
    };
    match fields(node, ["constant", "uniform", "normal"])? {
        [Some(value), None, None] => Some(Init::Constant { value: (NUMBER.read)(value)? }),
        [None, Some(bounds), None] => pair(bounds)
            .filter(|[low, high]| low <= high)
            .map(|[low, high]| Init::Uniform { low, high }),
        [None, None, Some(parts)] => {
            pair(parts).filter(|[_, std]| *std >= 0.0).map(|[mean, std]| Init::Normal { mean, std })
        }
        _ => None,
    }
}

fn all(node: &Node, default: fn(&[u64]) -> Init) -> Option<Vec<DeclaredParam>> {
    let Kind::Map(entries) = &node.kind else { return None };
    let params: Vec<DeclaredParam> =
        entries.iter().map(|entry| declared(entry, default)).collect::<Option<_>>()?;
    let names: BTreeSet<ParamName> = params.iter().map(|param| param.name).collect();
    (names.len() == params.len() && params.len() <= MOST).then_some(params)
}

/// As `Linear`: matrices within 1/sqrt of their rows' length, and vectors zero.
fn as_linear(shape: &[u64]) -> Init {
    match shape {
        [_, inner @ ..] if !inner.is_empty() => {
            Init::fan_in(inner.iter().fold(1.0, |product, size| product * *size as f64))
        }
        _ => Init::Zeros,
    }
}

/// Parameters with how they are filled.
pub(super) const PARAMS: Reader<Vec<DeclaredParam>> = Reader::new(
    "a mapping of names to shapes as [16, 8], or to {shape: [16, 8], init: I} where I is `zeros`, \
     `ones`, {constant: C}, {uniform: [LOW, HIGH]} or {normal: [MEAN, STD]}",
    |node| all(node, as_linear),
);

/// Parameters that a file holds.
pub(super) const PARAMS_OF_FILE: Reader<Vec<DeclaredParam>> =
    Reader::new("a mapping of every parameter's name to its shape, as {weight: [16, 8]}", |node| {
        let params = all(node, |_| Init::File)?;
        params.iter().all(|param| param.init == Init::File).then_some(params)
    });

fn made(node: &Node) -> Option<DeclaredOutput> {
    let (sizes, dtype) = match &node.kind {
        Kind::Map(_) => {
            let [shape, dtype] = fields(node, ["shape", "dtype"])?;
            (shape?, dtype.map_or(Some(DType::Float32), |dtype| dtype.as_text()?.parse().ok())?)
        }
        _ => (node, DType::Float32),
    };
    Some(DeclaredOutput { shape: shape(sizes, 1, size)?, dtype })
}

/// The outputs.
pub(super) const OUT: Reader<Option<Vec<DeclaredOutput>>> =
    Reader::new("a shape as [batch, 16], {shape: [..], dtype: ..}, or a list of these", |node| {
        match &node.kind {
            Kind::List(items)
                if items.iter().all(|item| matches!(item.kind, Kind::List(_) | Kind::Map(_))) =>
            {
                let outputs: Vec<DeclaredOutput> = items.iter().map(made).collect::<Option<_>>()?;
                (1..=MOST).contains(&outputs.len()).then_some(Some(outputs))
            }
            _ => Some(Some(vec![made(node)?])),
        }
    });

pub(super) fn specs(params: &[DeclaredParam]) -> Vec<ParamSpec> {
    params
        .iter()
        .map(|param| ParamSpec::parameter(param.name.as_str(), param.shape.clone(), param.init))
        .collect()
}

/// The outputs' types: as declared, or one like the first input.
pub(super) fn types(
    out: Option<&[DeclaredOutput]>,
    inputs: &[TensorType],
) -> Result<Vec<TensorType>, String> {
    let Some(out) = out else {
        return Ok(inputs.first().cloned().into_iter().collect());
    };
    let mut symbols = BTreeSet::new();
    inputs.iter().flat_map(TensorType::dims).for_each(|dim| dim.collect_symbols(&mut symbols));
    let dim = |size: &Size| match size {
        Size::Number(number) => Ok(Dim::Fixed(*number)),
        Size::Symbol { symbol, .. } if symbols.contains(symbol) => Ok(Dim::symbol(symbol)),
        Size::Symbol { symbol, .. } => {
            Err(format!("`out`: the symbol `{symbol}` is in none of its inputs' shapes"))
        }
    };
    out.iter()
        .map(|made| {
            Ok(TensorType::new(
                made.dtype,
                made.shape.iter().map(dim).collect::<Result<_, String>>()?,
            ))
        })
        .collect()
}

/// The input, and its dimension, that has this symbol as its size.
pub(super) fn located(symbol: &str, inputs: &[TensorType]) -> Option<(usize, usize)> {
    let place =
        |input: &TensorType| input.dims().iter().position(|dim| dim.as_symbol() == Some(symbol));
    inputs.iter().enumerate().find_map(|(port, input)| Some((port, place(input)?)))
}

/// Records the input and dimension that give each symbol its size, because workers know no symbols.
pub(super) fn locate_symbols(out: &mut [DeclaredOutput], inputs: &[TensorType]) {
    for size in out.iter_mut().flat_map(|made| &mut made.shape) {
        if let Size::Symbol { symbol, of } = size {
            *of = located(symbol, inputs);
        }
    }
}

/// The declared FLOPs for each sample. Without them, an estimate as if each parameter were a matrix
/// that multiplies rows of the output.
pub(super) fn flops(
    declared: Option<u64>,
    params: &[DeclaredParam],
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<Dim, OutOfRange> {
    if let Some(each) = declared {
        let samples =
            inputs.first().and_then(|input| input.dims().first()).cloned().unwrap_or(Dim::Fixed(1));
        return samples.times_number(each);
    }
    let output = outputs.first().map(TensorType::dims).unwrap_or_default();
    let rows = Dim::product(output.split_last().map(|(_, outer)| outer).unwrap_or_default())?;
    let elements =
        specs(params).iter().try_fold(0u64, |sum, param| sum.checked_add(param.elements()?));
    let products = rows.times_number(2)?.times_number(elements.ok_or(OutOfRange)?)?;
    products.plus(&Dim::product(output)?)
}
