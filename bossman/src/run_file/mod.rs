//! The run file: what `bossman train` is told, as checked values.

mod checkpoint;
mod collective;
mod data;
#[cfg(test)]
mod fuzz_tests;
mod guards;
mod learning;
mod recovery;
mod string_map;
mod text;

use crate::checkpoint::Policy;
use crate::weights::rename_rules::RenameRules;
use crate::{BossManError, Guards, RecoverySource, TranslationSettings};
pub use data::{Data, Validation};
use layerspec::yaml::{self, Mapping, Node, COUNT, FLAG, NON_NEGATIVE, PRECISION, RECOMPUTE, SIZE, TEXT};
use layerspec::{Fault, Precision, Recompute};
use learning::{loss, lr_schedule, optimizer};
use pipeline::lr_schedule::LrSchedule;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
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
    /// Samples to train on and to test on.
    pub data: Data,
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
    /// The seed of weights, dropout and the order of samples.
    pub seed: u64,
    /// The order of work; nothing where the fastest is to be found.
    pub schedule: Option<ScheduleKind>,
    /// The number of stages on each worker, if the schedule leaves that open.
    pub chunks: Option<u32>,
    /// Steps whose gradients one optimizer step takes.
    pub accumulate: u32,
    /// The limit of the gradients' norm.
    pub clip_grad_norm: Option<f64>,
    /// How the learning rate changes.
    pub lr_schedule: LrSchedule,
    /// The activations to recompute in the backward pass, if the model file does not set it.
    pub recompute: Recompute,
    /// In which type products are computed.
    pub precision: Precision,
    /// The cuts of the model.
    pub cuts: Cuts,
    /// The number of workers that get the same stages. `None` is one each, with gradients summed
    /// one after the other.
    pub replicas: Option<Replicas>,
    /// Whether replicas sum their own gradients before they send them. The order of the sum then
    /// depends on the assignment.
    pub fast_reduction: bool,
    /// How the gradients of replicas are summed.
    pub collective: Collective,
    /// The form in which replicas exchange gradients, if not float32.
    pub compress: Option<Compress>,
    /// What replicas shard.
    pub sharding: Option<Sharding>,
    /// Weights to start from.
    pub weights: Option<Weights>,
    /// Whether texts of about one length are trained on together.
    pub group_by_length: bool,
    /// The pairs of texts to translate after each epoch.
    pub translate: Option<TranslationSettings>,
    /// The folder of checkpoints, and when they are written.
    pub checkpoint: Option<Policy>,
    /// The source of the state from which the run resumes after a loss of workers.
    pub redundancy: RecoverySource,
    /// What is watched in training, and the reaction if training fails silently.
    pub guards: Guards,
}

/// Weights to start from.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// A safetensors file, an index of several, or their folder.
    pub path: PathBuf,
    /// The names of their tensors in the model.
    pub rename: RenameRules,
}

/// When training ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// After the data has been seen that often.
    Epochs(u64),
    /// After that many steps.
    Steps(u64),
}

const KEYS: [&str; 28] = [
    "model",
    "data",
    "loss",
    "optimizer",
    "lr_schedule",
    "clip_grad_norm",
    "batch_size",
    "microbatches",
    "accumulate",
    "epochs",
    "steps",
    "seed",
    "schedule",
    "chunks",
    "cuts",
    "replicas",
    "reduction",
    "collective",
    "compress",
    "shard",
    "recompute",
    "precision",
    "weights",
    "translate",
    "group_by_length",
    "checkpoint",
    "redundancy",
    "guards",
];

impl RunFile {
    /// The same, for what only the boss knows the samples of: predictions and texts.
    #[must_use]
    pub fn with_data_at_boss(mut self) -> Self {
        self.data.on_workers = None;
        self
    }

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
    let optimizer_node = run.need("optimizer")?;
    let optimizer = optimizer(&optimizer_node.choice("`optimizer`", "an optimizer")?)?;
    optimizer.check().map_err(|why| Fault::new(optimizer_node.place, why))?;
    Ok(RunFile {
        model: folder.join(run.required("model", &TEXT)?),
        data: data::data(run.need("data")?, folder)?,
        loss: loss(&run.need("loss")?.choice("`loss`", "a loss")?)?,
        optimizer,
        batch_size: run.required("batch_size", &SIZE)?,
        microbatches: small_count(&run, "microbatches")?.unwrap_or(0),
        accumulate: small_count(&run, "accumulate")?.unwrap_or(1),
        clip_grad_norm: run.optional("clip_grad_norm", &NON_NEGATIVE)?,
        lr_schedule: lr_schedule(&run)?,
        recompute: recompute(&run)?,
        precision: run.optional("precision", &PRECISION)?.unwrap_or_default(),
        length: length(&run, &root)?,
        seed: run.optional("seed", &COUNT)?.unwrap_or(0),
        schedule: schedule(&run)?,
        chunks: chunks(&run)?,
        cuts: cuts(&run)?,
        replicas: replicas(&run)?,
        fast_reduction: fast_reduction(&run)?,
        collective: collective::collective(&run)?,
        compress: compress(&run)?,
        sharding: sharding(&run)?,
        weights: weights(&run, folder)?,
        group_by_length: group_by_length(&run)?,
        translate: translate(&run)?,
        checkpoint: checkpoint::checkpoint(&run, folder)?,
        redundancy: recovery::redundancy(&run)?,
        guards: guards::guards(&run)?,
    })
}

fn small_count(run: &Mapping<'_>, key: &str) -> Result<Option<u32>, Fault> {
    let Some(count) = run.optional(key, &SIZE)? else { return Ok(None) };
    let node = run.need(key)?;
    u32::try_from(count).map(Some).map_err(|_| node.unexpected(&format!("`{key}`"), "a smaller number"))
}

/// Only pairs of texts have lengths of their own.
fn group_by_length(run: &Mapping<'_>) -> Result<bool, Fault> {
    let grouped = run.optional("group_by_length", &FLAG)?.unwrap_or(false);
    match grouped && !trains_on_pairs(run)? {
        true => {
            Err(Fault::new(run.need("group_by_length")?.place, "`group_by_length` goes with `pairs` to train on only"))
        }
        false => Ok(grouped),
    }
}

fn translate(run: &Mapping<'_>) -> Result<Option<TranslationSettings>, Fault> {
    let Some(node) = run.get("translate") else { return Ok(None) };
    if !trains_on_pairs(run)? {
        return Err(Fault::new(node.place, "`translate` goes with `pairs` to train on only"));
    }
    text::translate(node).map(Some)
}

fn trains_on_pairs(run: &Mapping<'_>) -> Result<bool, Fault> {
    let data = run.need("data")?.entries("`data`", "key")?;
    let train = data.into_iter().find(|(key, _)| *key == "train").map(|(_, train)| train);
    let choice = train.map(|train| train.choice("`train`", "a format"));
    Ok(matches!(choice, Some(Ok(choice)) if choice.name == "pairs"))
}

fn recompute(run: &Mapping<'_>) -> Result<Recompute, Fault> {
    match run.get("recompute") {
        None => Ok(Recompute::None),
        Some(node) => node.read("`recompute`", &RECOMPUTE),
    }
}

fn length(run: &Mapping<'_>, root: &Node) -> Result<Length, Fault> {
    match (run.optional("epochs", &SIZE)?, run.optional("steps", &SIZE)?) {
        (Some(epochs), None) => Ok(Length::Epochs(epochs)),
        (None, Some(steps)) => Ok(Length::Steps(steps)),
        (Some(_), Some(_)) => Err(Fault::new(run.need("steps")?.place, "give `epochs` or `steps`, not both")),
        (None, None) => Err(Fault::new(root.place, "`epochs` or `steps` is missing: when does training end?")),
    }
}

fn schedule(run: &Mapping<'_>) -> Result<Option<ScheduleKind>, Fault> {
    let Some(name) = run.optional("schedule", &TEXT)?.filter(|name| name != "auto") else { return Ok(None) };
    let place = run.need("schedule")?.place;
    let names = ScheduleKind::NAMES.map(|(name, _)| name).into_iter().chain(["auto"]);
    let kind = name.parse().map(Some);
    kind.map_err(|why: String| Fault::new(place, format!("{why}, auto")).suggesting(layerspec::nearest(&name, names)))
}

/// Only these leave it open how many stages a worker has.
fn chunks(run: &Mapping<'_>) -> Result<Option<u32>, Fault> {
    let Some(chunks) = small_count(run, "chunks")? else { return Ok(None) };
    let gathers = sharding(run)?.is_some_and(Sharding::shards_parameters);
    match (chunks, schedule(run)?) {
        (1, None | Some(ScheduleKind::GPipe)) if gathers => Ok(Some(chunks)),
        (2.., None) if gathers => Ok(Some(chunks)),
        (2.., Some(ScheduleKind::Interleaved | ScheduleKind::GPipe)) => Ok(Some(chunks)),
        (..2, _) => Err(run.need("chunks")?.unexpected("`chunks`", "2 or more stages a worker")),
        _ => {
            let problem =
                "`chunks` goes with `schedule: interleaved` or `schedule: gpipe` only, or with `shard: parameters` \
                           where no schedule is named";
            Err(Fault::new(run.need("chunks")?.place, problem))
        }
    }
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

fn replicas(run: &Mapping<'_>) -> Result<Option<Replicas>, Fault> {
    let Some(node) = run.get("replicas") else { return Ok(None) };
    let expected = "`auto`, a number of workers for each stage, or a list of such numbers";
    let number = |node: &Node| {
        let number = node.read("`replicas`", &SIZE)?;
        u16::try_from(number).map_err(|_| node.unexpected("`replicas`", "a smaller number"))
    };
    match (node.as_text(), node.list("`replicas`", expected)) {
        (Some("auto"), _) => Ok(Some(Replicas::Auto)),
        (_, Ok([])) => Err(node.unexpected("`replicas`", expected)),
        (_, Ok(list)) => Ok(Some(Replicas::Of(list.iter().map(number).collect::<Result<_, _>>()?))),
        (_, Err(_)) => number(node).map(Replicas::Each).map(Some).map_err(|_| node.unexpected("`replicas`", expected)),
    }
}

/// Only replicas exchange gradients.
fn compress(run: &Mapping<'_>) -> Result<Option<Compress>, Fault> {
    let Some(node) = run.get("compress") else { return Ok(None) };
    let name = node.as_text();
    let form = Compress::NAMES.iter().find(|(form, _)| name == Some(form)).map(|(_, form)| *form);
    match (form, name, run.get("replicas")) {
        (None, Some("f32"), _) => Ok(None),
        (None, ..) => Err(node.unexpected("`compress`", "`f32`, `bf16`, `int8` or `int4`")),
        (Some(_), _, None) => Err(Fault::new(node.place, "`compress` goes with `replicas` only")),
        (form, ..) => Ok(form),
    }
}

/// Whether replicas add their gradients up before they send.
fn fast_reduction(run: &Mapping<'_>) -> Result<bool, Fault> {
    let Some(node) = run.get("reduction") else { return Ok(false) };
    match (node.as_text(), run.get("replicas")) {
        (Some("exact"), _) => Ok(false),
        (Some("fast"), Some(_)) => Ok(true),
        (Some("fast"), None) => Err(Fault::new(node.place, "`reduction: fast` goes with `replicas` only")),
        _ => Err(node.unexpected("`reduction`", "`exact` or `fast`")),
    }
}

/// Only replicas share something out.
fn sharding(run: &Mapping<'_>) -> Result<Option<Sharding>, Fault> {
    let Some(node) = run.get("shard") else { return Ok(None) };
    let name = node.as_text();
    let choice = Sharding::NAMES.iter().find(|(choice, _)| name == Some(choice)).map(|(_, choice)| *choice);
    match (choice, name, run.get("replicas")) {
        (None, Some("none"), _) => Ok(None),
        (None, ..) => Err(node.unexpected("`shard`", "`none`, `optimizer`, `gradients` or `parameters`")),
        (Some(_), _, None) => Err(Fault::new(node.place, "`shard` goes with `replicas` only")),
        (Some(choice), ..) if choice.shards_gradients() && (fast_reduction(run)? || compress(run)?.is_some()) => {
            let problem = format!(
                "`shard: {choice}` goes neither with `compress` nor with `reduction: fast`, for which a replica adds up its \
                 gradients before any leave; take `shard: optimizer`"
            );
            Err(Fault::new(node.place, problem))
        }
        (Some(choice), ..) if choice.shards_parameters() => match (schedule(run)?, replicas(run)?) {
            (_, Some(Replicas::Auto)) => {
                let problem = format!("`shard: {choice}` does not go with `replicas: auto`; give `replicas` a number");
                Err(Fault::new(node.place, problem))
            }
            (Some(kind), _) if !kind.takes_stages_in_order() => {
                let problem = format!(
                    "`shard: {choice}` does not go with `schedule: {kind}`: replicas must take their stages in the same order; \
                     take `schedule: gpipe`"
                );
                Err(Fault::new(node.place, problem))
            }
            _ => Ok(Some(choice)),
        },
        (choice, ..) => Ok(choice),
    }
}

fn weights(run: &Mapping<'_>, folder: &Path) -> Result<Option<Weights>, Fault> {
    let Some(node) = run.get("weights") else { return Ok(None) };
    if let Some(path) = node.as_text() {
        return Ok(Some(Weights { path: folder.join(path), rename: RenameRules::default() }));
    }
    let weights = node.mapping("`weights`", "key", &["path", "rename", "ignore", "fresh"])?;
    let mut rename = RenameRules::default();
    if let Some(node) = weights.get("rename") {
        for (name, source) in node.entries("`rename`", "name in the model")? {
            let sources = match source.as_text() {
                Some(source) => vec![source.to_string()],
                None => source
                    .list("a source", "a name in the file, or a list of them")?
                    .iter()
                    .map(|source| source.read("a name in the file", &TEXT))
                    .collect::<Result<_, _>>()?,
            };
            rename.rule(name, &sources).map_err(|why| Fault::new(source.place, why))?;
        }
    }
    if let Some(node) = weights.get("ignore") {
        for name in node.list("`ignore`", "a list of names in the file")? {
            let text = name.read("a name in the file", &TEXT)?;
            rename.ignore(&text).map_err(|why| Fault::new(name.place, why))?;
        }
    }
    if let Some(node) = weights.get("fresh") {
        for name in node.list("`fresh`", "a list of names in the model")? {
            let text = name.read("a name in the model", &TEXT)?;
            rename.fresh(&text).map_err(|why| Fault::new(name.place, why))?;
        }
    }
    Ok(Some(Weights { path: folder.join(weights.required("path", &TEXT)?), rename }))
}
