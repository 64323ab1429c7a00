//! Compares the parameters of a model with the tensors of files.

use crate::weights::rename_rules::{RenameRules, Source};
use crate::weights::shown_text::shown;
use crate::weights::state_dict::{expected, Expected};
use crate::weights::tensor_headers::TensorHeaders;
use layerspec::LayerGraph;
use pipeline::TensorMeta;
use std::collections::{BTreeMap, BTreeSet};

/// How the parameters of a model come from files.
#[derive(Debug, Default)]
pub(crate) struct Fit {
    /// The tensors of the files that each parameter is made of.
    pub(crate) sources: BTreeMap<String, Vec<Source>>,
    /// The tensors that a rule ignores.
    pub(crate) ignored: Vec<String>,
    /// Tensors under another name of a tied parameter.
    pub(crate) tied: Vec<Tied>,
    /// What does not fit.
    pub(crate) problems: Vec<String>,
}

/// A tensor that stands beside the one that the tied parameter is made of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tied {
    pub(crate) name: String,
    /// The parameter.
    pub(crate) owner: String,
    /// The tensor that it is made of.
    pub(crate) tensor: String,
}

impl Fit {
    /// The tensor of the files that a parameter is, if it is one as it stands there.
    pub(crate) fn tensor_of(&self, parameter: &str) -> Option<&str> {
        match self.sources.get(parameter)?.as_slice() {
            [source] if !source.is_transposed => Some(&source.name),
            _ => None,
        }
    }

    /// Finds each parameter among the tensors of the files, perhaps by a rule. `fresh` are the
    /// parameters that must not be there.
    pub(crate) fn of(
        graph: &LayerGraph,
        headers: &TensorHeaders,
        rename: &RenameRules,
        fresh: &[String],
    ) -> Self {
        let expected = expected(graph);
        let mut fit = Fit::default();
        let mut used = BTreeSet::new();
        for pattern in rename.fresh_of_none(expected.owned.keys()) {
            fit.problems.push(format!(
                "`{pattern}`: `fresh` in the run file, but the model has no such parameter"
            ));
        }
        for (name, wanted) in &expected.owned {
            let sources = rename.sources(name);
            let made = find(name, &sources, headers, &expected);
            used.extend(sources.iter().map(|source| source.name.clone()));
            let want = &wanted.meta;
            let is_ignored = |source: &Source| rename.ignores(&source.name);
            let is_there = |source: &Source| headers.has(&source.name);
            let is_fresh = fresh.contains(name);
            match made {
                Ok((found, _)) if is_fresh && found.iter().all(is_ignored) => {}
                Ok(_) if is_fresh => fit.problems.push(format!(
                    "`{name}`: in the weights, but `fresh` in the run file; list it in one of them"
                )),
                Err(problem) if is_fresh && sources.iter().any(is_there) => {
                    fit.problems.push(format!(
                        "`{name}`: `fresh` in the run file, but a part of it is in the weights \
                         ({problem}); list it in one of them"
                    ));
                }
                Err(_) if is_fresh => {}
                Err(problem) => fit.problems.push(format!("`{name}`: {problem}; expected {want}")),
                Ok((_, found)) if !is_fitting(&found, want) => {
                    fit.problems.push(format!("`{name}`: expected {want}, got {found}"));
                }
                Ok((sources, _)) => drop(fit.sources.insert(name.clone(), sources)),
            }
        }
        for (name, _) in headers.iter().filter(|(name, _)| !used.contains(*name)) {
            let owner = expected.tied.get(name);
            // It may be the tied parameter itself, if the owner's name is not there.
            if owner.is_some_and(|owner| fit.tensor_of(owner) == Some(name)) {
                continue;
            }
            if rename.ignores(name) {
                fit.ignored.push(name.into());
            } else if let Some(owner) = owner {
                let tensor = fit.tensor_of(owner).map(str::to_string);
                match tensor {
                    Some(tensor) => {
                        fit.tied.push(Tied { name: name.into(), owner: owner.clone(), tensor });
                    }
                    None if fit.sources.contains_key(owner) => fit.problems.push(format!(
                        "`{name}`: tied to `{owner}`, which `rename` makes of other tensors; put \
                         it in `ignore`"
                    )),
                    // The owner is fresh, or a problem already.
                    None => {}
                }
            } else if expected.owned.contains_key(name) {
                let sources = rename.sources(name);
                let names: Vec<String> = sources.iter().map(|s| format!("`{}`", s.name)).collect();
                fit.problems.push(format!(
                    "`{name}`: `rename` takes {} for it, but it is in the file, too; put it in \
                     `ignore`",
                    names.join(", ")
                ));
            } else {
                let name = shown(name);
                fit.problems.push(format!("`{name}`: the model has no such parameter"));
            }
        }
        fit
    }
}

/// Whether a tensor can become a parameter. Floating-point types are converted.
fn is_fitting(found: &TensorMeta, want: &TensorMeta) -> bool {
    let converted = found.dtype.is_floating() && want.dtype.is_floating();
    found.shape == want.shape && (found.dtype == want.dtype || converted)
}

/// The tensors that become a parameter, and what they make. The error says why there is none.
fn find(
    name: &str,
    sources: &[Source],
    headers: &TensorHeaders,
    expected: &Expected,
) -> Result<(Vec<Source>, TensorMeta), String> {
    if matches!(sources, [source] if source.name == name && !source.is_transposed) {
        // A tied parameter may stand under any of its names.
        let mut names = std::iter::once(name).chain(expected.names_of(name).map(String::as_str));
        let found = names.find_map(|name| Some((name, headers.get(name)?)));
        let (name, meta) = found.ok_or("missing")?;
        return Ok((vec![name.into()], meta.clone()));
    }
    let mut parts = sources.iter().map(|source| match headers.get(&source.name) {
        Some(TensorMeta { dtype, shape }) => {
            Ok(TensorMeta { dtype: *dtype, shape: source.turned_shape(shape)? })
        }
        None => Err(format!("`{}` is missing", source.name)),
    });
    let mut whole = parts.next().unwrap_or_else(|| Err("a rule without a source".into()))?;
    for part in parts {
        let part = part?;
        let is_fitting = !part.shape.is_empty()
            && part.shape.get(1..) == whole.shape.get(1..)
            && (part.dtype == whole.dtype
                || (part.dtype.is_floating() && whole.dtype.is_floating()));
        match (whole.shape.first_mut(), part.shape.first()) {
            (Some(rows), Some(more)) if is_fitting => *rows = rows.saturating_add(*more),
            _ => return Err(format!("parts {whole} and {part} do not fit together")),
        }
    }
    Ok((sources.to_vec(), whole))
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

    fn fit(rename: &RenameRules, tensors: &[(&str, [i64; 2])], fresh: &[String]) -> Fit {
        let place = tempfile::tempdir().unwrap();
        let mut state = StateDict::default();
        for (name, sizes) in tensors {
            state.insert(name, &Tensor::zeros(&sizes[..], (Kind::BFloat16, Device::Cpu)));
        }
        state.save(place.path().join("model.safetensors")).unwrap();
        let headers = TensorHeaders::read(place.path()).unwrap();
        Fit::of(Model::from_yaml(MODEL).unwrap().graph(), &headers, rename, fresh)
    }

    const A: (&str, [i64; 2]) = ("a.weight", [3, 2]);
    const B: (&str, [i64; 2]) = ("b.weight", [2, 3]);
    const TIED: (&str, [i64; 2]) = ("tied.weight", [3, 2]);

    #[test]
    fn a_tied_parameter_stands_under_any_of_its_names() {
        let none = RenameRules::default();
        for (tensors, name) in [(vec![A, B], "a.weight"), (vec![TIED, B], "tied.weight")] {
            let fit = fit(&none, &tensors, &[]);
            assert_eq!((fit.problems, fit.tied), (vec![], vec![]));
            assert_eq!(fit.sources["a.weight"], [Source::from(name)]);
        }
        let both = fit(&none, &[A, B, TIED], &[]);
        let tied = |tensor: &str| Tied {
            name: "tied.weight".into(),
            owner: "a.weight".into(),
            tensor: tensor.into(),
        };
        assert_eq!(both.tied, [tied("a.weight")]);
        let mut rename = RenameRules::default();
        rename.rule("a.weight", &["wte".into()]).unwrap();
        let renamed = fit(&rename, &[("wte", [3, 2]), B, TIED], &[]);
        assert_eq!((renamed.tied, renamed.problems), (vec![tied("wte")], vec![]));
        let mut rename = RenameRules::default();
        rename.rule("a.weight", &[Source::transposed("wte")]).unwrap();
        let turned = fit(&rename, &[("wte", [2, 3]), B, TIED], &[]);
        let problem = "`tied.weight`: tied to `a.weight`, which `rename` makes of other tensors; \
                       put it in `ignore`";
        assert_eq!(turned.problems, [problem]);
    }

    #[test]
    fn rules_say_what_is_not_used() {
        let mut rename = RenameRules::default();
        for name in ["tied.weight", "layers.{i}.angles"] {
            rename.ignore(name).unwrap();
        }
        let all = fit(&rename, &[A, B, TIED, ("layers.7.angles", [1, 1])], &[]);
        assert_eq!(all.ignored, ["layers.7.angles", "tied.weight"]);
        assert_eq!((all.problems, all.tied), (vec![], vec![]));
        let tied_alone = fit(&rename, &[B, TIED], &[]);
        assert_eq!(tied_alone.problems, [""; 0]);
    }

    #[test]
    fn sources_of_rules_have_the_shape_together() {
        let mut rename = RenameRules::default();
        rename.rule("a.weight", &["q".into(), Source::transposed("k")]).unwrap();
        rename.rule("b.weight", &[Source::transposed("b.weight")]).unwrap();
        let [k, b] = [("k", [2, 1]), ("b.weight", [3, 2])];
        assert_eq!(fit(&rename, &[("q", [2, 2]), k, b], &[]).problems, [""; 0]);
        for (tensors, expected) in [
            (vec![("q", [2, 2]), b], "`a.weight`: `k` is missing; expected float32 [3, 2]"),
            (vec![("q", [1, 2]), k, b], "`a.weight`: expected float32 [3, 2], got bfloat16 [2, 2]"),
            (
                vec![("q", [1, 3]), k, b],
                "`a.weight`: parts bfloat16 [1, 3] and bfloat16 [1, 2] do not fit together; \
                 expected float32 [3, 2]",
            ),
            (
                vec![("q", [2, 2]), k, ("b.weight", [2, 3])],
                "`b.weight`: expected float32 [2, 3], got bfloat16 [3, 2]",
            ),
            (
                vec![("q", [2, 2]), k, b, ("a.weight", [3, 2])],
                "`a.weight`: `rename` takes `q`, `k` for it, but it is in the file, too; put it \
                 in `ignore`",
            ),
        ] {
            assert_eq!(fit(&rename, &tensors, &[]).problems, [expected]);
        }
    }

    #[test]
    fn fresh_parameters_are_not_in_the_files() {
        let fresh = ["b.weight".to_string()];
        assert_eq!(fit(&RenameRules::default(), &[A], &fresh).problems, [""; 0]);
        let found = fit(&RenameRules::default(), &[A, B], &fresh);
        let problem = "`b.weight`: in the weights, but `fresh` in the run file; list it in one of \
                       them";
        assert_eq!(found.problems, [problem]);
        let mut ignored = RenameRules::default();
        ignored.ignore("tied.weight").unwrap();
        let found = fit(&ignored, &[B, TIED], &["a.weight".to_string()]);
        assert_eq!((found.problems, found.ignored), (vec![], vec!["tied.weight".to_string()]));
        let mut parts = RenameRules::default();
        parts.rule("b.weight", &["q".into(), "k".into()]).unwrap();
        let found = fit(&parts, &[A, ("q", [1, 3])], &fresh);
        let problem = "`b.weight`: `fresh` in the run file, but a part of it is in the weights \
                       (`k` is missing); list it in one of them";
        assert_eq!(found.problems, [problem]);
    }

    #[test]
    fn every_difference_is_listed() {
        let found =
            fit(&RenameRules::default(), &[B, ("b.weight", [3, 2]), ("c.weight", [1, 1])], &[]);
        assert_eq!(
            found.problems,
            [
                "`a.weight`: missing; expected float32 [3, 2]",
                "`b.weight`: expected float32 [2, 3], got bfloat16 [3, 2]",
                "`c.weight`: the model has no such parameter",
            ]
        );
    }
}
