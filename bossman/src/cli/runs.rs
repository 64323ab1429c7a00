//! `bossman train`, `serve`, `eval` and `predict`: a run's data through its model.

use super::fleet::{until_interrupted, until_stopped, Fleet, Interrupted};
use super::run_argument::{self, Reads, TrainedRun};
use anyhow::Result;
use bossman::data::{Dataset, Part, Source};
use bossman::events::{Console, Events, Stream};
use bossman::output;
use bossman::run_file::RunFile;
use bossman::runs::{RunFolderSettings, RunName};
use bossman::train::{self, describe_steps, Interruption, StopSignal, TrainOptions};
use bossman::{validate, Meaning, Model, Predicted, Predictions, ValidationResult};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "Example: bossman train run.yaml --local 2 --save weights.safetensors \
                        --metrics metrics.jsonl")]
pub(crate) struct Train {
    /// The run file, or the folder of a run.
    run: PathBuf,
    #[command(flatten)]
    fleet: Fleet,
    /// Write a line of JSON for every step.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Write the timelines of the last steps, as measured and as predicted, for Perfetto or
    /// chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Start from these weights (safetensors, PyTorch's names), in place of those that the run file
    /// names. With --resume=if-any, only if the run begins.
    #[arg(long, alias = "init", value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Write the weights after each epoch, and those with the lowest validation loss to
    /// NAME.best.safetensors.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Resume from the last whole checkpoint of the run, or from the one of this name (`bossman
    /// checkpoint ls`). --resume=if-any begins if there is none yet.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    resume: Option<Option<String>>,
    /// Take samples in the order of the file.
    #[arg(long)]
    no_shuffle: bool,
    /// The name of the run's folder [default: `name` of the run file, else the file's stem, or its
    /// folder's name if that is `run`; with a number if a folder of that name exists]
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    name: Option<RunName>,
    /// The folder in which runs have their folders.
    #[arg(long, value_name = "DIR", env = "BOSSMAN_RUNS_DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// After Ctrl-C or SIGTERM, the time for the current step and for saving [default: after
    /// SIGTERM 10, after Ctrl-C no limit]. A second signal ends the run at once; another SIGTERM
    /// only if it comes a second later.
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Leave no folder: weights and metrics are only where --save and --metrics say.
    #[arg(long, conflicts_with = "name")]
    no_run_folder: bool,
    /// Print the result as JSON. Progress goes to standard error.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bossman serve run.yaml --save weights.safetensors             begins with the first worker that \
                        comes
  bossman serve run.yaml --local 1 --save weights.safetensors   this machine takes part, too
To join, on any machine: MODEL_HOST=.. MODEL_PORT=.. MODEL_TICKET=.. worker")]
pub(crate) struct Serve {
    #[command(flatten)]
    train: Train,
}

impl Serve {
    pub(crate) fn run(self) -> Result<()> {
        self.train.train(true)
    }
}

#[derive(clap::Args)]
#[command(after_help = "Example: bossman eval run.yaml --local 2 --weights \
                        weights.best.safetensors --data test")]
pub(crate) struct Eval {
    #[command(flatten)]
    run: TrainedRun,
    #[command(flatten)]
    fleet: Fleet,
    /// Which part of the run's data: train, validation or test.
    #[arg(long, value_name = "PART", default_value = "test", value_parser = part)]
    data: Part,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example: bossman predict run.yaml --local 2 --weights w.safetensors \
                        --data new.csv --to out.csv")]
pub(crate) struct Predict {
    #[command(flatten)]
    run: TrainedRun,
    #[command(flatten)]
    fleet: Fleet,
    /// A part of the run's data (train, validation, test), or a file of inputs without targets.
    #[arg(long, value_name = "PART|FILE", default_value = "test")]
    data: String,
    /// The file for predictions: .csv (the first output), .jsonl or .safetensors.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Write the outputs alone, as the model gives them.
    #[arg(long)]
    raw: bool,
}

/// What an interrupted run has saved.
fn saved_by(interruption: &Interruption) -> String {
    let Interruption { step, weights, checkpoint } = interruption;
    if *step == 0 {
        return "training had not begun".into();
    }
    let weights = match weights {
        Some(path) => format!("the weights are in {}", path.display()),
        None => "its weights are not saved".into(),
    };
    let checkpoint = match checkpoint {
        Some(of) if of == step => "--resume goes on from its checkpoint".into(),
        Some(of) => format!("--resume goes on from the checkpoint of step {of}"),
        None => "there is no checkpoint to go on from".into(),
    };
    format!("step {step} is done; {weights}; {checkpoint}")
}

fn run_name(text: &str) -> Result<RunName, String> {
    RunName::parse(text).ok_or_else(|| format!("expected {}", RunName::EXPECTED))
}

fn part(text: &str) -> Result<Part, String> {
    match text {
        "train" => Ok(Part::Train),
        "validation" => Ok(Part::Validation),
        "test" => Ok(Part::Test),
        _ => Err("expected train, validation or test".into()),
    }
}

impl Train {
    pub(crate) fn run(self) -> Result<()> {
        self.train(false)
    }

    fn train(self, pool: bool) -> Result<()> {
        let (file, folder) = run_argument::run_file(&self.run)?;
        let run_folder = (!self.no_run_folder).then(|| RunFolderSettings {
            runs: self.runs_dir,
            name: self.name.or_else(|| file.name.as_deref().and_then(RunName::parse)),
            derived: match &folder {
                Some(folder) => RunName::of_run_file(&folder.join("run.yaml")),
                None => RunName::of_run_file(&self.run),
            },
            resume_in: folder,
        });
        let stream = if self.json { Stream::Stderr } else { Stream::Stdout };
        let settings = TrainOptions {
            pool,
            fleet: self.fleet.settings(),
            metrics: self.metrics,
            trace: self.trace,
            weights: self.weights,
            save: self.save,
            resume: self.resume,
            no_shuffle: self.no_shuffle,
            events: Events::on(Console::new(stream)),
            run_folder,
            stop: StopSignal::default(),
        };
        let grace = self.grace.map(Duration::from_secs);
        let (outcome, code) = until_stopped(&settings.stop, grace, train::run(&file, &settings))?;
        if let Some(interruption) = &outcome.interrupted {
            let text = saved_by(interruption);
            return Err(Interrupted { code: code.unwrap_or(130), text }.into());
        }
        if self.json {
            let best = outcome.best.as_ref().map(
                |(step, validation)| json!({"step": step, "validation": validation.to_json()}),
            );
            let test = outcome.test.as_ref().map(ValidationResult::to_json);
            let seconds = outcome.time.as_secs_f64();
            output::print_line(
                &json!({
                    "steps": outcome.steps,
                    "resumed_after": outcome.resumed_after,
                    "seconds": seconds,
                    "best": best,
                    "test": test
                })
                .to_string(),
            )?;
            return Ok(());
        }
        let (steps, before) = (outcome.steps, outcome.resumed_after);
        output::print_line(&describe_steps(steps, before, outcome.time))?;
        if let Some(test) = &outcome.test {
            output::print_line(&format!("test {}", describe(test)))?;
        }
        if let Some(path) = &outcome.weights {
            output::print_line(&format!("weights written to {}", path.display()))?;
        }
        if let Some(path) = &outcome.best_weights {
            output::print_line(&format!("those of the best epoch to {}", path.display()))?;
        }
        Ok(())
    }
}

impl Eval {
    pub(crate) fn run(self) -> Result<()> {
        let (file, weights) = self.run.open(Reads::Data)?;
        let data = file.checked_part(self.data, &Model::from_file(&file.model)?)?;
        let (samples, fleet) = (data.samples(), self.fleet.settings());
        let found = until_interrupted("nothing was found", async {
            let mut boss = file.load_model(&fleet, weights.as_deref()).await?;
            let found = validate(&mut boss, &file, self.data, &data).await?;
            boss.shutdown().await;
            Ok(found)
        })?;
        if self.json {
            let mut json = found.to_json();
            json["samples"] = samples.into();
            output::print_line(&json.to_string())?;
        } else {
            output::print_line(&format!("{samples} samples: {}", describe(&found)))?;
        }
        Ok(())
    }
}

impl Predict {
    pub(crate) fn run(self) -> Result<()> {
        let (file, weights) = self.run.open(Reads::Data)?;
        let file = file.with_data_at_boss();
        let model = Model::from_file(&file.model)?;
        let file = match file.learned_table()? {
            Some(learned) => file.with_learned_table(&learned),
            None => file,
        };
        let other = part(&self.data).is_err().then(|| PathBuf::from(&self.data));
        file.check_output("--to", &self.to, weights.as_deref(), other.as_deref())?;
        let (source, data) = match part(&self.data) {
            Ok(part) => (file.source(part).cloned(), file.part(part, &model)?),
            Err(_) => {
                let source = file.source_like_train(PathBuf::from(&self.data));
                let normalize = file.data.as_ref().and_then(|data| data.normalize.as_ref());
                let graph = model.graph();
                let data =
                    Dataset::open_with_or_without_targets(&source, graph, &file.loss, normalize)?;
                (Some(source), data)
            }
        };
        let predictions = Predictions::create(&self.to)?;
        let predictions = match self.raw {
            true => predictions,
            false => predictions.described(&file.loss, meaning(&file, source.as_ref())?),
        };
        let (fleet, together) = (self.fleet.settings(), file.batch_size);
        let predicted = until_interrupted("predictions are not complete", async {
            let mut boss = file.load_model(&fleet, weights.as_deref()).await?;
            let predicted = predictions.of(&mut boss, &data, together).await?;
            boss.shutdown().await;
            Ok(predicted)
        })?;
        let Predicted { samples, nan_samples, first } = predicted;
        if let Some(first) = first {
            output::warn(&format!(
                "warning: the model gives NaN for {nan_samples} of {samples} samples, first for \
                 sample {}, counted from 1; its weights may hold NaN or have grown too large",
                data.number(first as i64).unwrap_or(first as i64).saturating_add(1)
            ));
        }
        output::print_line(&format!(
            "predictions for {samples} samples written to {}",
            self.to.display()
        ))?;
        Ok(())
    }
}

/// What the numbers of the model mean, by the data that it was trained on and by this data.
fn meaning(file: &RunFile, source: Option<&Source>) -> Result<Meaning> {
    let ids = match source {
        Some(Source::Columns(table)) => table.spec.id.clone().zip(table.ids()?),
        _ => None,
    };
    let data = file.data.as_ref();
    let columns = data.and_then(|data| data.columns());
    Ok(Meaning {
        // The data to train on may be elsewhere now.
        class_names: data.and_then(|data| data.train.class_names().ok().flatten()),
        ids,
        transform: columns.map(|spec| spec.target.transform).unwrap_or_default(),
    })
}

fn describe(validation: &ValidationResult) -> String {
    match &validation.translations {
        Some(translations) => {
            format!(
                "{}, BLEU {:.2} over {} pairs",
                validation.score, translations.bleu, translations.pairs
            )
        }
        None => validation.score.to_string(),
    }
}
