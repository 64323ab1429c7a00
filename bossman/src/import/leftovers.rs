//! The tensors of the files that an imported model does not use.

use crate::weights::fit::Fit;
use crate::weights::rename_rules::RenameRules;
use crate::weights::state_dict::expected;
use crate::weights::tensor_headers::TensorHeaders;
use crate::BossManError;
use layerspec::LayerGraph;

/// The differences that a message lists.
const SHOWN: usize = 10;

/// What the files hold beside the model's parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    /// Their names, as `ignore` of a run file has them.
    pub(super) patterns: Vec<String>,
    /// Their names in the files.
    pub(super) tensors: Vec<String>,
    /// Those under another name of a tied parameter, with the tensor that this one is made of.
    tied: Vec<(String, String)>,
}

impl Leftovers {
    /// Checks that the files have every parameter of the model, and beside them tensors of known
    /// names alone.
    pub(super) fn of(
        graph: &LayerGraph,
        headers: &TensorHeaders,
        rename: &RenameRules,
        known: &[String],
    ) -> Result<Self, BossManError> {
        let mut rules = rename.clone();
        for pattern in known {
            rules.ignore(pattern).map_err(BossManError::Usage)?;
        }
        let fit = Fit::of(graph, headers, &rules, &[]);
        let expected = expected(graph);
        let tensor_of = |name: &String| {
            let tensor = fit.tensor_of(expected.tied.get(name)?)?;
            Some((name.clone(), tensor.to_string()))
        };
        let tied = fit.ignored.iter().filter_map(tensor_of).collect();
        let Fit { ignored, mut problems, .. } = fit;
        if problems.is_empty() {
            let used = |pattern: &&String| ignored.iter().any(|name| matches(pattern, name));
            let mut patterns: Vec<String> = known.iter().filter(used).cloned().collect();
            patterns.sort();
            return Ok(Leftovers { patterns, tensors: ignored, tied });
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

    /// Checks that each leftover that a tied parameter takes the place of has its numbers:
    /// transformers ties nothing else. They are compared, so both tensors are read.
    ///
    /// # Errors
    /// A tensor has other numbers, or a file cannot be read.
    pub(super) fn check_ties(&self, headers: &TensorHeaders) -> Result<(), BossManError> {
        for (name, owner) in &self.tied {
            if headers.differ(name, owner)? {
                let problem = format!(
                    "`{name}` differs from `{owner}`, and the configuration ties the two; set \
                     `tie_word_embeddings` in config.json to false to use it, as transformers \
                     does, or take it out of the file"
                );
                return Err(BossManError::file(headers.source(), problem));
            }
        }
        Ok(())
    }
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
    out_variables: [y]
  - Linear: {in_features: 2, out_features: 3, bias: false}
    name: tied
    input: x
    share: a
    out_variables: [z]
outputs: [y, z]
";

    fn found(tensors: &[(&str, [i64; 2])]) -> Result<Leftovers, String> {
        let place = tempfile::tempdir().unwrap();
        let mut state = StateDict::default();
        for (name, sizes) in tensors {
            state.insert(name, &Tensor::zeros(&sizes[..], (Kind::BFloat16, Device::Cpu)));
        }
        state.save(place.path().join("model.safetensors")).unwrap();
        let headers = TensorHeaders::read(place.path()).unwrap();
        let model = Model::from_yaml(MODEL).unwrap();
        let known = ["unused.weight", "tied.weight", "layers.{i}.angles"].map(String::from);
        let none = RenameRules::default();
        Leftovers::of(model.graph(), &headers, &none, &known).map_err(|e| e.to_string())
    }

    #[test]
    fn leftovers_that_are_known_are_ignored() {
        let (a, tied) = (("a.weight", [3, 2]), ("tied.weight", [3, 2]));
        assert_eq!(found(&[a]), Ok(Leftovers::default()));
        assert_eq!(found(&[tied]), Ok(Leftovers::default()));
        let expected = Leftovers {
            patterns: vec!["layers.{i}.angles".into(), "tied.weight".into()],
            tensors: vec!["layers.7.angles".into(), "tied.weight".into()],
            tied: vec![("tied.weight".into(), "a.weight".into())],
        };
        assert_eq!(found(&[a, tied, ("layers.7.angles", [1, 1])]), Ok(expected));
    }

    #[test]
    fn one_error_names_the_first_differences() {
        let error = found(&[("c.weight", [1, 1])]).unwrap_err();
        for part in [
            "model.safetensors: the tensors are not those of the model",
            "`a.weight`: missing; expected float32 [3, 2]",
            "`c.weight`: the model has no such parameter",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let names: Vec<String> = (0..20).map(|number| format!("c.{number}")).collect();
        let many: Vec<(&str, [i64; 2])> =
            names.iter().map(|name| (name.as_str(), [1, 1])).collect();
        let error = found(&many).unwrap_err();
        assert!(error.ends_with("and 11 more") && error.lines().count() == 12, "{error}");
    }
}
