//! Reads pairs of texts, such as sentences and their translations: lines with two columns, or lines
//! of JSON with two keys.

use super::column::{Column, Columns};
use super::expected_tensor::ExpectedTensor;
use super::in_parallel;
use super::plain_or_gzip;
use super::shown::{reason, shown};
use super::text::TEXTS;
use super::token_pairs::{PairColumn, PairsWriter, Role, SpecialTokens};
use super::tokens::{LoadedTokenizer, Tokenizer};
use super::unknown_tokens::UnknownTokens;
use crate::DataError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;

/// A file of pairs, and how they become samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPairs {
    /// The file, plain or gzipped.
    pub path: PathBuf,
    /// The keys in a line of JSON. `None` if lines are two columns with a tab between them.
    pub keys: Option<[String; 2]>,
    /// The tokenizer of the first texts.
    pub tokenizer: Tokenizer,
    /// The tokenizer of the second texts, if it differs.
    pub target_tokenizer: Option<Tokenizer>,
    /// The names of the tokens for begin, end and padding.
    pub special_tokens: [String; 3],
    /// The most tokens of a sequence with its mark. Longer sequences are cut.
    pub max_length: Option<u64>,
    /// Whether every batch has `max_length` positions, and not only those of its longest sequence.
    pub fixed: bool,
    /// The model's inputs for `source`, `target`, `source_padding`, `target_padding`.
    pub inputs: BTreeMap<String, String>,
}

impl TextPairs {
    /// The possible roles of an input.
    pub const ROLES: [&str; 4] = ["source", "target", "source_padding", "target_padding"];

    /// Returns the first `most` pairs of texts, in the order of the samples.
    pub fn texts(&self, most: u64) -> Result<Vec<[String; 2]>, DataError> {
        let (mut lines, mut texts) = (self.lines()?, Vec::new());
        while (texts.len() as u64) < most {
            let Some(line) = lines.next()? else { break };
            texts.push(self.both(&line)?);
        }
        Ok(texts)
    }

    /// Returns the role of a model input: from the run file if it names one, else from the input's
    /// name.
    pub fn role(&self, input: &str) -> Result<Role, DataError> {
        let named =
            self.inputs.iter().find(|(_, name)| *name == input).map(|(role, _)| role.as_str());
        let own = Some(input).filter(|name| !self.inputs.contains_key(*name));
        match named.or(own) {
            Some("source") => Ok(Role::Source),
            Some("target") => Ok(Role::Target),
            Some("source_padding") => Ok(Role::SourcePadding),
            Some("target_padding") => Ok(Role::TargetPadding),
            _ => {
                let roles = TextPairs::ROLES.join(", ");
                let problem = format!(
                    "what is the model's input `{input}`? `inputs:` says it for each of {roles}"
                );
                Err(DataError::file(&self.path, problem))
            }
        }
    }

    fn lines(&self) -> Result<PairLines<'_>, DataError> {
        let (file, _) = plain_or_gzip::open(&self.path)?;
        Ok(PairLines { texts: self, file, number: 0 })
    }

    /// Returns both texts of a line.
    fn both(&self, line: &Line) -> Result<[String; 2], DataError> {
        both(&line.text, self.keys.as_ref()).map_err(|problem| {
            DataError::file(&self.path, format!("line {}: {problem}", line.number))
        })
    }
}

/// A line with its number, counted from 1.
struct Line {
    number: u64,
    text: String,
}

/// The lines of a file that are not empty.
struct PairLines<'a> {
    texts: &'a TextPairs,
    file: Box<dyn BufRead>,
    number: u64,
}

impl PairLines<'_> {
    fn next(&mut self) -> Result<Option<Line>, DataError> {
        let mut text = String::new();
        while plain_or_gzip::line(&self.texts.path, &mut self.file, &mut self.number, &mut text)? {
            if !text.trim().is_empty() {
                return Ok(Some(Line { number: self.number, text }));
            }
        }
        Ok(None)
    }
}

pub(super) fn open(texts: &TextPairs, inputs: &[ExpectedTensor]) -> Result<Columns, DataError> {
    let path = &texts.path;
    let roles =
        inputs.iter().map(|input| texts.role(&input.name)).collect::<Result<Vec<_>, _>>()?;
    let source = LoadedTokenizer::load(&texts.tokenizer)?;
    let other = texts.target_tokenizer.as_ref().map(LoadedTokenizer::load).transpose()?;
    let target = other.as_ref().unwrap_or(&source);
    for (input, role) in inputs.iter().zip(&roles) {
        match role {
            Role::Source => source.check_embedding_rows(input, true)?,
            Role::Target => target.check_embedding_rows(input, true)?,
            Role::SourcePadding | Role::TargetPadding | Role::Labels => {}
        }
    }
    let [bos, eos, pad] = &texts.special_tokens;
    let marks = SpecialTokens {
        bos: target.special_token("bos", bos)?.into(),
        source_eos: source.special_token("eos", eos)?.into(),
        target_eos: target.special_token("eos", eos)?.into(),
        source_pad: source.special_token("pad", pad)?.into(),
        target_pad: target.special_token("pad", pad)?.into(),
    };
    let length = texts.max_length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let mut pairs = PairsWriter::new(length.map_or(usize::MAX, |length| length.saturating_sub(1)));
    let encode = |line: Line| {
        let [first, second] = texts.both(&line)?;
        let mut tokens = [Vec::new(), Vec::new()];
        source.encode(&first, &mut tokens[0])?;
        target.encode(&second, &mut tokens[1])?;
        Ok::<_, DataError>(tokens)
    };
    let mut unknown = [&source, target].map(UnknownTokens::new);
    let take = |both: [Vec<u32>; 2]| {
        unknown.iter_mut().zip(&both).for_each(|(unknown, tokens)| unknown.count(tokens));
        both.iter().try_for_each(|tokens| pairs.push(tokens))
    };
    let mut lines = texts.lines()?;
    let size = |line: &Line| size_of::<Line>() + line.text.len();
    in_parallel::stream(&TEXTS, || lines.next(), size, encode, take)?;
    unknown.iter().try_for_each(|unknown| unknown.check(path))?;
    let pairs = Arc::new(pairs.finish(path, marks, length.filter(|_| texts.fixed))?);
    let column = |role| Column::Pair(PairColumn { pairs: pairs.clone(), role });
    Ok(Columns {
        inputs: roles.into_iter().map(column).collect(),
        target: Some(column(Role::Labels)),
    })
}

fn both(line: &str, keys: Option<&[String; 2]>) -> Result<[String; 2], String> {
    let Some(keys) = keys else {
        let (source, rest) =
            line.split_once('\t').ok_or("expected two columns with a tab between them")?;
        let target = rest.split('\t').next().unwrap_or(rest);
        return Ok([source.to_string(), target.to_string()]);
    };
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|e| format!("is no JSON object: {}", reason(e)))?;
    let text = |key: &String| match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{key}`: expected text, found {}", shown(other))),
        None => Err(format!(
            "no key `{key}`; it has {}",
            object.keys().cloned().collect::<Vec<_>>().join(", ")
        )),
    };
    Ok([text(&keys[0])?, text(&keys[1])?])
}
