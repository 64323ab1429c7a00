//! A weight that is read from files: a tensor of a safetensors file, or several that make one.

use crate::worker_files::relative_path;
use crate::DataError;
use bytes::Bytes;
use layerspec::DType;
use pipeline::{TensorHasher, TensorMeta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tch::Tensor;
use tensor::TensorError;

/// The largest description in bytes. A usual one has a hundred.
const MAX_DESCRIPTION: usize = 64 << 10;
/// The bytes that are in memory when a weight is hashed. Whole elements of every type fit.
const CHUNK: u64 = 4 << 20;

/// The places of a parameter or buffer in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightSource {
    /// Its dtype and shape. Floating-point numbers of another type are converted.
    pub meta: TensorMeta,
    /// The tensors that it is made of, one above the other along the first dimension.
    pub parts: Vec<WeightPart>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightPart {
    /// The file, below the folder of the weights.
    pub file: PathBuf,
    /// The place of its first byte in the file.
    pub start: u64,
    /// Its dtype and shape in the file.
    pub meta: TensorMeta,
    /// Whether the weight has its transpose.
    pub is_transposed: bool,
}

/// A weight for workers that read it from their own files, with the hash that it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedWeight {
    /// The name of the parameter or buffer, as `0.weight`.
    pub name: String,
    /// Where it is.
    pub source: WeightSource,
    /// Its [hash](pipeline::hash_tensor).
    pub hash: [u8; 32],
}

impl HashedWeight {
    /// Encodes the description.
    ///
    /// # Errors
    /// It is too large.
    pub fn encode(&self) -> Result<Vec<u8>, DataError> {
        let wrong =
            |problem| DataError::Usage(format!("a weight that cannot be described: {problem}"));
        let bytes = rmp_serde::to_vec(self).map_err(|e| wrong(e.to_string()))?;
        match bytes.len() {
            0..=MAX_DESCRIPTION => Ok(bytes),
            many => Err(wrong(format!("{many} bytes, and at most {MAX_DESCRIPTION} are allowed"))),
        }
    }

    /// Decodes a description that came from elsewhere.
    ///
    /// # Errors
    /// The bytes are no description, the parts do not make the weight, or a path leads out of the
    /// folder.
    pub fn decode(bytes: &[u8]) -> Result<Self, DataError> {
        let wrong =
            |problem: String| DataError::Usage(format!("a description of a weight {problem}"));
        if bytes.len() > MAX_DESCRIPTION {
            return Err(wrong(format!(
                "has {} bytes; at most {MAX_DESCRIPTION} are allowed",
                bytes.len()
            )));
        }
        let mut weight: HashedWeight =
            rmp_serde::from_slice(bytes).map_err(|e| wrong(format!("is wrong: {e}")))?;
        for part in &mut weight.source.parts {
            let below = relative_path(&part.file);
            part.file = below.ok_or_else(|| {
                wrong(format!("names {}, which leads out of the folder", part.file.display()))
            })?;
        }
        match weight.source.is_whole() {
            true => Ok(weight),
            false => Err(wrong("has parts that do not make it".into())),
        }
    }

    /// Reads the weight from this folder.
    ///
    /// # Errors
    /// A file is missing or too short, or the weight has another hash.
    pub fn read(&self, folder: &Path) -> Result<Tensor, DataError> {
        let tensor = self.source.read(folder)?;
        let mut hash = TensorHasher::new(&self.source.meta);
        hash.update(&tensor::payload::to_bytes(&tensor)?);
        if hash.finish() == self.hash {
            return Ok(tensor);
        }
        let files = self.source.parts.iter().map(|part| part.file.display().to_string());
        let files = files.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", or ");
        let problem = "has other weights than the boss's; give both the same files";
        Err(DataError::file(&folder.join(files), problem))
    }
}

impl WeightSource {
    /// Whether the elements of the parts are as many as those of the weight.
    fn is_whole(&self) -> bool {
        let elements = |meta: &TensorMeta| Some(meta.byte_len()? / meta.dtype.size_bytes());
        let parts = self.parts.iter().map(|part| elements(&part.meta));
        let sum = parts.reduce(|sum, part| sum?.checked_add(part?)).flatten();
        sum.is_some() && sum == elements(&self.meta)
    }

    /// Reads the weight from this folder.
    ///
    /// # Errors
    /// A file is missing or too short, or libtorch fails.
    pub fn read(&self, folder: &Path) -> Result<Tensor, DataError> {
        let parts = self.parts.iter().map(|part| part.read(folder));
        let parts = parts.collect::<Result<Vec<Tensor>, DataError>>()?;
        let whole = match &parts[..] {
            [one] => one.shallow_clone(),
            many => Tensor::f_cat(many, 0).map_err(TensorError::from)?,
        };
        Ok(tensor::converted(&whole, self.meta.dtype)?)
    }

    /// Whether its elements can be read some at a time: no part is transposed.
    pub fn has_slices(&self) -> bool {
        !self.parts.iter().any(|part| part.is_transposed)
    }

    /// Reads some of its elements, in row-major order. No part may be transposed.
    ///
    /// # Errors
    /// A file is missing or too short, or libtorch fails.
    pub fn read_slice(&self, folder: &Path, elements: Range<u64>) -> Result<Tensor, DataError> {
        let (mut found, mut first) = (Vec::new(), 0);
        for part in &self.parts {
            let size = part.meta.dtype.size_bytes();
            let last = first + part.meta.byte_len().unwrap_or(0) / size;
            let (from, to) = (elements.start.max(first), elements.end.min(last));
            if from < to {
                let mut bytes = part.open(folder)?;
                bytes.skip((from - first) * size)?;
                let bytes = bytes.next((to - from) * size)?;
                found.push(convert(bytes, part.meta.dtype, self.meta.dtype)?);
            }
            first = last;
        }
        let parts = found.into_iter().map(|bytes| {
            let count = bytes.len() as u64 / self.meta.dtype.size_bytes();
            tensor::payload::from_bytes(self.meta.dtype, &[count.cast_signed()], bytes)
        });
        let parts = parts.collect::<Result<Vec<Tensor>, TensorError>>()?;
        match &parts[..] {
            [one] => Ok(one.shallow_clone()),
            many => Ok(Tensor::f_cat(many, 0).map_err(TensorError::from)?),
        }
    }

    /// Its [hash](pipeline::hash_tensor). Holds a few megabytes of it at a time, unless a part is
    /// transposed.
    ///
    /// # Errors
    /// A file is missing or too short, or libtorch fails.
    pub fn hash(&self, folder: &Path) -> Result<[u8; 32], DataError> {
        let mut hash = TensorHasher::new(&self.meta);
        if !self.has_slices() {
            hash.update(&tensor::payload::to_bytes(&self.read(folder)?)?);
            return Ok(hash.finish());
        }
        for part in &self.parts {
            let mut bytes = part.open(folder)?;
            while let Some(chunk) = bytes.next_chunk()? {
                hash.update(&convert(chunk, part.meta.dtype, self.meta.dtype)?);
            }
        }
        Ok(hash.finish())
    }
}

/// The elements as another type.
fn convert(elements: Bytes, from: DType, to: DType) -> Result<Bytes, DataError> {
    if from == to {
        return Ok(elements);
    }
    let count = (elements.len() as u64 / from.size_bytes()).cast_signed();
    let tensor = tensor::payload::from_bytes(from, &[count], elements)?;
    Ok(tensor::payload::to_bytes(&tensor::converted(&tensor, to)?)?)
}

/// The bytes of a part that are left to read.
struct PartBytes {
    path: PathBuf,
    file: File,
    left: u64,
}

impl PartBytes {
    fn next(&mut self, bytes: u64) -> Result<Bytes, DataError> {
        let mut next = vec![0; bytes as usize];
        self.file.read_exact(&mut next).map_err(|e| DataError::io(&self.path, &e))?;
        self.left -= bytes;
        Ok(next.into())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), DataError> {
        let offset = SeekFrom::Current(bytes.cast_signed());
        self.file.seek(offset).map_err(|e| DataError::io(&self.path, &e))?;
        self.left -= bytes;
        Ok(())
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, DataError> {
        match self.left.min(CHUNK) {
            0 => Ok(None),
            bytes => self.next(bytes).map(Some),
        }
    }
}

impl WeightPart {
    /// Opens its file at its first byte. The file must have all of it.
    fn open(&self, folder: &Path) -> Result<PartBytes, DataError> {
        let path = folder.join(&self.file);
        let io = |e: std::io::Error| DataError::io(&path, &e);
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let bytes = self.meta.byte_len();
        let Some(left) = bytes.filter(|bytes| self.start.saturating_add(*bytes) <= length) else {
            let problem = format!(
                "has {length} bytes, too few for weights that begin at byte {}; give boss and \
                 workers the same files",
                self.start
            );
            return Err(DataError::file(&path, problem));
        };
        file.seek(SeekFrom::Start(self.start)).map_err(io)?;
        Ok(PartBytes { path, file, left })
    }

    fn read(&self, folder: &Path) -> Result<Tensor, DataError> {
        let mut bytes = self.open(folder)?;
        let all = bytes.next(bytes.left)?;
        let shape: Vec<i64> = self.meta.shape.iter().map(|size| size.cast_signed()).collect();
        let tensor = tensor::payload::from_bytes(self.meta.dtype, &shape, all)?;
        if !self.is_transposed {
            return Ok(tensor);
        }
        let turned = tensor.f_transpose(0, 1).and_then(|turned| turned.f_contiguous());
        Ok(turned.map_err(TensorError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::hash_tensor;
    use tch::{Device, Kind};

    fn meta(dtype: DType, shape: &[u64]) -> TensorMeta {
        TensorMeta { dtype, shape: shape.to_vec() }
    }

    fn part(start: u64, meta: TensorMeta, is_transposed: bool) -> WeightPart {
        WeightPart { file: "w".into(), start, meta, is_transposed }
    }

    /// A file of the bfloat16 numbers 0 to 11, after two bytes that are none of them.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let numbers = Tensor::arange(12, (Kind::BFloat16, Device::Cpu));
        let bytes = tensor::payload::to_bytes(&numbers).unwrap();
        std::fs::write(folder.path().join("w"), [&[7, 7], &bytes[..]].concat()).unwrap();
        folder
    }

    fn source(parts: Vec<WeightPart>) -> WeightSource {
        WeightSource { meta: meta(DType::Float32, &[4, 3]), parts }
    }

    #[test]
    fn parts_are_turned_joined_and_widened() {
        let folder = folder();
        let top = part(2, meta(DType::BFloat16, &[2, 3]), false);
        let bottom = part(14, meta(DType::BFloat16, &[3, 2]), true);
        for (bottom, expected) in [
            (bottom, [6.0, 8.0, 10.0, 7.0, 9.0, 11.0]),
            (part(14, meta(DType::BFloat16, &[2, 3]), false), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]),
        ] {
            let source = source(vec![top.clone(), bottom]);
            let tensor = source.read(folder.path()).unwrap();
            let all = [&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0][..], &expected].concat();
            assert_eq!(Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap(), all);
            let bytes = tensor::payload::to_bytes(&tensor).unwrap();
            let hash = hash_tensor(&source.meta, &bytes);
            assert_eq!(source.hash(folder.path()).unwrap(), hash);
            let weight = HashedWeight { name: "w".into(), source, hash };
            let weight = HashedWeight::decode(&weight.encode().unwrap()).unwrap();
            assert!(weight.read(folder.path()).unwrap().equal(&tensor));
        }
    }

    #[test]
    fn slices_are_parts_of_the_whole() {
        let folder = folder();
        let parts = [(2, [2, 3]), (14, [2, 3])];
        let parts = parts.map(|(start, shape)| part(start, meta(DType::BFloat16, &shape), false));
        let source = source(parts.to_vec());
        let whole = source.read(folder.path()).unwrap().flatten(0, -1);
        for (from, to) in [(0, 12), (0, 6), (6, 12), (4, 9), (11, 12)] {
            let slice = source.read_slice(folder.path(), from..to).unwrap();
            let (from, to) = (from.cast_signed(), to.cast_signed());
            assert!(slice.equal(&whole.slice(0, from, to, 1)), "{from}..{to}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let folder = folder();
        let source = source(vec![part(2, meta(DType::BFloat16, &[4, 3]), false)]);
        let weight = HashedWeight { name: "w".into(), source, hash: [0; 32] };
        let error = weight.read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("w: has other weights than the boss's"), "{error}");
        std::fs::write(folder.path().join("w"), "short").unwrap();
        let error = weight.read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("w: has 5 bytes, too few for weights"), "{error}");
    }

    #[test]
    fn descriptions_from_elsewhere_are_checked() {
        let refused = |change: &dyn Fn(&mut WeightSource)| {
            let mut source = source(vec![part(2, meta(DType::BFloat16, &[4, 3]), false)]);
            change(&mut source);
            let bytes = HashedWeight { name: "w".into(), source, hash: [0; 32] }.encode().unwrap();
            HashedWeight::decode(&bytes).unwrap_err().to_string()
        };
        let outside = refused(&|source| source.parts[0].file = "../w".into());
        assert!(outside.contains("names ../w, which leads out of the folder"), "{outside}");
        for change in [
            (&|source: &mut WeightSource| source.parts.clear()) as &dyn Fn(&mut WeightSource),
            &|source| source.parts.push(source.parts[0].clone()),
            &|source| source.meta.shape = vec![u64::MAX, 2],
            &|source| source.parts[0].meta.shape = vec![u64::MAX; 3],
        ] {
            let error = refused(change);
            assert!(error.contains("has parts that do not make it"), "{error}");
        }
        assert!(HashedWeight::decode(b"x").is_err());
        let error = HashedWeight::decode(&vec![0; MAX_DESCRIPTION + 1]).unwrap_err().to_string();
        assert!(error.contains("at most 65536 are allowed"), "{error}");
    }
}
