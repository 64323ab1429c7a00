//! Reads text for models that predict the next token: one long row of tokens, cut into windows.

use super::array_column::{ArrayColumn, Layout};
use super::column::{Column, Columns};
use super::element::Element;
use super::expected_tensor::ExpectedTensor;
use super::in_parallel::{self, Limits};
use super::plain_or_gzip;
use super::spool::Spool;
use super::tokens::{LoadedTokenizer, Tokenizer};
use super::unknown_tokens::UnknownTokens;
use crate::DataError;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Text files, and how they become samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The files, plain or gzipped, read one after the other. Each begins with the special tokens
    /// that the tokenizer puts before a text.
    pub paths: Vec<PathBuf>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The number of tokens in a sample.
    pub sequence_length: u64,
    /// The tokens that end a text. The first is put after each file.
    pub eos: Vec<String>,
}

/// Opens windows that follow each other. The target is the input, one token later.
pub(super) fn open(text: &Text, wanted: &ExpectedTensor) -> Result<Columns, DataError> {
    let tokens = LoadedTokenizer::load(&text.tokenizer)?;
    let eos = text.eos.first().map(|name| tokens.special_token("eos", name)).transpose()?;
    tokens.check_embedding_rows(wanted, false)?;
    tokens.check_rows(eos.as_slice(), wanted)?;
    // Prompts begin with them, too.
    let begin = tokens.begin_tokens()?;
    tokens.check_rows(&begin, wanted)?;
    // Keep bytes as bytes if no other tokens are among them.
    let element = match (&tokens, eos) {
        (LoadedTokenizer::Bytes, None) => Element::U8,
        _ => Element::U32,
    };
    let (mut spool, mut unknown) = (Spool::new(), UnknownTokens::new(&tokens));
    match &tokens {
        LoadedTokenizer::Bytes => {
            for path in &text.paths {
                let (mut file, _) = plain_or_gzip::open(path)?;
                match element {
                    Element::U8 => plain_or_gzip::copy(path, &mut file, &mut spool, u64::MAX)?,
                    _ => write_bytes(path, &mut file, &mut spool)?,
                }
                write(&mut spool, eos.as_slice())?;
            }
        }
        LoadedTokenizer::Loaded(..) => {
            let mut pieces = Pieces { paths: text.paths.iter(), file: None };
            let encode = |piece| match piece {
                Piece::Begin => Ok::<_, DataError>((begin.clone(), false)),
                Piece::Lines(lines) => {
                    let mut numbers = Vec::new();
                    tokens.encode(&lines, &mut numbers)?;
                    tokens.check_rows(&numbers, wanted)?;
                    Ok((numbers, true))
                }
                Piece::End => Ok((eos.into_iter().collect(), false)),
            };
            let take = |(numbers, is_text): (Vec<u32>, bool)| {
                if is_text {
                    unknown.count(&numbers);
                }
                write(&mut spool, &numbers)
            };
            in_parallel::stream(&TEXTS, || pieces.next(), Piece::size, encode, take)?;
        }
    }
    let (size, length) = (element.size(), text.sequence_length);
    let found = spool.length() / size;
    let path = text.paths.first().cloned().unwrap_or_default();
    let samples = found.saturating_sub(1) / length.max(1);
    if samples == 0 {
        let problem = format!(
            "{found} tokens; one sample of sequence_length {length} needs one more than that"
        );
        return Err(DataError::file(&path, problem));
    }
    unknown.check(&path)?;
    let store = Arc::new(spool.finish()?);
    let windows = |start: u64| {
        let layout =
            Layout { start, stride: Some(length * size), ..Layout::packed(element, &[length]) };
        Ok::<_, DataError>(Column::Array(ArrayColumn::new(&path, store.clone(), layout, samples)?))
    };
    Ok(Columns { inputs: vec![windows(0)?], target: Some(windows(size)?) })
}

/// The text that is encoded at once. Meanwhile a text takes many times its size, so the most bounds
/// the memory.
pub(super) const TEXTS: Limits = Limits { least_bytes: 16 << 10, most_bytes: 16 << 20 };

/// A part of the files.
enum Piece {
    /// The beginning of a file.
    Begin,
    /// Whole lines.
    Lines(String),
    /// The end of a file.
    End,
}

impl Piece {
    fn size(&self) -> usize {
        match self {
            Piece::Lines(lines) => lines.len(),
            Piece::Begin | Piece::End => size_of::<Piece>(),
        }
    }
}

/// The files in pieces, one file after the other.
struct Pieces<'a> {
    paths: std::slice::Iter<'a, PathBuf>,
    file: Option<(&'a Path, Box<dyn BufRead>)>,
}

impl Pieces<'_> {
    fn next(&mut self) -> Result<Option<Piece>, DataError> {
        let Some((path, file)) = &mut self.file else {
            let Some(path) = self.paths.next() else { return Ok(None) };
            self.file = Some((path.as_path(), plain_or_gzip::open(path)?.0));
            return Ok(Some(Piece::Begin));
        };
        let mut lines = String::new();
        if plain_or_gzip::lines(path, file, &mut lines)? {
            return Ok(Some(Piece::Lines(lines)));
        }
        self.file = None;
        Ok(Some(Piece::End))
    }
}

/// Writes a file whose bytes are the tokens, as they are.
fn write_bytes(path: &Path, file: &mut impl BufRead, spool: &mut Spool) -> Result<(), DataError> {
    let mut numbers = Vec::new();
    loop {
        let part = file.fill_buf().map_err(|e| DataError::io(path, &e))?;
        let read = part.len();
        if read == 0 {
            return Ok(());
        }
        numbers.clear();
        numbers.extend(part.iter().copied().map(u32::from));
        write(spool, &numbers)?;
        file.consume(read);
    }
}

fn write(spool: &mut Spool, tokens: &[u32]) -> Result<(), DataError> {
    tokens.iter().try_for_each(|token| spool.write(&token.to_le_bytes()))
}
