//! The files of a checkpoint and the place of each tensor in them, from names and metas alone.

use super::arrivals::Arrivals;
use super::training_state::Sizes;
use crate::weights::safetensors_files;
use crate::weights::shown_text::shown;
use crate::BossManError;
use pipeline::{StateName, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};

/// The folders of the files of weights and of optimizer state.
pub(super) const WEIGHTS: &str = "weights";
pub(super) const OPTIMIZER: &str = "optimizer";

/// Whether a tensor is optimizer state, and its name.
pub(super) type Key = (bool, String);

/// A file.
pub(super) struct FileLayout {
    /// Its path in the checkpoint's folder.
    pub(super) name: String,
    /// Everything before the tensors.
    pub(super) header: Vec<u8>,
    /// Its size.
    pub(super) bytes: u64,
    /// Its tensors, in their order.
    pub(super) tensors: Vec<TensorLayout>,
}

/// A tensor in a file.
pub(super) struct TensorLayout {
    pub(super) key: Key,
    /// Its first byte in the file.
    pub(super) start: u64,
    pub(super) arrivals: Arrivals,
}

/// The tensors of a file, by name.
type Tensors = BTreeMap<String, Arrivals>;

/// The announced parts of a tensor, by their first elements. `None` is the whole.
type Parts<'a> = BTreeMap<Option<u64>, &'a TensorMeta>;

/// Plans the files for these tensors. A layer has a file of its weights and one of its optimizer
/// state.
///
/// # Errors
/// A tensor is none of the model, is larger than the model allows, or is announced twice or only in
/// part.
pub(super) fn plan(
    heads: &[(String, TensorMeta)],
    sizes: &Sizes,
) -> Result<Vec<FileLayout>, BossManError> {
    let mut announced: BTreeMap<Key, Parts<'_>> = BTreeMap::new();
    for (name, meta) in heads {
        let StateName { optimizer, name: of, start } = StateName::parse(name);
        let parts = announced.entry((optimizer, of.to_string())).or_default();
        if parts.insert(start, meta).is_some() {
            return Err(wrong(name, "was announced twice"));
        }
    }
    let mut layers: BTreeMap<String, BTreeMap<&'static str, Tensors>> = BTreeMap::new();
    for (key, parts) in announced {
        let arrivals = arrivals(&key, &parts, sizes);
        let arrivals = arrivals.map_err(|problem| wrong(&state_name(&key), &problem))?;
        let (is_optimizer, name) = key;
        let (kind, layer) = match is_optimizer {
            true => (OPTIMIZER, before_dot(before_dot(&name))),
            false => (WEIGHTS, before_dot(&name)),
        };
        let kinds = layers.entry(layer.to_string()).or_default();
        kinds.entry(kind).or_default().insert(name, arrivals);
    }
    let mut files = Vec::new();
    for (number, (layer, kinds)) in layers.into_iter().enumerate() {
        for (kind, tensors) in kinds {
            let name = format!("{kind}/{number:04}-{}.safetensors", plain(&layer));
            files.push(file(name, kind == OPTIMIZER, tensors)?);
        }
    }
    Ok(files)
}

fn file(
    name: String,
    is_optimizer: bool,
    mut tensors: Tensors,
) -> Result<FileLayout, BossManError> {
    let metas = tensors.iter().map(|(name, arrivals)| (name.as_str(), arrivals.meta()));
    let header = safetensors_files::header(metas)?;
    let place = |(name, start): (String, u64)| {
        let arrivals = tensors.remove(&name)?;
        Some(TensorLayout { key: (is_optimizer, name), start, arrivals })
    };
    let tensors = header.starts.into_iter().filter_map(place).collect();
    Ok(FileLayout { name, header: header.bytes, bytes: header.file_bytes, tensors })
}

/// The tensor that these parts make.
fn arrivals(key: &Key, parts: &Parts<'_>, sizes: &Sizes) -> Result<Arrivals, String> {
    let (is_optimizer, name) = key;
    let parameter = match is_optimizer {
        true => name.rsplit_once('.').map(|(parameter, _)| parameter),
        false => Some(name.as_str()),
    };
    let shape = parameter.and_then(|parameter| sizes.get(parameter));
    let shape = shape.ok_or("the model has no such parameter")?;
    let shape: Vec<u64> = shape.iter().map(|size| size.unsigned_abs()).collect();
    let Some((first, meta)) = parts.first_key_value() else {
        return Err("was not announced".into());
    };
    let of_parameter = Arrivals::of_tensor(TensorMeta { dtype: meta.dtype, shape })?;
    let expected = of_parameter.meta();
    if !is_optimizer {
        return match (first, parts.len()) {
            (None, 1) if *meta == expected => Ok(of_parameter),
            (None, 1) => Err(format!("expected {expected}, got {meta}")),
            _ => Err("was announced in slices, not whole".into()),
        };
    }
    if first.is_some() {
        return of_shards(parts, of_parameter);
    }
    if parts.len() > 1 {
        return Err("was announced whole and in shards".into());
    }
    let whole = Arrivals::of_tensor(TensorMeta::clone(meta))?;
    match whole.elements() <= of_parameter.elements().max(1) {
        true => Ok(whole),
        false => Err(format!("{meta} is larger than its parameter, {expected}")),
    }
}

/// Optimizer state in shards of several replicas. They make a tensor of the parameter's shape. Or
/// all are the same scalar.
fn of_shards(parts: &Parts<'_>, whole: Arrivals) -> Result<Arrivals, String> {
    let (dtype, elements) = (whole.meta().dtype, whole.elements());
    let scalars = parts.values().filter(|meta| meta.shape.is_empty()).count();
    if parts.values().any(|meta| meta.dtype != dtype) || (scalars > 0 && scalars < parts.len()) {
        return Err("its shards are not alike".into());
    }
    if scalars > 0 {
        let starts: BTreeSet<u64> = parts.keys().flatten().copied().collect();
        return match starts.last().filter(|last| **last > elements) {
            Some(last) => Err(format!("its shard at {last} is not within {elements} elements")),
            None => Arrivals::of_copies(dtype, starts),
        };
    }
    let mut next = 0u64;
    for (start, meta) in parts {
        let start = start.unwrap_or(0);
        let [length] = meta.shape[..] else {
            return Err(format!("expected a flat shard, got {meta}"));
        };
        if start != next {
            return Err(format!("elements {next} to {start} are with no replica"));
        }
        let end = next.checked_add(length).filter(|end| *end <= elements);
        next = end.ok_or_else(|| format!("its shards are more than {elements} elements"))?;
    }
    match next == elements {
        true => Ok(whole),
        false => Err(format!("its shards are {next} of {elements} elements")),
    }
}

/// The name under which a whole tensor travels.
pub(super) fn state_name(key: &Key) -> String {
    match key {
        (true, name) => StateName::of_optimizer(name, None).to_string(),
        (false, name) => StateName::of_parameter(name).to_string(),
    }
}

/// An error about a tensor of a worker.
pub(super) fn wrong(name: &str, problem: &str) -> BossManError {
    BossManError::StateDict(vec![format!("`{}`: {problem}", shown(name))])
}

/// The problem of a state or weights with NaN: nobody can train or predict with it.
pub(super) fn nan_problem(name: &str) -> String {
    let remedy = "lower the learning rate or set `clip_grad_norm`";
    format!("is not written, because `{}` has NaN; {remedy}", shown(name))
}

fn before_dot(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(before, _)| before)
}

/// Makes a layer's name valid in a file name on every system.
fn plain(layer: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    layer.chars().map(plain).take(100).collect()
}
