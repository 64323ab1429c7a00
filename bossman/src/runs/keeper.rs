//! Keeps a run's folder up to date: `run.yaml`, `model.yaml`, the address of the boss, and the link
//! to the newest run.

use super::files::write;
use super::live_boss::{remove_port, write_port};
use super::owner::mark_as_own;
use super::RunFolder;
use crate::events::{Event, Events, Observer, PlannedStage, WaitReason};
use crate::receipt::RECEIPT;
use crate::run_file::{RunFile, TABLE};
use crate::BossManError;
use std::fmt::Write as _;
use std::sync::Arc;

/// The copy of the model file.
const MODEL: &str = "model.yaml";

/// Writes the run as it is carried out.
pub(crate) struct FolderKeeper {
    folder: Arc<RunFolder>,
    file: RunFile,
    /// The run as the folder had it before this process.
    before: Option<RunFile>,
    /// The text of the model file, until the folder has its copy.
    model: Option<Vec<u8>>,
    /// The workers that have joined, with their threads.
    workers: Vec<(u16, u32)>,
    planned: Option<(String, Vec<PlannedStage>, String)>,
    /// Whether the folder has the files of a session.
    is_kept: bool,
    warnings: Events,
}

impl FolderKeeper {
    /// Keeps this folder. `file` is the run with its flags, and with absolute paths; `before` is
    /// the one that an earlier process left there. The model is read now, because the user may
    /// change its file while the run lasts. `warnings` gets what fails in a later session.
    ///
    /// # Errors
    /// The model cannot be read.
    pub(crate) fn new(
        folder: Arc<RunFolder>,
        mut file: RunFile,
        before: Option<RunFile>,
        warnings: Events,
    ) -> Result<Self, BossManError> {
        let from = std::mem::replace(&mut file.model, MODEL.into());
        let mut model = None;
        if from != folder.file(MODEL) {
            let has_files = crate::Model::from_file(&from)?.files().next().is_some();
            model = Some(std::fs::read(&from).map_err(|e| BossManError::io(&from, &e))?);
            if has_files {
                // Their paths are relative to it.
                file.model = from;
            }
        }
        let (workers, planned) = (Vec::new(), None);
        let is_kept = false;
        Ok(FolderKeeper { folder, file, before, model, workers, planned, is_kept, warnings })
    }

    /// Copies the model once.
    fn copy_model(&mut self) -> Result<(), BossManError> {
        let Some(text) = &self.model else { return Ok(()) };
        write(&self.folder.file(MODEL), text)?;
        self.model = None;
        Ok(())
    }

    /// What was learned from the table to train on, if it is one.
    fn write_table(&self) -> Result<(), BossManError> {
        let Some(learned) = self.file.learned_table()? else { return Ok(()) };
        let path = self.folder.file(TABLE);
        let text = serde_json::to_vec_pretty(&learned).map_err(|e| BossManError::file(&path, e))?;
        write(&path, &text)
    }

    /// Writes the files of a session that begins.
    fn keep(&mut self) -> Result<(), BossManError> {
        self.copy_model()?;
        self.write_table()?;
        self.write_run()?;
        self.folder.make_latest()
    }

    fn write_run(&self) -> Result<(), BossManError> {
        let mut text = String::from("# The run as it was carried out. Written by bossman.\n");
        for (worker, threads) in &self.workers {
            writeln!(text, "# worker {worker}: {threads} threads").ok();
        }
        if let Some((schedule, stages, why)) = &self.planned {
            let cuts: Vec<_> = stages.iter().skip(1).map(|stage| &*stage.first_layer).collect();
            writeln!(text, "# schedule: {schedule} ({why}), cuts: [{}]", cuts.join(", ")).ok();
        }
        text.push_str(&self.file.to_yaml());
        write(&self.folder.file("run.yaml"), text.as_bytes())?;
        mark_as_own(self.folder.path(), text.as_bytes())
    }
}

impl Observer for FolderKeeper {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        match event {
            Event::Listening { port } => write_port(self.folder.path(), *port)?,
            // Those that remain join no second time.
            Event::Waiting { reason: WaitReason::TooFewRemain, .. } => {}
            Event::Waiting { .. } => self.workers.clear(),
            Event::Left { worker, while_waiting: true, .. } => {
                self.workers.retain(|(number, _)| *number != worker.0);
            }
            Event::Joined { worker, threads, missing: Some(_), .. } => {
                self.workers.push((worker.0, *threads));
            }
            Event::Started { microbatches, from, .. } => {
                self.file.microbatches = *microbatches;
                if let (false, Some(_), Some(before)) = (self.is_kept, from, self.before.take()) {
                    // A run that goes on began with the weights of its first process.
                    self.file.weights = before.weights;
                }
                // It is of the run so far, which goes on.
                std::fs::remove_file(self.folder.file(RECEIPT)).ok();
                match self.keep() {
                    Err(error) if self.is_kept => self.warnings.warn(format!(
                        "the run's folder is not up to date, and training goes on: {error}"
                    )),
                    kept => kept?,
                }
                self.is_kept = true;
            }
            Event::Planned { schedule, stages, why } => {
                self.planned = Some((schedule.clone(), stages.clone(), why.clone()));
                if self.is_kept {
                    self.write_run()?;
                }
            }
            // The boss soon listens no more, and the receipt may take long. The log tells the end.
            Event::Ended { .. } | Event::Interrupted { .. } => remove_port(self.folder.path()),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LiveBoss, RunFolderSettings, RunName};
    use super::*;
    use crate::events::StateSource;
    use crate::run_file::Weights;
    use std::path::Path;
    use std::time::Duration;

    fn folder(place: &Path) -> Arc<RunFolder> {
        let folder = RunFolder::create(&RunFolderSettings {
            runs: place.join("runs"),
            name: None,
            derived: RunName::parse("digits").unwrap(),
            resume_in: None,
        });
        Arc::new(folder.unwrap())
    }

    /// The user changes it, and deletes it, while the run lasts.
    #[test]
    fn the_model_is_the_one_that_the_run_began_with() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let model = place.path().join("digits.yaml");
        std::fs::copy("../examples/digits/digits.yaml", &model).unwrap();
        let before = std::fs::read(&model).unwrap();
        let file = RunFile::from_file("../examples/digits/run.yaml").unwrap();
        let file = RunFile { model: model.clone(), ..file };
        let mut keeper =
            FolderKeeper::new(folder.clone(), file, None, Events::unobserved()).unwrap();
        std::fs::write(&model, "no model").unwrap();
        for _session in 0..2 {
            keeper.copy_model().unwrap();
            assert!(std::fs::read(folder.file(MODEL)).unwrap() == before);
            std::fs::remove_file(&model).ok();
        }
        assert_eq!(keeper.file.model, Path::new(MODEL));
    }

    /// With `--weights` and `--resume=if-any`, it depends on what is found.
    #[test]
    fn the_weights_are_those_that_the_run_began_with() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let file = RunFile::from_file("../examples/digits/run.yaml").unwrap();
        let with = |name: &str| {
            let weights = Some(Weights::of(place.path().join(name)));
            RunFile { weights, ..file.clone() }.with_absolute_paths().unwrap()
        };
        let checkpoint = Some(StateSource::Checkpoint { step: 5 });
        for (before, from, expected) in [
            (None, None, "new"),
            (None, checkpoint, "new"),
            (Some(with("old")), None, "new"),
            (Some(with("old")), checkpoint, "old"),
        ] {
            let events = Events::unobserved();
            let mut keeper =
                FolderKeeper::new(folder.clone(), with("new"), before, events).unwrap();
            let (steps, done, microbatches, metrics_bytes) = (9, 5, 2, 0);
            let pool = false;
            let started =
                |from| Event::Started { steps, done, from, microbatches, metrics_bytes, pool };
            keeper.on_event(&started(from)).unwrap();
            // A later session of this process, after a loss.
            keeper.on_event(&started(checkpoint)).unwrap();
            let weights = RunFile::from_folder(folder.path()).unwrap().weights.unwrap();
            assert_eq!(weights.path, place.path().join(expected));
        }
    }

    #[test]
    fn the_address_is_there_while_the_boss_listens() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let file = RunFile::from_file("../examples/digits/run.yaml").unwrap();
        let mut keeper =
            FolderKeeper::new(folder.clone(), file, None, Events::unobserved()).unwrap();
        let ended = Event::Ended { steps: 9, time: Duration::ZERO, error: None };
        let interrupted = Event::Interrupted { step: Some(3), weights: None, checkpoint: None };
        for end in [ended, interrupted] {
            keeper.on_event(&Event::Listening { port: 7 }).unwrap();
            assert_eq!(LiveBoss::of(folder.path()).unwrap(), LiveBoss::Here { port: 7 });
            keeper.on_event(&end).unwrap();
            assert_eq!(LiveBoss::of(folder.path()).unwrap(), LiveBoss::Silent, "{end:?}");
        }
    }
}
