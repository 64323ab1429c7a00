//! Writes a checkpoint while its tensors arrive.

use super::background_thread::BackgroundThread;
use super::draft::{Complete, Draft};
use super::folder::Folder;
use super::layout::{nan_problem, plan, state_name, wrong, FileLayout, Key, TensorLayout};
use super::manifest::{folder_of_step, FileEntry, Manifest, RunRecord};
use super::store::{with, Checkpoints, MANIFEST};
use super::training_state::{Sizes, TrainingState};
use crate::data::tensor_payload::{has_nan, to_payload};
use crate::session::position::Counters;
use crate::BossManError;
use link::Payload;
use pipeline::{StateName, TensorMeta};
use std::collections::BTreeMap;
use tch::Tensor;

/// A checkpoint that is written while its tensors arrive, in any order.
///
/// On this machine, pieces go to their places in the files at once. In an object store, a file is
/// collected in memory and sent when it is complete. A file that is filled in the order of
/// [`CheckpointWriter::order`] is hashed as it arrives. What comes out of order is read back.
///
/// After an error nothing of the checkpoint is left. A writer that is dropped leaves files without
/// a manifest, which the next writer of this step deletes.
pub(crate) struct CheckpointWriter {
    checkpoints: Checkpoints,
    /// The checkpoint's folder.
    name: String,
    counters: Counters,
    run: RunRecord,
    files: Vec<Output>,
    /// The file of each tensor, and its place among the file's tensors.
    places: BTreeMap<Key, (usize, usize)>,
    /// Hashes and writes. A step goes before it.
    thread: BackgroundThread,
    /// Whether every write so far has ended, and well.
    is_intact: bool,
}

/// A file of the checkpoint.
struct Output {
    /// Its path in the checkpoint's folder.
    name: String,
    /// Its path in the folder of checkpoints.
    place: String,
    bytes: u64,
    tensors: Vec<TensorLayout>,
    /// The number of tensors of which elements are missing.
    missing: usize,
    /// `None` when it is complete.
    draft: Option<Draft>,
    /// Its line of the manifest when it is complete.
    entry: Option<FileEntry>,
}

impl Checkpoints {
    /// Writes a state, its manifest last. Replaces a checkpoint of the same step.
    ///
    /// # Errors
    /// A file cannot be written. There is then no checkpoint of this step. Its files are deleted,
    /// because on a full disk they would take the room of the next checkpoint.
    pub(crate) async fn write(
        &self,
        mut state: TrainingState,
        run: RunRecord,
    ) -> Result<Manifest, BossManError> {
        let (heads, sizes) = (state.heads()?, state.sizes());
        let mut writer = self.begin(state.counters, run, &heads, &sizes).await?;
        for name in writer.order() {
            let Some(tensor) = state.take(&name) else { continue };
            match payload_of(tensor).await {
                Ok(payload) => writer.add(&name, &payload).await?,
                Err(error) => return Err(writer.abort(error).await),
            }
        }
        writer.finish().await
    }

    /// Begins a checkpoint of tensors that arrive later. Replaces a checkpoint of the same step.
    ///
    /// `heads` has the name and the meta of every tensor that will come: a parameter or buffer
    /// `0.weight`, optimizer state `optimizer/0.weight.exp_avg`, or flat shards of that from
    /// several replicas, `optimizer/0.weight.exp_avg[1024]`. `sizes` has the shape of each
    /// parameter and buffer of the model.
    ///
    /// # Errors
    /// A tensor is none of the model or is announced wrongly, or a file of the same step cannot be
    /// deleted.
    pub(crate) async fn begin(
        &self,
        counters: Counters,
        run: RunRecord,
        heads: &[(String, TensorMeta)],
        sizes: &Sizes,
    ) -> Result<CheckpointWriter, BossManError> {
        let planned = plan(heads, sizes)?;
        let name = folder_of_step(counters.step);
        self.remove(&name).await?;
        let (mut files, mut places) = (Vec::with_capacity(planned.len()), BTreeMap::new());
        for (file, layout) in planned.into_iter().enumerate() {
            for (place, tensor) in layout.tensors.iter().enumerate() {
                places.insert(tensor.key.clone(), (file, place));
            }
            files.push(Output::of(layout, &name, &self.folder));
        }
        let checkpoints = self.clone();
        let thread = BackgroundThread::start("checkpoint");
        let thread =
            thread.map_err(|e| self.folder.file_error(&name, format!("no thread: {e}")))?;
        Ok(CheckpointWriter {
            checkpoints,
            name,
            counters,
            run,
            files,
            places,
            thread,
            is_intact: true,
        })
    }
}

impl CheckpointWriter {
    /// The names of the tensors in the order in which files need not be read back.
    pub(crate) fn order(&self) -> Vec<String> {
        let tensors = self.files.iter().flat_map(|file| &file.tensors);
        tensors.map(|tensor| state_name(&tensor.key)).collect()
    }

    /// Adds a whole tensor under its name, or flat elements of it: `slice/0.weight[START]`,
    /// `optimizer/0.weight.exp_avg[START]`. `START` counts the elements of the whole tensor. A
    /// scalar of several replicas has the names under which it was announced.
    ///
    /// # Errors
    /// The piece was not announced, is not a part of its tensor or came before, or a file cannot be
    /// written. There is then no checkpoint of this step and no file of it.
    pub(crate) async fn add(&mut self, name: &str, payload: &Payload) -> Result<(), BossManError> {
        self.check_intact()?;
        // This stays if the caller drops the future before its end.
        self.is_intact = false;
        match self.add_piece(name, payload).await {
            Ok(()) => {
                self.is_intact = true;
                Ok(())
            }
            Err(error) => Err(self.abort(error).await),
        }
    }

    /// Writes the manifest. Everything has come.
    ///
    /// # Errors
    /// Elements are missing, or a file cannot be written. There is then no checkpoint of this step
    /// and no file of it.
    pub(crate) async fn finish(mut self) -> Result<Manifest, BossManError> {
        self.check_intact()?;
        match self.write_manifest().await {
            Ok(manifest) => {
                self.checkpoints.known().note_whole(self.counters.step);
                Ok(manifest)
            }
            Err(error) => Err(self.abort(error).await),
        }
    }

    fn check_intact(&self) -> Result<(), BossManError> {
        match self.is_intact {
            true => Ok(()),
            false => Err(BossManError::Usage(format!(
                "{} of {} is not written, because an earlier part of it was not",
                self.name,
                self.checkpoints.named()
            ))),
        }
    }

    async fn add_piece(&mut self, name: &str, payload: &Payload) -> Result<(), BossManError> {
        let StateName { optimizer, name: of, start } = StateName::parse(name);
        let stranger = || wrong(name, "was not announced");
        let place = self.places.get(&(optimizer, of.to_string())).copied();
        let (file, place) = place.ok_or_else(stranger)?;
        let file = self.files.get_mut(file).ok_or_else(stranger)?;
        let at = file.accept(place, start, payload).map_err(|problem| wrong(name, &problem))?;
        let folder = &self.checkpoints.folder;
        if let Some(at) = at {
            if !file.write(&self.thread, folder, at, payload.clone()).await? {
                return Err(folder.file_error(&self.name, nan_problem(of)));
            }
        }
        match file.missing {
            0 => file.complete(&self.thread, folder).await,
            _ => Ok(()),
        }
    }

    async fn write_manifest(&mut self) -> Result<Manifest, BossManError> {
        let tensors = self.files.iter().flat_map(|file| &file.tensors);
        let missing = tensors.filter(|tensor| !tensor.arrivals.is_whole());
        let problem = |tensor: &TensorLayout| {
            format!("`{}`: {}", state_name(&tensor.key), tensor.arrivals.missing())
        };
        let problems: Vec<String> = missing.map(problem).collect();
        if !problems.is_empty() {
            return Err(BossManError::StateDict(problems));
        }
        let folder = &self.checkpoints.folder;
        let mut entries = Vec::with_capacity(self.files.len());
        for file in &mut self.files {
            // Nothing comes for a file whose tensors are all empty.
            file.complete(&self.thread, folder).await?;
            entries.extend(file.entry.take());
        }
        let manifest = Manifest::new(self.counters, self.run.clone(), entries)
            .map_err(|e| folder.file_error(&self.name, e))?;
        let text =
            serde_json::to_vec_pretty(&manifest).map_err(|e| folder.file_error(&self.name, e))?;
        folder.put(&format!("{}/{MANIFEST}", self.name), text).await?;
        Ok(manifest)
    }

    /// Deletes what was written. Returns the error, with what cannot be deleted.
    pub(super) async fn abort(&mut self, error: BossManError) -> BossManError {
        self.is_intact = false;
        let files = std::mem::take(&mut self.files);
        // This deletes temporary files, which may be large.
        tokio::task::spawn_blocking(move || drop(files)).await.ok();
        let name = &self.name;
        match self.checkpoints.remove(name).await {
            Ok(()) => error,
            Err(left) => {
                let problem = format!("; and what was written of {name} cannot be deleted: {left}");
                with(error, &problem)
            }
        }
    }
}

impl Output {
    fn of(layout: FileLayout, checkpoint: &str, folder: &Folder) -> Self {
        let FileLayout { name, header, bytes, tensors } = layout;
        let place = format!("{checkpoint}/{name}");
        let draft = Some(Draft::new(folder.path(&place), folder.is_local(), header, bytes));
        let missing = tensors.iter().filter(|tensor| !tensor.arrivals.is_whole()).count();
        Output { name, place, bytes, tensors, missing, draft, entry: None }
    }

    /// Accepts a piece of one of its tensors. Returns its place in the file, unless nothing of it
    /// is kept.
    fn accept(
        &mut self,
        place: usize,
        start: Option<u64>,
        payload: &Payload,
    ) -> Result<Option<u64>, String> {
        let tensor = self.tensors.get_mut(place).ok_or("was not announced")?;
        let was_whole = tensor.arrivals.is_whole();
        let at = tensor.arrivals.accept(start, payload)?;
        if !was_whole && tensor.arrivals.is_whole() {
            self.missing -= 1;
        }
        Ok(at.map(|at| tensor.start + at))
    }

    /// Writes bytes of a tensor, unless they have NaN. Returns whether it wrote them.
    async fn write(
        &mut self,
        thread: &BackgroundThread,
        folder: &Folder,
        at: u64,
        payload: Payload,
    ) -> Result<bool, BossManError> {
        let Some(mut draft) = self.draft.take() else {
            return Err(folder.file_error(&self.place, "was complete before"));
        };
        let write = move || match has_nan(&payload) {
            false => draft.write(at, &payload.bytes).map(|()| Some(draft)),
            true => Ok(None),
        };
        let written = thread.run(write).await;
        self.draft = written.map_err(|e| folder.file_error(&self.place, e))??;
        Ok(self.draft.is_some())
    }

    /// Gives the file its final name, or sends it to the object store, unless that is done.
    async fn complete(
        &mut self,
        thread: &BackgroundThread,
        folder: &Folder,
    ) -> Result<(), BossManError> {
        let Some(draft) = self.draft.take() else { return Ok(()) };
        let complete = thread.run(move || draft.complete()).await;
        let Complete { sha256, unsent } =
            complete.map_err(|e| folder.file_error(&self.place, e))??;
        if let Some(all) = unsent {
            folder.put(&self.place, all).await?;
        }
        self.entry = Some(FileEntry { name: self.name.clone(), bytes: self.bytes, sha256 });
        Ok(())
    }
}

/// The elements of a tensor. They are copied if they are not in one piece.
async fn payload_of(tensor: Tensor) -> Result<Payload, BossManError> {
    let payload = tokio::task::spawn_blocking(move || to_payload(&tensor)).await;
    payload.map_err(|e| BossManError::Usage(format!("encoding a checkpoint: {e}")))?
}
