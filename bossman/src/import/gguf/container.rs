//! The header of a GGUF file: its metadata, and the place of each tensor. The format is described
//! in <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use super::blocks::BlockKind;
use crate::data::disk;
use crate::output::printable;
use crate::BossManError;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The most bytes of a header. That of a model with 250,000 tokens has 10 MB.
const MAX_HEADER: u64 = 512 << 20;
/// The most values and tensors in all.
const MAX_ITEMS: u64 = 4_000_000;
/// The alignment of the tensors unless the metadata sets another one.
const ALIGNMENT: u64 = 32;
/// The letters of a name that a message shows.
const SHOWN: usize = 100;
/// The most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    /// A number of single precision.
    Single(f32),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Its sizes, the innermost last.
    pub(super) shape: Vec<usize>,
    pub(super) kind: BlockKind,
    /// The place of its first byte in the file.
    start: u64,
    /// The number of its bytes.
    bytes: usize,
}

impl Entry {
    /// The number of its elements.
    pub(super) fn numbers(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A GGUF file whose header was read and checked.
#[derive(Debug)]
pub(super) struct Gguf {
    pub(super) path: PathBuf,
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: Vec<Entry>,
}

impl Gguf {
    /// Reads the header.
    ///
    /// # Errors
    /// It is not a GGUF file, or truncated, or has a tensor of another type.
    pub(super) fn read(path: &Path) -> Result<Self, BossManError> {
        let io = |e: std::io::Error| BossManError::io(path, &e);
        let size = match disk::metadata(path).map_err(io)? {
            Some(there) if there.is_file() => there.len(),
            _ => return Err(BossManError::file(path, "is no file; name a GGUF file")),
        };
        Self::parse(BufReader::new(File::open(path).map_err(io)?), size, path)
    }

    /// Reads the header of a file of this size. Errors name `path`.
    ///
    /// # Errors
    /// As for [`Gguf::read`].
    pub(super) fn parse(file: impl Read, size: u64, path: &Path) -> Result<Self, BossManError> {
        let mut header = Header { path, file, position: 0, end: size.min(MAX_HEADER), items: 0 };
        if header.array::<4>()? != *b"GGUF" {
            return Err(BossManError::file(path, "is no GGUF file"));
        }
        let version = header.u32()?;
        if !(2..=3).contains(&version) {
            let problem = format!("is GGUF of version {version}; versions 2 and 3 are known");
            return Err(BossManError::file(path, problem));
        }
        let (tensors, values) = (header.count()?, header.count()?);
        let mut metadata = BTreeMap::new();
        for _ in 0..values {
            let key = header.text()?;
            let kind = header.u32()?;
            metadata.insert(key, header.value(kind)?);
        }
        let mut found = Vec::new();
        for _ in 0..tensors {
            found.push(header.entry()?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(Value::Integer(alignment @ 1..=0x10_0000)) => alignment.unsigned_abs(),
            Some(_) => return Err(header.broken("its alignment is out of range")),
        };
        let begin = header.position.next_multiple_of(alignment);
        let mut names = BTreeSet::new();
        let mut bytes = 0u64;
        for entry in &mut found {
            // Tensors that lie on each other would become a file far larger than this one.
            bytes = bytes.saturating_add(entry.bytes as u64);
            if bytes > size || !names.insert(entry.name.clone()) {
                let name = printable(&entry.name, SHOWN);
                return Err(
                    header.broken(&format!("tensor `{name}` is there twice, or lies on others"))
                );
            }
            entry.start = entry.start.saturating_add(begin);
            let end = entry.start.saturating_add(entry.bytes as u64);
            if end > size {
                let problem = format!(
                    "is truncated: tensor `{}` ends at byte {end}, and the file has {size}",
                    printable(&entry.name, SHOWN)
                );
                return Err(BossManError::file(path, problem));
            }
        }
        Ok(Gguf { path: path.into(), metadata, tensors: found })
    }

    /// The tensor of this name.
    pub(super) fn tensor(&self, name: &str) -> Option<&Entry> {
        self.tensors.iter().find(|entry| entry.name == name)
    }

    /// The numbers of a tensor in single precision.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn numbers(&self, entry: &Entry) -> Result<Vec<f32>, BossManError> {
        let io = |e: std::io::Error| BossManError::io(&self.path, &e);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(entry.start)).map_err(io)?;
        // The header was compared with the size of the file.
        let mut bytes = vec![0; entry.bytes];
        file.read_exact(&mut bytes).map_err(io)?;
        Ok(entry.kind.numbers(&bytes))
    }

    /// An error about the file.
    pub(super) fn problem(&self, problem: impl std::fmt::Display) -> BossManError {
        BossManError::file(&self.path, problem)
    }
}

/// Reads the header, and no byte behind its end.
struct Header<'a, R> {
    path: &'a Path,
    file: R,
    position: u64,
    end: u64,
    /// Values and tensors so far.
    items: u64,
}

impl<R: Read> Header<'_, R> {
    fn broken(&self, what: &str) -> BossManError {
        let problem = format!("is damaged near byte {}: {what}", self.position);
        BossManError::file(self.path, problem)
    }

    /// Reserves bytes, before memory for them is taken.
    fn take(&mut self, bytes: u64) -> Result<(), BossManError> {
        match self.position.checked_add(bytes).filter(|end| *end <= self.end) {
            Some(end) => {
                self.position = end;
                Ok(())
            }
            None => Err(self.broken("its header goes on behind the end")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BossManError> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|e| BossManError::io(self.path, &e))?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, BossManError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, BossManError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of values or tensors that follow.
    fn count(&mut self) -> Result<u64, BossManError> {
        let count = self.u64()?;
        self.items = self.items.saturating_add(count);
        match self.items > MAX_ITEMS {
            true => Err(self.broken(&format!("it has more than {MAX_ITEMS} values"))),
            false => Ok(count),
        }
    }

    fn text(&mut self) -> Result<String, BossManError> {
        let bytes = self.u64()?;
        self.take(bytes)?;
        let mut text = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.file.read_exact(&mut text).map_err(|e| BossManError::io(self.path, &e))?;
        String::from_utf8(text).map_err(|_| self.broken("a text is not UTF-8"))
    }

    fn value(&mut self, kind: u32) -> Result<Value, BossManError> {
        if kind != 9 {
            return self.scalar(kind);
        }
        let (kind, count) = (self.u32()?, self.count()?);
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.scalar(kind)?);
        }
        Ok(Value::List(list))
    }

    fn scalar(&mut self, kind: u32) -> Result<Value, BossManError> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(self.u32()?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Single(f32::from_le_bytes(self.array()?)),
            7 => Value::Flag(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            10 => match i64::try_from(self.u64()?) {
                Ok(number) => Value::Integer(number),
                Err(_) => return Err(self.broken("a number is too large")),
            },
            11 => Value::Integer(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(self.broken(&format!("a value has type {other}"))),
        })
    }

    /// A tensor, with its place among the tensors.
    fn entry(&mut self) -> Result<Entry, BossManError> {
        let name = self.text()?;
        let shown = printable(&name, SHOWN);
        let dims = self.u32()?;
        if dims > MAX_DIMS {
            return Err(self.broken(&format!("tensor `{shown}` has {dims} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let size = self.u64()?;
            shape.push(usize::try_from(size).map_err(|_| self.broken("a size is too large"))?);
        }
        shape.reverse();
        let code = self.u32()?;
        let kind = BlockKind::of(code).ok_or_else(|| {
            let problem = format!(
                "tensor `{shown}` has type {code}; {} are known: convert the model to one of them, \
                 for example with llama-quantize",
                BlockKind::names()
            );
            BossManError::file(self.path, problem)
        })?;
        let start = self.u64()?;
        let bytes = kind.bytes(&shape).ok_or_else(|| {
            self.broken(&format!("tensor `{shown}` of {shape:?} is no whole number of blocks"))
        })?;
        Ok(Entry { name, shape, kind, start, bytes })
    }
}
