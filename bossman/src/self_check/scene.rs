//! The files and workers of the runs: a small GPT, random tokens, and a run file.

use crate::fleet::FleetSettings;
use crate::run_file::RunFile;
use crate::self_check::device::Devices;
use crate::self_check::preset::{Preset, Sizes};
use crate::self_check::settings::threads;
use crate::{BossManError, StateDict};
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;
use tensor::random::Key;
use tensor::TensorError;

/// The layers of the GPT of `examples/gpt-sotu`.
const GPT: &str = include_str!("gpt.yaml");

/// The seed of the tokens.
const SEED: u64 = 1;

/// What the runs of a self-check share.
pub(super) struct Scene {
    folder: TempDir,
    run: RunFile,
    pub(super) preset: Preset,
    pub(super) sizes: Sizes,
    pub(super) devices: Devices,
}

impl Scene {
    /// Writes the files into a folder that is deleted at the end.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn new(preset: Preset, devices: Devices) -> Result<Self, BossManError> {
        let sizes = preset.sizes();
        let temporary = std::env::temp_dir();
        let folder = tempfile::tempdir_in(&temporary)
            .map_err(|error| BossManError::io(&temporary, &error))?;
        let run = gpt(folder.path(), &sizes)?;
        Ok(Scene { folder, run, preset, sizes, devices })
    }

    /// Writes the files of a GPT of other sizes.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn other_gpt(&self, sizes: &Sizes) -> Result<RunFile, BossManError> {
        let folder = self.file("other-gpt");
        std::fs::create_dir_all(&folder).map_err(|error| BossManError::io(&folder, &error))?;
        gpt(&folder, sizes)
    }

    /// The path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a text file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, BossManError> {
        write(self.folder.path(), name, text)
    }

    /// The run that every section changes.
    pub(super) fn run_file(&self) -> RunFile {
        self.run.clone()
    }

    /// This number of workers, all on the first device.
    pub(super) fn fleet(&self, workers: usize) -> FleetSettings {
        self.fleet_on([self.devices.first.clone()].into(), workers)
    }

    /// This number of workers, which take the devices in turn.
    pub(super) fn fleet_on(&self, devices: Vec<String>, workers: usize) -> FleetSettings {
        let threads = Some(threads());
        FleetSettings { local: workers, threads, devices, ..FleetSettings::default() }
    }
}

/// Writes the files of a GPT, and reads its run file.
fn gpt(folder: &Path, sizes: &Sizes) -> Result<RunFile, BossManError> {
    write(folder, "model.yaml", &format!("{}{GPT}", variables(sizes)))?;
    let run = write(folder, "run.yaml", &run_text(sizes))?;
    let samples = [i64::from(sizes.batch) * i64::from(sizes.steps), sizes.length.into()];
    let tokens = |name| random_tokens(name, &samples, sizes.vocabulary);
    save(&folder.join("data.safetensors"), &tokens("inputs")?, &tokens("targets")?)?;
    RunFile::from_file(run)
}

/// Saves samples for a run.
///
/// # Errors
/// The file cannot be written.
pub(super) fn save(path: &Path, inputs: &Tensor, targets: &Tensor) -> Result<(), BossManError> {
    let mut data = StateDict::default();
    data.insert("x", inputs);
    data.insert("target", targets);
    data.save(path)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf, BossManError> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|error| BossManError::io(&path, &error))?;
    Ok(path)
}

/// The beginning of the model file.
fn variables(sizes: &Sizes) -> String {
    let Sizes { width, heads, blocks, length, vocabulary, .. } = sizes;
    let scale = 1.0 / f64::from(*width).sqrt();
    format!(
        "model: self-check\nvars:\n  tokens: {vocabulary}\n  length: {length}\n  d: {width}\n  \
         heads: {heads}\n  layers: {blocks}\n  scale: {scale:.10}\n"
    )
}

fn run_text(sizes: &Sizes) -> String {
    let Sizes { batch, microbatches, steps, .. } = sizes;
    format!(
        "model: model.yaml\ndata: {{train: data.safetensors}}\nloss: \
         {{CrossEntropyLoss: {{class_dim: -1}}}}\noptimizer: \
         {{AdamW: {{lr: 1e-3, weight_decay: 0.1}}}}\nbatch_size: {batch}\nmicrobatches: \
         {microbatches}\nsteps: {steps}\nseed: 0\n"
    )
}

fn random_tokens(name: &str, shape: &[i64], vocabulary: u32) -> Result<Tensor, TensorError> {
    let mut stream = Key::new(SEED).text(name).stream(Device::Cpu)?;
    let numbers = stream.uniform(shape, Kind::Float, 0.0, vocabulary.into())?;
    // A number just below the bound may have been rounded to it.
    let tokens = numbers.f_to_kind(Kind::Int64)?;
    Ok(tokens.f_clamp(0, i64::from(vocabulary) - 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;
    use crate::Model;

    #[test]
    fn the_files_of_every_preset_are_right() {
        for preset in [Preset::Tiny, Preset::Small, Preset::Large] {
            let scene = Scene::new(preset, Devices::cpu()).unwrap();
            let file = scene.run_file();
            let model = Model::from_file(&file.model).unwrap();
            let data = file.checked_part(Part::Train, &model).unwrap();
            let sizes = preset.sizes();
            assert_eq!(data.samples(), u64::from(sizes.batch * sizes.steps));
            file.builder(model).check(2).unwrap();
        }
    }
}
