//! What the model file says of a layer whose code only workers have: parameters, and what comes out.

use super::ParamName;
use crate::layers::extent::each_of;
use crate::spec::MAX_RANK;
use crate::vars::is_word;
use crate::yaml::{Entry, Kind, Node, Reader, NUMBER, SIZE};
use crate::{DType, Dim, Init, OutOfRange, ParamSpec, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// More parameters, or outputs, of one layer are refused.
const MOST: usize = 1024;

/// A parameter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Declared {
    /// Its name within the layer.
    pub name: ParamName,
    /// Its sizes.
    pub shape: Vec<u64>,
    /// How it is filled before training.
    pub init: Init,
}

/// A size of an output: a number, or a word of the model's inputs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Size {
    /// Always the same.
    Number(u64),
    /// As in the inputs.
    Word {
        /// The word.
        word: String,
        /// The input of the layer, and its dimension, that has this size; none before the inputs' shapes are known, or
        /// where they have the word only as a part of sizes, as in `2*seq`.
        of: Option<(usize, usize)>,
    },
}

/// An output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
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
        Some(word) if is_word(word) => Some(Size::Word { word: word.to_owned(), of: None }),
        _ => (SIZE.read)(node).map(Size::Number),
    }
}

/// The values of these keys, in their order; none where there are others, or one twice.
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
fn declared(entry: &Entry, default: fn(&[u64]) -> Init) -> Option<Declared> {
    let (sizes, init) = match &entry.value.kind {
        Kind::Map(_) => {
            let [shape, init] = fields(&entry.value, ["shape", "init"])?;
            (shape?, init)
        }
        _ => (&entry.value, None),
    };
    let shape = shape(sizes, 0, SIZE.read)?;
    let init = init.map_or_else(|| Some(default(&shape)), self::init)?;
    Some(Declared { name: ParamName::new(&entry.key.text)?, shape, init })
}

fn init(node: &Node) -> Option<Init> {
    if let Some(word) = node.as_text() {
        return match word {
            "zeros" => Some(Init::Zeros),
            "ones" => Some(Init::Ones),
            _ => None,
        };
    }
    let pair = |node: &Node| each_of::<f64, 2>(node, &NUMBER).filter(|_| matches!(node.kind, Kind::List(_)));
    match fields(node, ["constant", "uniform", "normal"])? {
        [Some(value), None, None] => Some(Init::Constant { value: (NUMBER.read)(value)? }),
        [None, Some(bounds), None] => {
            pair(bounds).filter(|[low, high]| low <= high).map(|[low, high]| Init::Uniform { low, high })
        }
        [None, None, Some(parts)] => {
            pair(parts).filter(|[_, std]| *std >= 0.0).map(|[mean, std]| Init::Normal { mean, std })
        }
        _ => None,
    }
}

fn all(node: &Node, default: fn(&[u64]) -> Init) -> Option<Vec<Declared>> {
    let Kind::Map(entries) = &node.kind else { return None };
    let params: Vec<Declared> = entries.iter().map(|entry| declared(entry, default)).collect::<Option<_>>()?;
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
pub(super) const PARAMS: Reader<Vec<Declared>> = Reader::new(
    "a mapping of names to shapes as [16, 8], or to {shape: [16, 8], init: I} where I is `zeros`, `ones`, \
     {constant: C}, {uniform: [LOW, HIGH]} or {normal: [MEAN, STD]}",
    |node| all(node, as_linear),
);

/// Parameters that a file holds.
pub(super) const PARAMS_OF_FILE: Reader<Vec<Declared>> =
    Reader::new("a mapping of every parameter's name to its shape, as {weight: [16, 8]}", |node| {
        let params = all(node, |_| Init::File)?;
        params.iter().all(|param| param.init == Init::File).then_some(params)
    });

fn made(node: &Node) -> Option<Made> {
    let (sizes, dtype) = match &node.kind {
        Kind::Map(_) => {
            let [shape, dtype] = fields(node, ["shape", "dtype"])?;
            (shape?, dtype.map_or(Some(DType::Float32), |dtype| dtype.as_text()?.parse().ok())?)
        }
        _ => (node, DType::Float32),
    };
    Some(Made { shape: shape(sizes, 1, size)?, dtype })
}

/// What comes out.
pub(super) const OUT: Reader<Option<Vec<Made>>> =
    Reader::new("a shape as [batch, 16], {shape: [..], dtype: ..}, or a list of these", |node| match &node.kind {
        Kind::List(items) if items.iter().all(|item| matches!(item.kind, Kind::List(_) | Kind::Map(_))) => {
            let outputs: Vec<Made> = items.iter().map(made).collect::<Option<_>>()?;
            (1..=MOST).contains(&outputs.len()).then_some(Some(outputs))
        }
        _ => Some(Some(vec![made(node)?])),
    });

pub(super) fn specs(params: &[Declared]) -> Vec<ParamSpec> {
    params.iter().map(|param| ParamSpec::parameter(param.name.as_str(), param.shape.clone(), param.init)).collect()
}

/// The outputs' types: as declared, or one like the first input.
pub(super) fn types(out: Option<&[Made]>, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
    let Some(out) = out else {
        return Ok(inputs.first().cloned().into_iter().collect());
    };
    let mut words = BTreeSet::new();
    inputs.iter().flat_map(TensorType::dims).for_each(|dim| dim.collect_symbols(&mut words));
    let dim = |size: &Size| match size {
        Size::Number(number) => Ok(Dim::Fixed(*number)),
        Size::Word { word, .. } if words.contains(word) => Ok(Dim::symbol(word)),
        Size::Word { word, .. } => Err(format!("`out`: the word `{word}` is in none of its inputs' shapes")),
    };
    out.iter()
        .map(|made| Ok(TensorType::new(made.dtype, made.shape.iter().map(dim).collect::<Result<_, String>>()?)))
        .collect()
}

/// Says of each word where in the inputs it stands: there the layer's worker, which knows no words, finds its size.
pub(super) fn find_words(out: &mut [Made], inputs: &[TensorType]) {
    for size in out.iter_mut().flat_map(|made| &mut made.shape) {
        if let Size::Word { word, of } = size {
            let place = |input: &TensorType| input.dims().iter().position(|dim| dim.as_symbol() == Some(word.as_str()));
            *of = inputs.iter().enumerate().find_map(|(port, input)| Some((port, place(input)?)));
        }
    }
}

/// As the file says, for each sample; else as if each parameter were a matrix that rows of the output are multiplied by.
pub(super) fn flops(
    declared: Option<u64>,
    params: &[Declared],
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<Dim, OutOfRange> {
    if let Some(each) = declared {
        let samples = inputs.first().and_then(|input| input.dims().first()).cloned().unwrap_or(Dim::Fixed(1));
        return samples.times_number(each);
    }
    let output = outputs.first().map(TensorType::dims).unwrap_or_default();
    let rows = Dim::product(output.split_last().map(|(_, outer)| outer).unwrap_or_default())?;
    let elements = specs(params).iter().try_fold(0u64, |sum, param| sum.checked_add(param.elements()?));
    let products = rows.times_number(2)?.times_number(elements.ok_or(OutOfRange)?)?;
    products.plus(&Dim::product(output)?)
}
