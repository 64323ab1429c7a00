//! The run file: what `bossman train` is told, as checked values.

use crate::BossManError;
use layerspec::yaml::{self, Choice, Mapping, Node, COUNT, FLAG, NON_NEGATIVE, NUMBER, PROBABILITY, SIZE, TEXT};
use layerspec::Fault;
use pipeline::optimizer::AdamArgs;
use pipeline::{Cuts, LossSpec, OptimizerSpec, ScheduleKind};
use std::path::{Path, PathBuf};

/// A run: model, data and how to train.
///
/// ```
/// use bossman::run_file::{Length, RunFile};
/// let run = RunFile::from_file("../examples/digits/run.yaml")?;
/// assert_eq!(run.batch_size, 32);
/// assert_eq!(run.length, Length::Epochs(20));
/// # Ok::<(), bossman::BossManError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunFile {
    /// The model file.
    pub model: PathBuf,
    /// Samples to train on.
    pub train: PathBuf,
    /// Samples to test on at the end.
    pub test: Option<PathBuf>,
    /// The loss.
    pub loss: LossSpec,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Samples in a step; the last batch of an epoch may be smaller.
    pub batch_size: u64,
    /// Into how many microbatches a batch is cut; 0 for one a worker.
    pub microbatches: u32,
    /// When training ends.
    pub length: Length,
    /// What weights, dropout and the order of samples are drawn from.
    pub seed: u64,
    /// The order of work.
    pub schedule: ScheduleKind,
    /// Where the model is cut.
    pub cuts: Cuts,
}

/// When training ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// After the data has been seen that often.
    Epochs(u64),
    /// After that many steps.
    Steps(u64),
}

const KEYS: [&str; 11] =
    ["model", "data", "loss", "optimizer", "batch_size", "microbatches", "epochs", "steps", "seed", "schedule", "cuts"];

impl RunFile {
    /// Reads a run file. Paths in it are relative to it.
    ///
    /// # Errors
    /// With file, line and column: an unknown or missing key, a value of the wrong type.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        let path = path.as_ref();
        let text = yaml::read_file(path)?;
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        Ok(parse(&text, folder).map_err(|fault| fault.in_file(&path.display().to_string()))?)
    }
}

fn parse(text: &str, folder: &Path) -> Result<RunFile, Fault> {
    let root = yaml::parse(text)?;
    let run = root.mapping("the run file", "key", &KEYS)?;
    let data = run.need("data")?.mapping("`data`", "key", &["train", "test"])?;
    let at = |path: String| folder.join(path);
    let optimizer_node = run.need("optimizer")?;
    let optimizer = optimizer(&optimizer_node.choice("`optimizer`", "an optimizer")?)?;
    optimizer.check().map_err(|why| Fault::new(optimizer_node.place, why))?;
    Ok(RunFile {
        model: at(run.required("model", &TEXT)?),
        train: at(data.required("train", &TEXT)?),
        test: data.optional("test", &TEXT)?.map(at),
        loss: loss(&run.need("loss")?.choice("`loss`", "a loss")?)?,
        optimizer,
        batch_size: run.required("batch_size", &SIZE)?,
        microbatches: microbatches(&run)?,
        length: length(&run, &root)?,
        seed: run.optional("seed", &COUNT)?.unwrap_or(0),
        schedule: schedule(&run)?,
        cuts: cuts(&run)?,
    })
}

fn microbatches(run: &Mapping<'_>) -> Result<u32, Fault> {
    let Some(count) = run.optional("microbatches", &SIZE)? else { return Ok(0) };
    let node = run.need("microbatches")?;
    u32::try_from(count).map_err(|_| node.unexpected("`microbatches`", "a smaller number"))
}

fn length(run: &Mapping<'_>, root: &Node) -> Result<Length, Fault> {
    match (run.optional("epochs", &SIZE)?, run.optional("steps", &SIZE)?) {
        (Some(epochs), None) => Ok(Length::Epochs(epochs)),
        (None, Some(steps)) => Ok(Length::Steps(steps)),
        (Some(_), Some(_)) => Err(Fault::new(run.need("steps")?.place, "give `epochs` or `steps`, not both")),
        (None, None) => Err(Fault::new(root.place, "`epochs` or `steps` is missing: when does training end?")),
    }
}

fn schedule(run: &Mapping<'_>) -> Result<ScheduleKind, Fault> {
    let Some(name) = run.optional("schedule", &TEXT)? else { return Ok(ScheduleKind::default()) };
    let place = run.need("schedule")?.place;
    let names = ScheduleKind::NAMES.map(|(name, _)| name);
    name.parse().map_err(|why: String| Fault::new(place, why).suggesting(layerspec::nearest(&name, names)))
}

fn cuts(run: &Mapping<'_>) -> Result<Cuts, Fault> {
    let Some(node) = run.get("cuts") else { return Ok(Cuts::Auto) };
    if node.as_text() == Some("auto") {
        return Ok(Cuts::Auto);
    }
    let expected = "`auto` or a list of layer names";
    let names = node.list("`cuts`", expected)?.iter().map(|name| name.read("a cut", &TEXT));
    Ok(Cuts::At(names.collect::<Result<_, _>>()?))
}

fn loss(choice: &Choice<'_>) -> Result<LossSpec, Fault> {
    match choice.name {
        "MSELoss" => {
            choice.arguments(&[])?;
            Ok(LossSpec::MSELoss)
        }
        "CrossEntropyLoss" => {
            let arguments = choice.arguments(&["label_smoothing"])?;
            let label_smoothing = arguments.optional("label_smoothing", &PROBABILITY)?.unwrap_or(0.0);
            Ok(LossSpec::CrossEntropyLoss { label_smoothing })
        }
        _ => Err(choice.unknown("loss", &["MSELoss", "CrossEntropyLoss"])),
    }
}

fn optimizer(choice: &Choice<'_>) -> Result<OptimizerSpec, Fault> {
    let adam = |default_decay: f64| {
        let args = choice.arguments(&["lr", "betas", "eps", "weight_decay"])?;
        Ok(AdamArgs {
            lr: args.optional("lr", &NON_NEGATIVE)?.unwrap_or(1e-3),
            betas: betas(&args)?,
            eps: args.optional("eps", &NON_NEGATIVE)?.unwrap_or(1e-8),
            weight_decay: args.optional("weight_decay", &NON_NEGATIVE)?.unwrap_or(default_decay),
        })
    };
    match choice.name {
        "SGD" => {
            let args = choice.arguments(&["lr", "momentum", "dampening", "weight_decay", "nesterov"])?;
            Ok(OptimizerSpec::SGD {
                lr: args.optional("lr", &NON_NEGATIVE)?.unwrap_or(1e-3),
                momentum: args.optional("momentum", &NON_NEGATIVE)?.unwrap_or(0.0),
                dampening: args.optional("dampening", &NUMBER)?.unwrap_or(0.0),
                weight_decay: args.optional("weight_decay", &NON_NEGATIVE)?.unwrap_or(0.0),
                nesterov: args.optional("nesterov", &FLAG)?.unwrap_or(false),
            })
        }
        "Adam" => Ok(OptimizerSpec::Adam(adam(0.0)?)),
        "AdamW" => Ok(OptimizerSpec::AdamW(adam(0.01)?)),
        _ => Err(choice.unknown("optimizer", &["SGD", "Adam", "AdamW"])),
    }
}

fn betas(args: &Mapping<'_>) -> Result<(f64, f64), Fault> {
    let Some(node) = args.get("betas") else { return Ok((0.9, 0.999)) };
    match node.list("`betas`", "two numbers")? {
        [first, second] => Ok((first.read("a beta", &NUMBER)?, second.read("a beta", &NUMBER)?)),
        _ => Err(node.unexpected("`betas`", "two numbers")),
    }
}
