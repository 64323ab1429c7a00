//! Names, types and shapes of the tensors of a folder, from the headers of its safetensors files.
//! No weight is read, unless two tensors are compared.

use super::safetensors_files::{dtype, Index, INDEX_ENDING, INDEX_FILE, SINGLE_FILE};
use super::shown_text::{shown, unreadable};
use super::tensor_source::{missing, TensorSource};
use crate::data::{bounded_file, disk};
use crate::BossManError;
use bytes::Bytes;
use pipeline::TensorMeta;
use safetensors::tensor::Metadata as Header;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tch::Tensor;

/// The largest header in bytes. It is the limit of the safetensors library.
const MAX_HEADER: u64 = 100_000_000;
/// The largest index in bytes.
const MAX_INDEX: u64 = 64 << 20;
/// The bytes before the header, which tell its size.
const SIZE_BYTES: u64 = 8;
/// The bytes of a tensor that are in memory when it is compared.
const PART: usize = 1 << 20;

/// Converts all `pytorch_model*.bin` of the working folder.
const CONVERT: &str = "python3 -c \"import glob, torch; from safetensors.torch import save_file; \
                       save_file({name: tensor.clone().contiguous() for file in \
                       glob.glob('pytorch_model*.bin') for name, tensor in torch.load(file, \
                       weights_only=True).items()}, 'model.safetensors')\"";

/// What tells a file from one that was put in its place, or written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    length: u64,
    modified: Option<SystemTime>,
    inode: u64,
}

impl FileStamp {
    pub(crate) fn of(file: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(file);
        #[cfg(not(unix))]
        let inode = 0;
        FileStamp { length: file.len(), modified: file.modified().ok(), inode }
    }

    /// The size of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Refuses a file that was replaced or written to since it had this stamp.
    ///
    /// # Errors
    /// It was, or it is not there.
    pub(crate) fn check(&self, path: &Path) -> Result<(), BossManError> {
        let now = disk::metadata(path).map_err(|e| BossManError::io(path, &e))?;
        if now.is_some_and(|now| FileStamp::of(&now) == *self) {
            return Ok(());
        }
        let problem =
            "was replaced, changed or deleted after its header was read; start again, and \
                       let nothing write to it";
        Err(BossManError::file(path, problem))
    }
}

/// A tensor, and where its numbers are.
#[derive(Debug)]
struct Stored {
    header: TensorMeta,
    file: Arc<Path>,
    stamp: FileStamp,
    /// The place of its first byte in the file.
    start: u64,
    /// The number of its bytes.
    bytes: usize,
}

impl Stored {
    /// Its file, at its first byte.
    fn open(&self) -> Result<File, BossManError> {
        self.open_at(self.start)
    }

    /// Its file, at this byte.
    fn open_at(&self, place: u64) -> Result<File, BossManError> {
        let io = |e: std::io::Error| BossManError::io(&self.file, &e);
        let mut file = File::open(&self.file).map_err(io)?;
        file.seek(SeekFrom::Start(place)).map_err(io)?;
        Ok(file)
    }

    /// The next bytes of its file.
    fn part(&self, file: &mut File, bytes: usize) -> Result<Vec<u8>, BossManError> {
        let mut part = vec![0; bytes];
        file.read_exact(&mut part).map_err(|e| BossManError::io(&self.file, &e))?;
        Ok(part)
    }
}

/// All tensors of a folder, by name.
#[derive(Debug)]
pub(crate) struct TensorHeaders {
    folder: PathBuf,
    source: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

impl TensorHeaders {
    /// Reads the headers of the files that [`crate::StateDict::load`] takes, except those of a
    /// checkpoint: a safetensors file, an index of several, or the folder of one of them.
    pub(crate) fn read(path: &Path) -> Result<Self, BossManError> {
        if path.is_dir() {
            return Self::of_folder(path);
        }
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        if !path.to_string_lossy().ends_with(INDEX_ENDING) {
            return Self::of_single_file(path);
        }
        match bounded_file::read(path, MAX_INDEX)? {
            Some(text) => Self::sharded(path.into(), &text, folder),
            None => Err(BossManError::file(path, "there is no such file")),
        }
    }

    /// Reads the header of one safetensors file.
    pub(crate) fn of_single_file(path: &Path) -> Result<Self, BossManError> {
        Self::of_file(path.into(), path.parent().unwrap_or_else(|| Path::new(".")))
    }

    fn of_file(file: PathBuf, folder: &Path) -> Result<Self, BossManError> {
        let tensors = header(&file)?;
        Ok(TensorHeaders { folder: folder.into(), source: file, tensors })
    }

    fn of_folder(folder: &Path) -> Result<Self, BossManError> {
        let (index, single) = (folder.join(INDEX_FILE), folder.join(SINGLE_FILE));
        if is_file(&single)? {
            return Self::of_file(single, folder);
        }
        if let Some(text) = bounded_file::read(&index, MAX_INDEX)? {
            return Self::sharded(index, &text, folder);
        }
        for other in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
            if is_file(&folder.join(other))? {
                let problem = format!(
                    "holds weights in PyTorch's own format only, which can run code when it is \
                     read. This line, in that folder, converts them to safetensors:\n  {CONVERT}"
                );
                return Err(BossManError::file(folder, problem));
            }
        }
        let problem = format!(
            "holds neither {SINGLE_FILE} nor {INDEX_FILE}; download the weights in safetensors"
        );
        Err(BossManError::file(folder, problem))
    }

    fn sharded(path: PathBuf, text: &[u8], folder: &Path) -> Result<Self, BossManError> {
        let index = Index::parse(text, &path)?;
        let mut tensors = BTreeMap::new();
        for file in index.shards() {
            let shard = folder.join(file);
            if !is_file(&shard)? {
                let problem =
                    format!("is missing, but {} names it; download it, too", path.display());
                return Err(BossManError::file(&shard, problem));
            }
            let mut found = header(&shard)?;
            for name in index.tensors_of(file) {
                let tensor = found.remove(name).ok_or_else(|| {
                    let name = shown(name);
                    let problem =
                        format!("lacks `{name}`, which {} looks for in it", path.display());
                    BossManError::file(&shard, problem)
                })?;
                tensors.insert(name.to_string(), tensor);
            }
        }
        Ok(TensorHeaders { folder: folder.into(), source: path, tensors })
    }

    /// The tensors of several, of files below this folder.
    pub(crate) fn joined(folder: &Path, all: impl IntoIterator<Item = Self>) -> Self {
        let tensors = all.into_iter().flat_map(|one| one.tensors).collect();
        TensorHeaders { folder: folder.into(), source: folder.into(), tensors }
    }

    /// The folder of the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a tensor, the place of its first byte there, and what it is.
    pub(crate) fn place(&self, name: &str) -> Option<(&Path, u64, &TensorMeta)> {
        let Stored { header, file, start, .. } = self.tensors.get(name)?;
        Some((file, *start, header))
    }

    /// The file of a tensor, as it was when its header was read.
    pub(crate) fn stamp(&self, name: &str) -> Option<(&Path, &FileStamp)> {
        self.tensors.get(name).map(|stored| (&*stored.file, &stored.stamp))
    }

    /// The files of all tensors, as they were when their headers were read.
    pub(crate) fn stamps(&self) -> impl Iterator<Item = &FileStamp> {
        self.tensors.values().map(|stored| &stored.stamp)
    }

    /// The files that hold the tensors, and the index.
    pub(crate) fn files(&self) -> BTreeSet<&Path> {
        self.tensors.values().map(|stored| &*stored.file).chain([self.source()]).collect()
    }

    /// The file, or the index of several.
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// The tensor of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&TensorMeta> {
        self.tensors.get(name).map(|tensor| &tensor.header)
    }

    /// Reads the bytes of a tensor.
    ///
    /// # Errors
    /// There is no tensor of this name, or its file cannot be read.
    pub(crate) fn bytes(&self, name: &str) -> Result<Bytes, BossManError> {
        let Some(tensor) = self.tensors.get(name) else {
            let problem = format!("has no tensor `{}`", shown(name));
            return Err(BossManError::file(&self.source, problem));
        };
        Ok(tensor.part(&mut tensor.open()?, tensor.bytes)?.into())
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Every tensor, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &TensorMeta)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.header))
    }

    /// Whether both tensors are there and differ. Their numbers are read, a part at a time.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn differ(&self, one: &str, other: &str) -> Result<bool, BossManError> {
        let (Some(one), Some(other)) = (self.tensors.get(one), self.tensors.get(other)) else {
            return Ok(false);
        };
        if one.header != other.header || one.bytes != other.bytes {
            return Ok(true);
        }
        let (mut file, mut other_file) = (one.open()?, other.open()?);
        let mut left = one.bytes;
        while left > 0 {
            let bytes = left.min(PART);
            if one.part(&mut file, bytes)? != other.part(&mut other_file, bytes)? {
                return Ok(true);
            }
            left -= bytes;
        }
        Ok(false)
    }
}

impl TensorSource for TensorHeaders {
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError> {
        Ok(self.iter().map(|(name, meta)| (name.to_string(), meta.clone())).collect())
    }

    fn has_slices(&self, _name: &str) -> bool {
        true
    }

    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError> {
        let stored = self.tensors.get(name).ok_or_else(|| missing(name))?;
        let dtype = stored.header.dtype;
        let place = stored.start.saturating_add(elements.start * dtype.size_bytes());
        let count = elements.end.saturating_sub(elements.start);
        let mut file = stored.open_at(place)?;
        let bytes = stored.part(&mut file, (count * dtype.size_bytes()) as usize)?;
        stored.stamp.check(&stored.file)?;
        Ok(tensor::payload::from_bytes(dtype, &[count.cast_signed()], bytes.into())?)
    }
}

fn is_file(path: &Path) -> Result<bool, BossManError> {
    disk::is_file(path).map_err(|e| BossManError::io(path, &e))
}

/// The tensors of a file, whose length must be the one that its header tells of.
fn header(path: &Path) -> Result<BTreeMap<String, Stored>, BossManError> {
    let io = |e: std::io::Error| BossManError::io(path, &e);
    let wrong = |problem: String| BossManError::file(path, problem);
    let mut file = File::open(path).map_err(io)?;
    let stamp = FileStamp::of(&file.metadata().map_err(io)?);
    let length = stamp.length;
    let mut size = [0; SIZE_BYTES as usize];
    if length < SIZE_BYTES {
        return Err(wrong(format!("has {length} bytes, which is no safetensors file")));
    }
    file.read_exact(&mut size).map_err(io)?;
    if &size == b"version " {
        return Err(wrong("is a pointer of Git LFS, not the weights; run `git lfs pull`".into()));
    }
    let header = u64::from_le_bytes(size);
    // Checked before memory is taken for it.
    if header > MAX_HEADER || header > length - SIZE_BYTES {
        return Err(wrong(format!(
            "is not a whole safetensors file: its header would have {header} bytes, the file has \
             {length}"
        )));
    }
    let mut text = Vec::new();
    file.take(header).read_to_end(&mut text).map_err(io)?;
    let metadata: Header = serde_json::from_slice(&text)
        .map_err(|e| wrong(unreadable("is not a safetensors file", e)))?;
    let data = metadata.data_len() as u64;
    let described = SIZE_BYTES.saturating_add(header).saturating_add(data);
    if described != length {
        return Err(wrong(format!(
            "has {length} bytes, but its header describes {described}; it is not complete or \
             damaged: download it again"
        )));
    }
    let source: Arc<Path> = Arc::from(path);
    let tensors = metadata.tensors().into_iter().map(|(name, info)| {
        let shape = info.shape.iter().map(|size| *size as u64).collect();
        let (first, end) = info.data_offsets;
        match dtype(info.dtype) {
            Some(dtype) => {
                let stored = Stored {
                    header: TensorMeta { dtype, shape },
                    file: source.clone(),
                    stamp: stamp.clone(),
                    start: SIZE_BYTES.saturating_add(header).saturating_add(first as u64),
                    bytes: end.saturating_sub(first),
                };
                Ok((name, stored))
            }
            None => Err(wrong(format!(
                "tensor `{}` has dtype {}, which BossMan cannot use; take weights in float32, \
                 bfloat16 or float16",
                shown(&name),
                info.dtype
            ))),
        }
    });
    tensors.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateDict;
    use layerspec::DType;
    use tch::{Device, Kind};

    fn state() -> StateDict {
        let mut state = StateDict::default();
        state.insert("a.weight", &Tensor::zeros([4, 3], (Kind::BFloat16, Device::Cpu)));
        state.insert("b.bias", &Tensor::zeros([5], (Kind::Float, Device::Cpu)));
        state
    }

    fn expect_tensors(headers: &TensorHeaders) {
        let names: Vec<&str> = headers.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a.weight", "b.bias"]);
        let expected = TensorMeta { dtype: DType::BFloat16, shape: vec![4, 3] };
        assert_eq!(headers.get("a.weight"), Some(&expected));
        assert!(headers.has("b.bias") && !headers.has("c"));
    }

    fn refused(folder: &Path) -> String {
        TensorHeaders::read(folder).unwrap_err().to_string()
    }

    #[test]
    fn one_file_or_an_index_of_several_is_read() {
        let place = tempfile::tempdir().unwrap();
        state().save(place.path().join("model.safetensors")).unwrap();
        expect_tensors(&TensorHeaders::read(place.path()).unwrap());
        let place = tempfile::tempdir().unwrap();
        state().save_sharded(place.path(), 1).unwrap();
        expect_tensors(&TensorHeaders::read(place.path()).unwrap());
        std::fs::remove_file(place.path().join("model-00002-of-00002.safetensors")).unwrap();
        let error = refused(place.path());
        assert!(error.contains("model-00002-of-00002.safetensors: is missing, but"), "{error}");
        assert!(error.contains("model.safetensors.index.json names it"), "{error}");
    }

    #[test]
    fn tensors_are_compared_by_type_shape_and_numbers() {
        let mut state = StateDict::default();
        // The last number is in the third part of the bytes.
        let numbers = Tensor::arange(600_000, (Kind::Float, Device::Cpu));
        let changed = numbers.copy();
        let _last = changed.get(599_999).fill_(0.5);
        state.insert("a", &numbers);
        state.insert("changed", &changed);
        state.insert("same", &numbers);
        state.insert("shaped", &numbers.reshape([2, 300_000]));
        state.insert("typed", &numbers.to_kind(Kind::Int));
        let place = tempfile::tempdir().unwrap();
        state.save(place.path().join("model.safetensors")).unwrap();
        let sharded = tempfile::tempdir().unwrap();
        state.save_sharded(sharded.path(), 1).unwrap();
        for folder in [place.path(), sharded.path()] {
            let headers = TensorHeaders::read(folder).unwrap();
            for (other, expected) in [
                ("a", false),
                ("absent", false),
                ("changed", true),
                ("same", false),
                ("shaped", true),
                ("typed", true),
            ] {
                assert_eq!(headers.differ("a", other).unwrap(), expected, "{other}");
            }
        }
    }

    #[test]
    fn a_truncated_or_hostile_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.safetensors");
        state().save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let error = refused(place.path());
        let numbers = format!(
            "model.safetensors: has {} bytes, but its header describes {}",
            whole.len() - 1,
            whole.len()
        );
        assert!(error.contains(&numbers), "{error}");
        let cases: [(&[u8], &str); 5] = [
            (b"abc", "has 3 bytes, which is no safetensors file"),
            (&[255; 16], "its header would have 18446744073709551615 bytes"),
            (b"\xff\0\0\0\0\0\0\0{}", "its header would have 255 bytes, the file has 10"),
            (b"\x02\0\0\0\0\0\0\0{]", "is not a safetensors file"),
            (b"version https://git-lfs", "is a pointer of Git LFS"),
        ];
        for (bytes, expected) in cases {
            std::fs::write(&path, bytes).unwrap();
            let error = refused(place.path());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn names_in_a_file_have_no_control_characters_in_messages() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.safetensors");
        for (dtype, end, expected) in [
            ("F8_E4M3", 1, "tensor `a [2J` has dtype F8_E4M3, which BossMan"),
            ("\\u001b[2J", 1, "is not a safetensors file"),
            ("F32", 7, "is not a safetensors file"),
        ] {
            let info =
                format!(r#"{{"dtype": "{dtype}", "shape": [1], "data_offsets": [0, {end}]}}"#);
            let header = format!(r#"{{"a\u001b[2J": {info}}}"#);
            let size = (header.len() as u64).to_le_bytes();
            let data = [0; 8];
            let file = [&size[..], header.as_bytes(), &data[..end]].concat();
            std::fs::write(&path, file).unwrap();
            let error = refused(place.path());
            assert!(error.contains(expected) && !error.contains('\u{1b}'), "{error:?}");
        }
        std::fs::remove_file(&path).unwrap();
        state().save(place.path().join("a.safetensors")).unwrap();
        let index = r#"{"weight_map": {"\u001b[2J": "a.safetensors"}}"#;
        std::fs::write(place.path().join(INDEX_FILE), index).unwrap();
        let error = refused(place.path());
        assert!(error.contains("a.safetensors: lacks ` [2J`, which"), "{error:?}");
    }

    #[test]
    fn an_index_names_its_neighbours_alone() {
        let place = tempfile::tempdir().unwrap();
        for file in ["../a.safetensors", "b/a.safetensors", "/a.safetensors", ".."] {
            let index = format!(r#"{{"weight_map": {{"a.weight": "{file}"}}}}"#);
            std::fs::write(place.path().join(INDEX_FILE), index).unwrap();
            let error = refused(place.path());
            assert!(error.contains("which is not a file beside it"), "{error}");
        }
    }

    #[test]
    fn other_formats_have_a_remedy() {
        let place = tempfile::tempdir().unwrap();
        let error = refused(place.path());
        assert!(error.contains("holds neither model.safetensors nor"), "{error}");
        std::fs::write(place.path().join("pytorch_model.bin"), "x").unwrap();
        let error = refused(place.path());
        assert!(error.contains("save_file(") && error.contains("weights_only=True"), "{error}");
    }
}
