//! The state of a whole checkpoint. It stays in its files until workers need it.

use super::layout::{OPTIMIZER, WEIGHTS};
use super::local_file::LocalFile;
use super::manifest::{Manifest, RunRecord};
use super::state_fit::check_state;
use super::training_state::TrainingState;
use crate::data::tensor_payload::from_payload;
use crate::session::position::Counters;
use crate::weights::chunks::Unread;
use crate::weights::state_dict::expected;
use crate::weights::tensor_headers::TensorHeaders;
use crate::{BossManError, StateDict};
use layerspec::LayerGraph;
use link::Payload;
use pipeline::optimizer::OptimizerSpec;
use pipeline::{slices, StateDigest, StateName, StateSlice, TensorHasher, TensorMeta, SLICE_BYTES};
use std::collections::BTreeMap;

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

impl Place {
    /// The tensor of this name in slices, or as a whole if it is small.
    fn pieces(&self, name: &str) -> impl Iterator<Item = Unread<Piece>> {
        let (file, start) = (self.file, self.start);
        let slices = slices(name, &self.meta, SLICE_BYTES).into_iter();
        slices.map(move |StateSlice { name, meta, bytes }| {
            let start = start.saturating_add(bytes.start as u64);
            let place = Piece { file, start, bytes: bytes.len(), meta };
            Unread { name, bytes: bytes.len() as u64, place }
        })
    }
}

/// The place of a tensor, or of a slice of one.
pub(crate) struct Piece {
    /// The number of its file.
    file: usize,
    /// Its first byte there.
    start: u64,
    bytes: usize,
    meta: TensorMeta,
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

    /// The parameters and buffers. A large one is cut into slices.
    pub(crate) fn weights(&self) -> Vec<Unread<Piece>> {
        self.unread(|name| !name.optimizer)
    }

    /// As [`StoredState::weights`], the state of the optimizer.
    pub(crate) fn optimizer(&self) -> Vec<Unread<Piece>> {
        self.unread(|name| name.optimizer)
    }

    fn unread(&self, is_wanted: fn(&StateName<'_>) -> bool) -> Vec<Unread<Piece>> {
        let wanted = self.tensors.iter().filter(|(name, _)| is_wanted(&StateName::parse(name)));
        wanted.flat_map(|(name, place)| place.pieces(name)).collect()
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// The file cannot be read, or is not the one that was compared with the manifest.
    pub(crate) fn read(&self, piece: Piece) -> Result<Payload, BossManError> {
        let Piece { file, start, bytes, meta } = piece;
        let lost = || BossManError::Usage("a file of a checkpoint that is not there".into());
        let file = self.files.get(file).ok_or_else(lost)?;
        let content = file.read(start, bytes).map_err(|e| BossManError::io(&file.path, &e))?;
        Ok(Payload { meta, bytes: content.into() })
    }

    /// Its digest, that of [`TrainingState::digest`]. Reads all files, a few megabytes at a time.
    ///
    /// # Errors
    /// A file cannot be read, or is not the one that was compared with the manifest.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        let mut hashes = self.counters.hashes();
        for (name, place) in &self.tensors {
            let mut hasher = TensorHasher::new(&place.meta);
            for piece in place.pieces(name) {
                hasher.update(&self.read(piece.place)?.bytes);
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
            let (file, start, bytes) = (*file, *start, bytes.ok_or_else(too_large)?);
            let piece = Piece { file, start, bytes, meta: meta.clone() };
            let tensor = from_payload(&self.read(piece)?)?;
            let name = StateName::parse(sent);
            match name.optimizer {
                true => drop(optimizer.insert(name.name.to_string(), tensor)),
                false => weights.insert(name.name, &tensor),
            }
        }
        Ok(TrainingState { weights, optimizer, counters: self.counters })
    }
}
