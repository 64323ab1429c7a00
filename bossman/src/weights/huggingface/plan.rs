//! What each tensor of the source is made of: the rules of `rename`, read backwards.

use super::part::Part;
use crate::weights::model::Model;
use crate::weights::rename_rules::{RenameRules, Source};
use crate::weights::shown_text::shown;
use crate::weights::state_dict::{expected, Expected, ExpectedTensor};
use crate::weights::tensor_headers::TensorHeaders;
use crate::BossManError;
use pipeline::TensorMeta;
use std::collections::{BTreeMap, BTreeSet};

/// The problems that a message lists.
const SHOWN: usize = 10;
/// Names of output layers that are often a second copy of the embedding.
const OUTPUT_LAYERS: [&str; 4] = [
    "lm_head.weight",
    "lm_head.decoder.weight",
    "cls.predictions.decoder.weight",
    "embed_out.weight",
];

/// What becomes of each tensor of the source.
pub(super) struct Plan {
    /// The tensors that the model has, by their names in the source.
    pub(super) parts: BTreeMap<String, Part>,
    /// The others, which `ignore` names.
    pub(super) copied: Vec<String>,
    /// The model's parameters that the source does not have.
    pub(super) fresh: Vec<String>,
}

impl Plan {
    /// Finds each tensor of the source in the model.
    ///
    /// # Errors
    /// One is not there, or has another shape. All are named in one error.
    pub(super) fn new(
        headers: &TensorHeaders,
        rename: &RenameRules,
        model: &Model,
    ) -> Result<Self, BossManError> {
        let expected = expected(model.graph());
        let fresh = rename.fresh_parameters(model);
        let mut plan = Plan { parts: BTreeMap::new(), copied: Vec::new(), fresh };
        let (mut problems, mut sought) = (Vec::new(), BTreeSet::new());
        for (name, wanted) in &expected.owned {
            if !plan.fresh.contains(name) {
                let sources = rename.sources(name);
                sought.extend(sources.iter().map(|source| source.name.clone()));
                let found = plan.find(name, wanted, sources, headers, &expected);
                found.unwrap_or_else(|problem| problems.push(problem));
            } else if headers.has(name) {
                sought.insert(name.clone());
                let problem = "is `fresh` in the run file, but the source has such a tensor, too";
                problems.push(format!("`{name}`: {problem}"));
            }
        }
        for (name, _) in headers.iter().filter(|(name, _)| !plan.parts.contains_key(*name)) {
            match rename.ignores(name) {
                true => plan.copied.push(name.to_string()),
                // Why a tensor does not fit is said already.
                false if sought.contains(name) => {}
                false => {
                    let name = shown(name);
                    problems.push(format!("`{name}`: the model has no such parameter"));
                }
            }
        }
        if problems.is_empty() {
            return Ok(plan);
        }
        let more = match problems.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        problems.truncate(SHOWN);
        let problem = format!(
            "the weights cannot go back to these files; `weights` in the run file must be as \
             `bossman import` wrote it:\n  {}{more}",
            problems.join("\n  ")
        );
        Err(BossManError::file(headers.source(), problem))
    }

    /// Finds the tensors that a parameter is made of.
    fn find(
        &mut self,
        name: &str,
        wanted: &ExpectedTensor,
        sources: Vec<Source>,
        headers: &TensorHeaders,
        expected: &Expected,
    ) -> Result<(), String> {
        let shape = &wanted.meta.shape;
        // The source may have a tied parameter under any of its names, or under several.
        let tied = expected.names_of(name).filter(|tied| headers.has(tied));
        let tied: Vec<Source> = tied.map(|tied| tied.as_str().into()).collect();
        for source in &tied {
            let header = header(source, name, wanted, headers)?;
            self.add(Part::whole(name, shape, source.clone(), header)?, &source.name)?;
        }
        match <[Source; 1]>::try_from(sources) {
            Ok([source]) if !tied.is_empty() && source.name == name && !headers.has(name) => Ok(()),
            Ok([source]) => {
                let to = source.name.clone();
                let header = header(&source, name, wanted, headers)?;
                self.add(Part::whole(name, shape, source, header)?, &to)
            }
            Err(sources) => {
                let mut first = 0;
                for source in sources {
                    let to = source.name.clone();
                    let header = header(&source, name, wanted, headers)?;
                    let (part, end) = Part::rows(name, shape, source, header, first)?;
                    self.add(part, &to)?;
                    first = end;
                }
                match shape.first() == Some(&first) {
                    true => Ok(()),
                    false => Err(format!("`{name}`: {first} rows in the source, not {shape:?}")),
                }
            }
        }
    }

    /// Adds a tensor of the source. It must not be part of another parameter.
    fn add(&mut self, part: Part, to: &str) -> Result<(), String> {
        let name = part.parameter.clone();
        match self.parts.insert(to.to_string(), part.clone()) {
            Some(other) if other != part => Err(format!(
                "`{to}`: both `{}` and `{name}` are made of it, so it cannot have one value",
                other.parameter
            )),
            _ => Ok(()),
        }
    }

    /// The trained parameter of which an output layer of the source was a copy. transformers ties
    /// the two only if they are equal. Reads both, a part at a time.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn twin(
        &self,
        name: &str,
        source: &TensorHeaders,
    ) -> Result<Option<&Part>, BossManError> {
        if !OUTPUT_LAYERS.contains(&name) || !source.has(name) {
            return Ok(None);
        }
        for (other, part) in self.parts.iter().filter(|(other, _)| source.has(other)) {
            if !source.differ(name, other)? {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// The header of a tensor that a parameter is made of. Its numbers must be of the same kind.
fn header<'a>(
    source: &Source,
    name: &str,
    wanted: &ExpectedTensor,
    headers: &'a TensorHeaders,
) -> Result<&'a TensorMeta, String> {
    let Some(header) = headers.get(&source.name) else {
        return Err(format!("`{}`: missing; `{name}` is made of it", source.name));
    };
    let (found, wanted) = (header.dtype, wanted.meta.dtype);
    match found == wanted || (found.is_floating() && wanted.is_floating()) {
        true => Ok(header),
        false => Err(format!("`{}`: expected {wanted}, got {found}", source.name)),
    }
}
