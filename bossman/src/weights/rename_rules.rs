//! Renames tensors of a file that was saved under other names than the model's.

use crate::weights::model::Model;
pub use crate::weights::source::Source;
use crate::{BossManError, StateDict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tch::Tensor;

/// A table of renames.
///
/// A name may have words in braces, which stand for whole numbers: `blocks.{i}.norm.weight`. The
/// first rule that matches a parameter of the model names its source. A parameter without a rule
/// comes from the tensor of its own name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenameRules {
    rules: Vec<(Pattern, Vec<Source>)>,
    ignored: Vec<Pattern>,
    fresh: Vec<Pattern>,
}

/// The rules as a run file has them.
pub(crate) struct RuleTexts {
    /// Names in the model, each with its sources.
    pub(crate) renamed: Vec<(String, Vec<Source>)>,
    pub(crate) ignored: Vec<String>,
    pub(crate) fresh: Vec<String>,
}

/// A name with words for numbers.
#[derive(Clone, Debug, PartialEq)]
struct Pattern(Vec<NamePart>);

#[derive(Clone, Debug, PartialEq)]
enum NamePart {
    Text(String),
    Number(String),
}

impl RenameRules {
    /// The model's parameters of this name are the file's tensors of the source name. Several
    /// sources are concatenated along the first dimension.
    ///
    /// # Errors
    /// Braces do not close, or a source has a word that the name does not have.
    pub fn rule(&mut self, name: &str, sources: &[Source]) -> Result<(), String> {
        let pattern = Pattern::parse(name)?;
        for source in sources.iter().map(|source| &source.name) {
            for part in Pattern::parse(source)?.0 {
                if let NamePart::Number(word) = part {
                    if !pattern.0.contains(&NamePart::Number(word.clone())) {
                        return Err(format!("`{source}` has {{{word}}}, which `{name}` has not"));
                    }
                }
            }
        }
        self.rules.push((pattern, sources.to_vec()));
        Ok(())
    }

    /// The file's tensors of this name are not used.
    ///
    /// # Errors
    /// Braces that do not close.
    pub fn ignore(&mut self, name: &str) -> Result<(), String> {
        self.ignored.push(Pattern::parse(name)?);
        Ok(())
    }

    /// The model's parameters of this name are not in the file: they are drawn from the run's seed.
    ///
    /// # Errors
    /// Braces that do not close.
    pub fn fresh(&mut self, name: &str) -> Result<(), String> {
        self.fresh.push(Pattern::parse(name)?);
        Ok(())
    }

    /// The rules as a run file has them.
    pub(crate) fn texts(&self) -> RuleTexts {
        let rules = self.rules.iter().map(|(name, sources)| (name.to_string(), sources.clone()));
        let texts = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect();
        RuleTexts {
            renamed: rules.collect(),
            ignored: texts(&self.ignored),
            fresh: texts(&self.fresh),
        }
    }

    /// The model's parameters that are drawn.
    pub(crate) fn fresh_parameters(&self, model: &Model) -> Vec<String> {
        let names = StateDict::names(model.graph()).into_iter();
        names
            .filter(|name| self.fresh.iter().any(|pattern| pattern.captures(name).is_some()))
            .collect()
    }

    /// The entries of `fresh` that name none of these parameters.
    pub(crate) fn fresh_of_none<'a>(
        &self,
        parameters: impl Iterator<Item = &'a String> + Clone,
    ) -> Vec<String> {
        let names_one =
            |pattern: &&Pattern| parameters.clone().any(|name| pattern.captures(name).is_some());
        self.fresh.iter().filter(|one| !names_one(one)).map(ToString::to_string).collect()
    }

    /// A file's tensors under the model's names. A tensor that the model does not use
    /// keeps its name, so that it is noticed.
    ///
    /// # Errors
    /// Tensors that are to become one do not fit together.
    pub fn apply(&self, file: &StateDict, model: &Model) -> Result<StateDict, BossManError> {
        let (mut named, mut used) = (StateDict::default(), BTreeSet::new());
        for name in StateDict::names(model.graph()) {
            let sources = self.sources(&name);
            let tensors: Option<Vec<&Tensor>> =
                sources.iter().map(|source| file.get(&source.name)).collect();
            let Some(tensors) = tensors else { continue };
            let parts = sources.iter().zip(tensors).map(|(source, tensor)| source.turned(tensor));
            let parts = parts.collect::<Result<Vec<Tensor>, _>>()?;
            match &parts[..] {
                [one] => named.insert(&name, one),
                _ => {
                    let joined = Tensor::f_cat(&parts, 0);
                    let problem =
                        |e| format!("`{name}`: {} do not fit together: {e}", shown(&sources));
                    named.insert(
                        &name,
                        &joined.map_err(|e| BossManError::StateDict(vec![problem(e)]))?,
                    );
                }
            }
            used.extend(sources.into_iter().map(|source| source.name));
        }
        for (name, tensor) in
            file.iter().filter(|(name, _)| !used.contains(*name) && !self.ignores(name))
        {
            if named.get(name).is_some() {
                let sources = shown(&self.sources(name));
                let problem = format!(
                    "`{name}`: `rename` takes {sources} for it, but it is in the file, too; put \
                     it in `ignore`"
                );
                return Err(BossManError::StateDict(vec![problem]));
            }
            named.insert(name, tensor);
        }
        Ok(named)
    }

    /// Whether the file's tensor of this name is not used.
    pub(crate) fn ignores(&self, name: &str) -> bool {
        self.ignored.iter().any(|pattern| pattern.captures(name).is_some())
    }

    /// The file's tensors that a parameter of the model is made of.
    pub(crate) fn sources(&self, name: &str) -> Vec<Source> {
        for (pattern, sources) in &self.rules {
            if let Some(numbers) = pattern.captures(name) {
                let fill = |source: &Source| {
                    let name = numbers.iter().fold(source.name.clone(), |text, (word, number)| {
                        text.replace(&format!("{{{word}}}"), number)
                    });
                    Source { name, ..source.clone() }
                };
                return sources.iter().map(fill).collect();
            }
        }
        vec![name.into()]
    }
}

fn shown(sources: &[Source]) -> String {
    let names: Vec<String> = sources.iter().map(|source| format!("`{}`", source.name)).collect();
    names.join(", ")
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            NamePart::Text(text) => f.write_str(text),
            NamePart::Number(word) => write!(f, "{{{word}}}"),
        })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (word, after) = after
                .split_once('}')
                .ok_or_else(|| format!("`{text}`: a brace that does not close"))?;
            parts.push(NamePart::Text(before.to_string()));
            parts.push(NamePart::Number(word.to_string()));
            rest = after;
        }
        parts.push(NamePart::Text(rest.to_string()));
        Ok(Pattern(parts))
    }

    /// The numbers for which its words stand in this name. `None` if the name does not match.
    fn captures<'a>(&self, name: &'a str) -> Option<BTreeMap<&str, &'a str>> {
        let (mut numbers, mut rest) = (BTreeMap::new(), name);
        for part in &self.0 {
            match part {
                NamePart::Text(text) => rest = rest.strip_prefix(text.as_str())?,
                NamePart::Number(word) => {
                    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                    let (number, after) = rest.split_at(end);
                    if number.is_empty()
                        || *numbers.entry(word.as_str()).or_insert(number) != number
                    {
                        return None;
                    }
                    rest = after;
                }
            }
        }
        rest.is_empty().then_some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    const MODEL: &str = "
inputs: {x: [batch, 2]}
layers:
  - repeat: 2
    name: blocks
    layers:
      - Linear: {in_features: 2, out_features: 2}
        name: lin
";

    fn full(value: i64, sizes: &[i64]) -> Tensor {
        Tensor::full(sizes, value, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn numbers_are_carried_over_and_parts_joined() {
        let model = Model::from_yaml(MODEL).unwrap();
        let names: Vec<String> = StateDict::names(model.graph());
        assert_eq!(
            names,
            [
                "blocks.0.lin.bias",
                "blocks.0.lin.weight",
                "blocks.1.lin.bias",
                "blocks.1.lin.weight"
            ]
        );
        let mut rename = RenameRules::default();
        rename.rule("blocks.{i}.lin.weight", &["h.{i}.top".into(), "h.{i}.bottom".into()]).unwrap();
        rename.rule("blocks.{i}.lin.bias", &["h.{i}.b".into()]).unwrap();
        rename.ignore("h.{i}.unused").unwrap();
        let mut file = StateDict::default();
        for block in 0..2 {
            file.insert(&format!("h.{block}.top"), &full(block, &[1, 2]));
            file.insert(&format!("h.{block}.bottom"), &full(10 + block, &[1, 2]));
            file.insert(&format!("h.{block}.b"), &full(20 + block, &[2]));
            file.insert(&format!("h.{block}.unused"), &full(0, &[1]));
        }
        file.insert("h.x.unused", &full(0, &[1]));
        let named = rename.apply(&file, &model).unwrap();
        let found: Vec<&str> = named.iter().map(|(name, _)| name).collect();
        assert_eq!(
            found,
            [&names.iter().map(String::as_str).collect::<Vec<_>>()[..], &["h.x.unused"]].concat()
        );
        let weight =
            Vec::<f64>::try_from(named.get("blocks.1.lin.weight").unwrap().flatten(0, -1)).unwrap();
        assert_eq!(weight, [1.0, 1.0, 11.0, 11.0]);
    }

    #[test]
    fn a_source_is_transposed() {
        let model = Model::from_yaml(MODEL).unwrap();
        let mut rename = RenameRules::default();
        let turned = [Source::transposed("c.{i}"), Source::transposed("d.{i}")];
        rename.rule("blocks.{i}.lin.weight", &turned).unwrap();
        let mut file = StateDict::default();
        for (name, first) in [("c.0", 0i64), ("d.0", 2)] {
            let column = Tensor::from_slice(&[first, first + 1]).reshape([2, 1]);
            file.insert(name, &column);
        }
        let named = rename.apply(&file, &model).unwrap();
        let weight = named.get("blocks.0.lin.weight").unwrap();
        assert_eq!(weight.size(), [2, 2]);
        assert!(weight.is_contiguous());
        assert_eq!(Vec::<i64>::try_from(weight.flatten(0, -1)).unwrap(), [0, 1, 2, 3]);
        file.insert("c.1", &full(0, &[2]));
        file.insert("d.1", &full(0, &[2, 1]));
        let error = rename.apply(&file, &model).unwrap_err().to_string();
        assert!(error.contains("`c.1`: only a matrix can be transposed, got [2]"), "{error}");
    }

    #[test]
    fn a_tensor_that_stands_twice_is_refused() {
        let model = Model::from_yaml(MODEL).unwrap();
        let mut rename = RenameRules::default();
        rename.rule("blocks.{i}.lin.bias", &["b.{i}".into()]).unwrap();
        let mut file = StateDict::default();
        ["b.0", "b.1", "blocks.0.lin.bias"]
            .iter()
            .for_each(|name| file.insert(name, &full(1, &[2])));
        let error = rename.apply(&file, &model).unwrap_err().to_string();
        assert!(
            error.contains(
                "`blocks.0.lin.bias`: `rename` takes `b.0` for it, but it is in the file, too"
            ),
            "{error}"
        );
        rename.rule("blocks.{i}.lin.weight", &["b.{i}".into(), "w.{i}".into()]).unwrap();
        file.insert("w.0", &full(1, &[3, 3]));
        let error = rename.apply(&file, &model).unwrap_err().to_string();
        assert!(
            error.contains("`blocks.0.lin.weight`: `b.0`, `w.0` do not fit together"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let mut rename = RenameRules::default();
        assert_eq!(
            rename.rule("a.{i", &["b".into()]),
            Err("`a.{i`: a brace that does not close".into())
        );
        let error = rename.rule("a.{i}", &["b.{j}".into()]);
        assert_eq!(error, Err("`b.{j}` has {j}, which `a.{i}` has not".into()));
    }
}
