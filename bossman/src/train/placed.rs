//! A run in its folder: where its files go, and who writes them.

use crate::recovery::resume::may_start_fresh;
use crate::run_file::{RunFile, Weights};
use crate::runs::{is_trained_weights, resolve_latest};
use crate::runs::{EventLog, FolderKeeper, RunFolder, RunFolderSettings, TextLog};
use crate::train::epochs::best_path;
use crate::train::settings::TrainOptions;
use crate::BossManError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the run's folder, if it has one: a new one, or with `--resume` the newest of its name.
///
/// # Errors
/// The folder cannot be made, is another run's, or there is none to go on in.
pub(super) fn open_folder(
    file: &RunFile,
    options: &TrainOptions,
) -> Result<Option<Arc<RunFolder>>, BossManError> {
    let Some(settings) = &options.run_folder else { return Ok(None) };
    let there = match options.resume {
        Some(_) => RunFolder::newest(settings)?,
        None => None,
    };
    let folder = match there {
        Some(folder) => folder,
        None => {
            check_may_begin(file, options, settings)?;
            RunFolder::create(settings)?
        }
    };
    Ok(Some(Arc::new(folder)))
}

/// Checks that a run without a folder may begin one. A run file that names the folder of its
/// checkpoints goes on with these.
fn check_may_begin(
    file: &RunFile,
    options: &TrainOptions,
    settings: &RunFolderSettings,
) -> Result<(), BossManError> {
    let in_folder = file.checkpoint.as_ref().is_some_and(|policy| policy.dir.is_none());
    if options.resume.is_none() || may_start_fresh(options) || !in_folder {
        return Ok(());
    }
    let name = settings.name.as_ref().unwrap_or(&settings.derived);
    Err(BossManError::Usage(format!(
        "--resume: there is no run `{name}` in {}; begin it without --resume, or take \
         --resume=if-any",
        settings.runs.display()
    )))
}

/// Puts everything into the folder that the user put nowhere else, and the observers that write
/// there. Files of the user elsewhere are linked.
///
/// # Errors
/// A file in the folder cannot be written, or the model cannot be read.
pub(super) fn place(
    folder: &Arc<RunFolder>,
    file: &mut RunFile,
    options: &mut TrainOptions,
) -> Result<(), BossManError> {
    let carried_out = carried_out(file, options)?;
    let before = RunFile::from_folder(folder.path()).ok();
    if let Some(policy) = &mut file.checkpoint {
        let inside = || folder.file("checkpoints").to_string_lossy().into_owned();
        policy.dir.get_or_insert_with(inside);
    }
    let (last, metrics) = ("weights.safetensors", "metrics.jsonl");
    match &options.save {
        Some(path) => {
            folder.link_to(last, path)?;
            if file.data.as_ref().is_some_and(|data| data.validation.is_some()) {
                let best = best_path(Path::new(last));
                folder.link_to(&best.to_string_lossy(), &best_path(path))?;
            }
        }
        None => options.save = Some(folder.place_of(last)),
    }
    match &options.metrics {
        Some(path) => folder.link_to(metrics, path)?,
        None => options.metrics = Some(folder.place_of(metrics)),
    }
    let shown = options.events.clone();
    options.events = shown
        .clone()
        .with(EventLog::open(folder.file("events.jsonl"), shown.clone())?)
        .with(TextLog::open(folder.file("log.txt"))?)
        .with(FolderKeeper::new(folder.clone(), carried_out, before, shown)?);
    Ok(())
}

/// The run as it is carried out: with the flags, and with absolute paths.
fn carried_out(file: &RunFile, options: &TrainOptions) -> Result<RunFile, BossManError> {
    let mut file = file.clone();
    if let Some(path) = &options.weights {
        file.weights = Some(Weights::of(path.clone()));
    }
    if let Some(weights) = &mut file.weights {
        weights.path = in_the_run_itself(&weights.path);
    }
    file.with_absolute_paths()
}

/// The path of weights in `runs/latest` in the folder to which it leads now. It leads to this run
/// soon.
fn in_the_run_itself(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if is_trained_weights(path) => resolve_latest(folder).join(name),
        _ => path.to_path_buf(),
    }
}
