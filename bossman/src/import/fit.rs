//! Compares the parameters of a model with the tensors of the files.

use crate::weights::rename_rules::{RenameRules, Source};
use crate::weights::safetensors_files::shown;
use crate::weights::state_dict::{expected, Expected};
use crate::weights::tensor_headers::{TensorHeader, TensorHeaders};
use crate::BossManError;
use layerspec::LayerGraph;
use std::collections::BTreeSet;

/// The differences that a message lists.
const SHOWN: usize = 10;

/// What the files hold beside the model's parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    /// Their names, as `ignore` of a run file has them.
    pub(super) patterns: Vec<String>,
    /// Their names in the files.
    pub(super) tensors: Vec<String>,
}

/// Checks that the files have every parameter of the model, with its shape, perhaps by a rule of
/// `rename`. Tensors that the model does not use must be known.
pub(super) fn compare(
    graph: &LayerGraph,
    headers: &TensorHeaders,
    rename: &RenameRules,
    known: &[String],
) -> Result<Leftovers, BossManError> {
    let expected = expected(graph);
    let mut problems = Vec::new();
    let mut sources = BTreeSet::new();
    for (name, wanted) in &expected.owned {
        let of_one = rename.sources(name);
        match made(name, &of_one, headers, &expected) {
            Err(problem) => {
                problems.push(format!("`{name}`: {problem}; expected {:?}", wanted.meta.shape));
            }
            Ok(found) if found.shape != wanted.meta.shape => problems
                .push(format!("`{name}`: expected {:?}, got {:?}", wanted.meta.shape, found.shape)),
            Ok(found) if found.dtype.is_floating() != wanted.meta.dtype.is_floating() => problems
                .push(format!("`{name}`: expected {}, got {}", wanted.meta.dtype, found.dtype)),
            Ok(_) => {}
        }
        sources.extend(of_one.into_iter().map(|source| source.name));
    }
    let mut used = BTreeSet::new();
    let mut tensors = Vec::new();
    for (name, _) in headers.iter().filter(|(name, _)| !sources.contains(*name)) {
        let owner = expected.tied.get(name);
        if owner.is_some_and(|owner| !headers.has(owner)) {
            // The files have the tied parameter under this name alone.
            continue;
        }
        match known.iter().find(|pattern| matches(pattern, name)) {
            Some(pattern) => {
                used.insert(pattern.clone());
                tensors.push(name.to_string());
            }
            None if owner.is_some() => {}
            None => {
                let name = shown(name);
                problems.push(format!("`{name}`: the model has no such parameter"));
            }
        }
    }
    if problems.is_empty() {
        return Ok(Leftovers { patterns: used.into_iter().collect(), tensors });
    }
    let more = match problems.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    problems.truncate(SHOWN);
    let problem = format!(
        "the tensors are not those of the model that config.json describes:\n  {}{more}",
        problems.join("\n  ")
    );
    Err(BossManError::file(headers.source(), problem))
}

/// Checks that each leftover that a tied parameter takes the place of has its numbers: transformers
/// ties nothing else. They are compared, so both tensors are read.
///
/// # Errors
/// A tensor has other numbers, or a file cannot be read.
pub(super) fn check_ties(
    graph: &LayerGraph,
    headers: &TensorHeaders,
    leftovers: &Leftovers,
) -> Result<(), BossManError> {
    let tied = expected(graph).tied;
    for name in &leftovers.tensors {
        let Some(owner) = tied.get(name) else { continue };
        if headers.differ(name, owner)? {
            let problem = format!(
                "`{name}` differs from `{owner}`, and the configuration ties the two; set \
                 `tie_word_embeddings` in config.json to false to use it, as transformers does, or \
                 take it out of the file"
            );
            return Err(BossManError::file(headers.source(), problem));
        }
    }
    Ok(())
}

/// The tensor that becomes a parameter. The error says why there is none.
fn made(
    name: &str,
    sources: &[Source],
    headers: &TensorHeaders,
    expected: &Expected,
) -> Result<TensorHeader, String> {
    if matches!(sources, [source] if source.name == name && !source.is_transposed) {
        // A tied parameter may stand under any of its names.
        let mut names = std::iter::once(name).chain(expected.names_of(name).map(String::as_str));
        return names.find_map(|name| headers.get(name)).cloned().ok_or("missing".into());
    }
    let mut parts = sources.iter().map(|source| match headers.get(&source.name) {
        Some(TensorHeader { dtype, shape }) => {
            Ok(TensorHeader { dtype: *dtype, shape: source.turned_shape(shape)? })
        }
        None => Err(format!("`{}` is missing", source.name)),
    });
    let mut whole = parts.next().unwrap_or_else(|| Err("a rule without a source".into()))?;
    for part in parts {
        let part = part?;
        let is_fitting = !part.shape.is_empty() && part.shape.get(1..) == whole.shape.get(1..);
        match (whole.shape.first_mut(), part.shape.first()) {
            (Some(rows), Some(more)) if is_fitting => *rows = rows.saturating_add(*more),
            _ => {
                return Err(format!("parts {:?} and {:?} do not fit", whole.shape, part.shape));
            }
        }
    }
    Ok(whole)
}

/// Whether a name of `ignore` means this tensor.
fn matches(pattern: &str, name: &str) -> bool {
    let mut rules = RenameRules::default();
    rules.ignore(pattern).is_ok() && rules.ignores(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, StateDict};
    use tch::{Device, Kind, Tensor};

    const MODEL: &str = "
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 3, bias: false}
    name: a
  - Linear: {in_features: 3, out_features: 2, bias: false}
    name: b
  - Linear: {in_features: 2, out_features: 3, bias: false}
    name: tied
    share: a
";

    fn found(tensors: &[(&str, [i64; 2])]) -> Result<Leftovers, String> {
        found_by(&RenameRules::default(), tensors)
    }

    fn found_by(rename: &RenameRules, tensors: &[(&str, [i64; 2])]) -> Result<Leftovers, String> {
        let place = tempfile::tempdir().unwrap();
        let mut state = StateDict::default();
        for (name, sizes) in tensors {
            state.insert(name, &Tensor::zeros(&sizes[..], (Kind::BFloat16, Device::Cpu)));
        }
        state.save(place.path().join("model.safetensors")).unwrap();
        let headers = TensorHeaders::read(place.path()).unwrap();
        let model = Model::from_yaml(MODEL).unwrap();
        let known = ["tied.weight".to_string(), "layers.{i}.angles".to_string()];
        compare(model.graph(), &headers, rename, &known).map_err(|e| e.to_string())
    }

    #[test]
    fn leftovers_that_are_known_are_ignored() {
        let [a, b] = [("a.weight", [3, 2]), ("b.weight", [2, 3])];
        assert_eq!(found(&[a, b]), Ok(Leftovers::default()));
        assert_eq!(found(&[("tied.weight", [3, 2]), b]), Ok(Leftovers::default()));
        let all = [a, b, ("tied.weight", [3, 2]), ("layers.7.angles", [1, 1])];
        let expected = Leftovers {
            patterns: vec!["layers.{i}.angles".into(), "tied.weight".into()],
            tensors: vec!["layers.7.angles".into(), "tied.weight".into()],
        };
        assert_eq!(found(&all), Ok(expected));
    }

    #[test]
    fn sources_of_rules_have_the_shape_together() {
        let mut rename = RenameRules::default();
        rename.rule("a.weight", &["q".into(), Source::transposed("k")]).unwrap();
        rename.rule("b.weight", &[Source::transposed("b.weight")]).unwrap();
        let [k, b] = [("k", [2, 1]), ("b.weight", [3, 2])];
        assert_eq!(found_by(&rename, &[("q", [2, 2]), k, b]), Ok(Leftovers::default()));
        for (tensors, expected) in [
            (vec![("q", [2, 2]), b], "`a.weight`: `k` is missing; expected [3, 2]"),
            (vec![("q", [1, 2]), k, b], "`a.weight`: expected [3, 2], got [2, 2]"),
            (vec![("q", [1, 3]), k, b], "`a.weight`: parts [1, 3] and [1, 2] do not fit"),
            (vec![("q", [2, 2]), k, ("b.weight", [2, 3])], "expected [2, 3], got [3, 2]"),
            (vec![("q", [2, 2]), k, b, ("a.weight", [3, 2])], "the model has no such parameter"),
        ] {
            let error = found_by(&rename, &tensors).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_difference_is_named_in_one_error() {
        let error = found(&[("b.weight", [3, 2]), ("c.weight", [1, 1])]).unwrap_err();
        for part in [
            "model.safetensors: the tensors are not those of the model",
            "`a.weight`: missing; expected [3, 2]",
            "`b.weight`: expected [2, 3], got [3, 2]",
            "`c.weight`: the model has no such parameter",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let names: Vec<String> = (0..20).map(|number| format!("c.{number}")).collect();
        let many: Vec<(&str, [i64; 2])> =
            names.iter().map(|name| (name.as_str(), [1, 1])).collect();
        let error = found(&many).unwrap_err();
        assert!(error.ends_with("and 12 more") && error.lines().count() == 12, "{error}");
    }
}
