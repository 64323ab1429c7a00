//! Checks that runs which must fail say why, and that the device works afterwards.

use crate::data::Source;
use crate::run_file::{Data, Length, RunFile};
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::{save, Scene};
use crate::self_check::trial::train;
use crate::{BossManError, Recompute, ScheduleKind};
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The layer that looks tokens up.
const LOOKUP: &str = "words";
/// The features between the two layers of a model that is too large.
const FEATURES: u64 = 65_536;
const BYTES_OF_FLOAT: u64 = 4;
/// How much more memory than the device has that model's first output takes.
const TIMES_TOO_LARGE: u64 = 8;

/// Trains with a token that is not in the vocabulary, and with too little memory.
///
/// # Errors
/// No error, one that does not say why, or a device that does not work afterwards.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    let wrong_token = wrong_token(scene).await?;
    still_works(scene, "a wrong token").await?;
    let findings = Findings::default().figure("wrong_token", wrong_token);
    let Some(memory) = scene.devices.memory else {
        let text = "a wrong token is an error; too little memory is checked on GPUs only";
        return Ok(findings.text(text));
    };
    let too_large = too_large(scene, memory).await?;
    still_works(scene, "too little memory").await?;
    Ok(findings
        .figure("too_large", too_large)
        .text("a wrong token and too little memory are errors, after which the device works"))
}

/// The error of a run with a token that is not in the vocabulary.
async fn wrong_token(scene: &Scene) -> Result<String, Problem> {
    let shape: [i64; 2] = [scene.sizes.batch.into(), scene.sizes.length.into()];
    let integers = (Kind::Int64, Device::Cpu);
    let wrong = i64::from(scene.sizes.vocabulary) + 5;
    let tokens = Tensor::f_full(shape, wrong, integers).map_err(failed)?;
    let targets = Tensor::f_zeros(shape, integers).map_err(failed)?;
    let path = scene.file("wrong-token.safetensors");
    save(&path, &tokens, &targets)?;
    let mut file = one_step(scene.run_file());
    file.data = file.data.map(|data| Data { train: Source::File(path), ..data });
    let error = error_of(scene, &file, "a token that is not in the vocabulary").await?;
    match error.contains(LOOKUP) && error.contains(&wrong.to_string()) {
        true => Ok(error),
        false => Err(Problem::new(format!(
            "the error of token {wrong} names neither the token nor the layer {LOOKUP}: {error}"
        ))),
    }
}

/// The error of a run whose first output does not fit the device. The parameters are small, because
/// they are drawn in the memory of the host.
async fn too_large(scene: &Scene, memory: u64) -> Result<String, Problem> {
    let model = format!(
        "model: too-large\ninputs:\n  x: [batch, seq, 1]\nlayers:\n  - Linear: {{in_features: 1, \
         out_features: {FEATURES}}}\n  - Linear: {{in_features: {FEATURES}, out_features: 1}}\n"
    );
    let model = scene.write("too-large.yaml", &model)?;
    let run = format!(
        "model: {}\ndata: {{train: too-large.safetensors}}\nloss: MSELoss\noptimizer: {{SGD: {{lr: \
         1e-3}}}}\nbatch_size: 1\nmicrobatches: 1\nsteps: 1\n",
        model.file_name().unwrap_or_default().to_string_lossy()
    );
    let rows = memory / (FEATURES * BYTES_OF_FLOAT) * TIMES_TOO_LARGE;
    let rows = i64::try_from(rows.max(1)).unwrap_or(i64::MAX);
    let samples = Tensor::f_ones([1, rows, 1], (Kind::Float, Device::Cpu)).map_err(failed)?;
    save(&scene.file("too-large.safetensors"), &samples, &samples)?;
    let mut file = one_step(RunFile::from_file(scene.write("too-large-run.yaml", &run)?)?);
    // Otherwise the run would begin again, with this.
    file.recompute = Recompute::Full;
    let error = error_of(scene, &file, "a model that does not fit the device").await?;
    match error.contains("out of memory") {
        true => Ok(error),
        false => Err(Problem::new(format!(
            "the error of too little memory does not say `out of memory`: {error}"
        ))),
    }
}

fn one_step(file: RunFile) -> RunFile {
    RunFile { schedule: Some(ScheduleKind::OneFOneB), length: Some(Length::Steps(1)), ..file }
}

/// The error of a run that must fail.
async fn error_of(scene: &Scene, file: &RunFile, what: &str) -> Result<String, Problem> {
    match train(file, scene.fleet(1)).await {
        Err(error) => Ok(error.to_string()),
        Ok(_) => Err(Problem::new(format!("{what} is no error; report this"))),
    }
}

/// Trains a step on the device.
async fn still_works(scene: &Scene, what: &str) -> Result<(), Problem> {
    let after = format!("a run after the error of {what}");
    let steps = train(&one_step(scene.run_file()), scene.fleet(1)).await;
    let steps = steps.map_err(|error| Problem::of(&after, &error))?;
    match steps.iter().all(|report| report.loss.is_finite()) {
        true => Ok(()),
        false => Err(Problem::new(format!("{after}: its loss is not finite; restart the machine"))),
    }
}

fn failed(error: tch::TchError) -> Problem {
    BossManError::from(TensorError::from(error)).into()
}
