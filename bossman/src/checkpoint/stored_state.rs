//! The state of a whole checkpoint. It stays in its files until workers need it.

use super::layout::{OPTIMIZER, WEIGHTS};
use super::local_file::LocalFile;
use super::manifest::{Manifest, RunRecord};
use super::state_fit::check_state;
use super::training_state::TrainingState;
use crate::data::tensor_payload::from_payload;
use crate::session::position::Counters;
use crate::weights::chunks::{in_chunks, total_bytes};
use crate::weights::state_dict::expected;
use crate::weights::tensor_headers::TensorHeaders;
use crate::{BossManError, StateDict};
use layerspec::LayerGraph;
use link::Payload;
use pipeline::optimizer::OptimizerSpec;
use pipeline::{slices, StateDigest, StateName, StateSlice, TensorHasher, TensorMeta, SLICE_BYTES};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a checkpoint whose files are those of its manifest.
#[derive(Debug)]
pub(crate) struct StoredState {
    pub(crate) counters: Counters,
    pub(crate) run: RunRecord,
    files: Vec<LocalFile>,
    /// The tensors, by the names under which they travel.
    tensors: BTreeMap<String, Place>,
}

/// The place of a tensor.
#[derive(Debug)]
struct Place {
    /// The number of its file.
    file: usize,
    /// Its first byte there.
    start: u64,
    meta: TensorMeta,
}

/// Tensors that are read, and travel, together.
type Chunk = Result<Vec<(String, Payload)>, BossManError>;

/// A tensor, or a slice of one, that is read as a whole.
struct Piece {
    /// The number of its file.
    file: usize,
    /// Its first byte there.
    start: u64,
    slice: StateSlice,
}

impl StoredState {
    /// Finds the tensors in the headers of the files. Each file comes with its path in the
    /// checkpoint's folder.
    ///
    /// # Errors
    /// A file is none of a checkpoint: its path in the folder, and the problem.
    pub(super) fn of(
        manifest: Manifest,
        files: Vec<(LocalFile, TensorHeaders)>,
    ) -> Result<Self, (String, &'static str)> {
        let Manifest { counters, run, files: entries, .. } = manifest;
        let mut state = StoredState { counters, run, files: Vec::new(), tensors: BTreeMap::new() };
        for (number, (entry, (file, headers))) in entries.into_iter().zip(files).enumerate() {
            let wrong = |problem: &'static str| (entry.name.clone(), problem);
            for (name, _) in headers.iter() {
                let Some((_, start, meta)) = headers.place(name) else { continue };
                let sent = match entry.name.split('/').next() {
                    Some(WEIGHTS) => StateName::of_parameter(name),
                    Some(OPTIMIZER) => StateName::of_optimizer(name, None),
                    _ => return Err(wrong("is neither of weights nor of the optimizer")),
                };
                if StateName::parse(&sent.to_string()) != sent {
                    return Err(wrong("has a tensor whose name no tensor of a state has"));
                }
                let place = Place { file: number, start, meta: meta.clone() };
                if state.tensors.insert(sent.to_string(), place).is_some() {
                    return Err(wrong("has a tensor that another file of the checkpoint has, too"));
                }
            }
            state.files.push(file);
        }
        Ok(state)
    }

    /// Checks that it is a state of this model and this optimizer.
    ///
    /// # Errors
    /// All differences are listed.
    pub(crate) fn check(
        &self,
        graph: &LayerGraph,
        optimizer: &OptimizerSpec,
    ) -> Result<(), BossManError> {
        let metas = self.tensors.iter().map(|(name, place)| (name.as_str(), &place.meta));
        check_state(&expected(graph), optimizer, metas)
    }

    /// Reads parameters and buffers, a chunk at a time. Each comes whole or in slices, with the
    /// name under which it travels. An error is that a file cannot be read, or is not the one that
    /// was compared with the manifest.
    pub(crate) fn read_weights(self: Arc<Self>) -> impl Iterator<Item = Chunk> {
        self.read_chunks(|name| !name.optimizer)
    }

    /// As [`StoredState::read_weights`], the state of the optimizer.
    pub(crate) fn read_optimizer(self: Arc<Self>) -> impl Iterator<Item = Chunk> {
        self.read_chunks(|name| name.optimizer)
    }

    /// The bytes of all parameters and buffers.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.bytes(|name| !name.optimizer)
    }

    /// The bytes of the optimizer's state.
    pub(crate) fn optimizer_bytes(&self) -> u64 {
        self.bytes(|name| name.optimizer)
    }

    fn bytes(&self, of: fn(&StateName<'_>) -> bool) -> u64 {
        let tensors = self.tensors.iter().filter(|(name, _)| of(&StateName::parse(name)));
        total_bytes(tensors.map(|(_, place)| &place.meta))
    }

    fn read_chunks(self: Arc<Self>, of: fn(&StateName<'_>) -> bool) -> impl Iterator<Item = Chunk> {
        let tensors = self.tensors.iter().filter(|(name, _)| of(&StateName::parse(name)));
        let pieces = tensors.flat_map(|(name, place)| {
            let piece = |slice: StateSlice| Piece { file: place.file, start: place.start, slice };
            slices(name, &place.meta, SLICE_BYTES).into_iter().map(piece)
        });
        let chunks = in_chunks(pieces, |piece| piece.slice.bytes.len() as u64);
        chunks
            .into_iter()
            .map(move |chunk| chunk.into_iter().map(|piece| self.read(piece)).collect())
    }

    fn read(&self, Piece { file, start, slice }: Piece) -> Result<(String, Payload), BossManError> {
        let StateSlice { name, meta, bytes } = slice;
        let from = start.saturating_add(bytes.start as u64);
        Ok((name, self.payload(file, from, bytes.len(), meta)?))
    }

    /// Its digest, that of [`TrainingState::digest`]. Reads all files, a few megabytes at a time.
    ///
    /// # Errors
    /// A file cannot be read, or is not the one that was compared with the manifest.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        let mut hashes = self.counters.hashes();
        for (name, Place { file, start, meta }) in &self.tensors {
            let mut hasher = TensorHasher::new(meta);
            for slice in slices(name, meta, SLICE_BYTES) {
                let (_, part) = self.read(Piece { file: *file, start: *start, slice })?;
                hasher.update(&part.bytes);
            }
            hashes.insert(name.clone(), hasher.finish());
        }
        Ok(StateDigest::of(&hashes))
    }

    /// Reads all of it into memory.
    ///
    /// # Errors
    /// A file cannot be read, or is not the one that was compared with the manifest.
    pub(crate) fn load(&self) -> Result<TrainingState, BossManError> {
        let (mut weights, mut optimizer) = (StateDict::default(), BTreeMap::new());
        for (sent, Place { file, start, meta }) in &self.tensors {
            let bytes = meta.byte_len().and_then(|bytes| usize::try_from(bytes).ok());
            let too_large = || BossManError::Usage(format!("`{sent}` is too large for memory"));
            let bytes = bytes.ok_or_else(too_large)?;
            let tensor = from_payload(&self.payload(*file, *start, bytes, meta.clone())?)?;
            let name = StateName::parse(sent);
            match name.optimizer {
                true => drop(optimizer.insert(name.name.to_string(), tensor)),
                false => weights.insert(name.name, &tensor),
            }
        }
        Ok(TrainingState { weights, optimizer, counters: self.counters })
    }

    fn payload(
        &self,
        file: usize,
        start: u64,
        bytes: usize,
        meta: TensorMeta,
    ) -> Result<Payload, BossManError> {
        let lost = || BossManError::Usage("a file of a checkpoint that is not there".into());
        let file = self.files.get(file).ok_or_else(lost)?;
        let content = file.read(start, bytes).map_err(|e| BossManError::io(&file.path, &e))?;
        Ok(Payload { meta, bytes: content.into() })
    }
}
