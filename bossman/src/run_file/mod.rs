//! The run file as checked values. Each key is read once, with its place in the file for errors.
//!
//! ```text
//! RunFile -> learning (loss, optimizer, lr_schedule)      data -> columns, text (pairs, translate)
//!         -> checkpoint, recovery (redundancy), guards    parallel    needed (data, length)
//!         -> sources (rename)     <- write (the run as a run file again) -> yaml_text
//! ```

mod checkpoint;
mod class_list;
mod class_names;
mod columns;
mod data;
pub mod data_parts;
mod file_reader;
#[cfg(test)]
mod fuzz_tests;
mod guards;
mod learned_table;
mod learning;
mod needed;
mod parallel;
mod place;
mod recovery;
pub(crate) mod sources;
mod string_map;
#[cfg(test)]
pub(crate) mod test_picture;
mod text;
mod write;
pub(crate) mod yaml_text;

use crate::checkpoint::Policy;
use crate::data::Text;
use crate::file_kind::FileKind;
use crate::runs::RunName;
use crate::settings::conflicts::{self, Facts, ReductionOrder, RunFacts};
use crate::weights::rename_rules::RenameRules;
use crate::{BossManError, Guards, RecoverySource, TranslationSettings};
pub use data::{Data, Validation};
pub use file_reader::FileReader;
use file_reader::FILE_READER;
use layerspec::yaml::{
    self, Mapping, Node, Reader, COUNT, FLAG, POSITIVE, PRECISION, RECOMPUTE, SIZE, TEXT,
};
use layerspec::{Diagnostic, Precision, Recompute};
pub(crate) use learned_table::TABLE;
use learning::{loss, lr_schedule, optimizer};
use pipeline::lr_schedule::LrSchedule;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::{Cuts, Determinism, LossSpec, OptimizerSpec, ScheduleKind};
pub use place::Place;
use std::path::{Path, PathBuf};

/// A run: model, data and how to train.
///
/// ```
/// use bossman::run_file::{Length, RunFile};
/// let run = RunFile::from_file("../examples/digits/run.yaml")?;
/// assert_eq!(run.batch_size, 32);
/// assert_eq!(run.length()?, Length::Epochs(20));
/// # Ok::<(), bossman::BossManError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunFile {
    /// The name of the run's folder.
    pub name: Option<String>,
    /// The model file.
    pub model: PathBuf,
    /// Samples to train on and to test on. A run without them cannot be trained.
    pub data: Option<Data>,
    /// How text becomes tokens, if the samples to train on are no text.
    pub tokenizer: Option<Text>,
    /// The loss.
    pub loss: LossSpec,
    /// The place of the loss in the file.
    pub loss_place: Place,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Samples in a step; the last batch of an epoch may be smaller.
    pub batch_size: u64,
    /// The number of microbatches of a batch. 0 is one for each worker.
    pub microbatches: u32,
    /// The length of training. `None` only if there is no data.
    pub length: Option<Length>,
    /// The seed of weights, dropout and the order of samples.
    pub seed: u64,
    /// The schedule. `None` measures and takes the fastest.
    pub schedule: Option<ScheduleKind>,
    /// The number of stages on each worker, if the schedule leaves that open.
    pub chunks: Option<u32>,
    /// The number of steps whose gradients one optimizer step uses.
    pub accumulate: u32,
    /// The limit of the gradients' norm.
    pub clip_grad_norm: Option<f64>,
    /// The schedule of the learning rate.
    pub lr_schedule: LrSchedule,
    /// The activations to recompute in the backward pass, if the model file does not set it.
    pub recompute: Recompute,
    /// The type in which products are computed.
    pub precision: Precision,
    /// Whether results on GPUs are equal to the bit from run to run.
    pub determinism: Determinism,
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
    /// The state that replicas shard, if any.
    pub sharding: Option<Sharding>,
    /// Weights to start from.
    pub weights: Option<Weights>,
    /// Whether each epoch has an order of samples of its own. Otherwise it is that of the files.
    pub shuffle: bool,
    /// Whether texts of about one length are trained on together.
    pub group_by_length: bool,
    /// The pairs of texts to translate after each epoch.
    pub translate: Option<TranslationSettings>,
    /// The folder of checkpoints, and when they are written.
    pub checkpoint: Option<Policy>,
    /// The source of the state from which the run resumes after a loss of workers.
    pub redundancy: RecoverySource,
    /// The checks during training, and the reaction if training fails silently.
    pub guards: Guards,
}

/// Weights to start from.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// A safetensors file, an index of several, or their folder.
    pub path: PathBuf,
    /// The names of their tensors in the model.
    pub rename: RenameRules,
    /// Who reads them. Workers read a safetensors file below a folder of theirs, which is the one
    /// of the file here.
    pub reader: FileReader,
}

impl Weights {
    /// The weights of this file or folder, under the model's own names.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Weights { path: path.into(), rename: RenameRules::default(), reader: FileReader::default() }
    }

    /// The folder whose files workers have, too. `None` if the boss reads them.
    pub(crate) fn on_workers(&self) -> Option<&Path> {
        match (self.reader, self.path.is_dir()) {
            (FileReader::Boss, _) => None,
            (FileReader::Workers, true) => Some(&self.path),
            (FileReader::Workers, false) => self.path.parent(),
        }
    }
}

/// The length of training.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// After this number of epochs.
    Epochs(u64),
    /// After this number of steps.
    Steps(u64),
}

const KEYS: [&str; 33] = [
    "name",
    "model",
    "data",
    "tokenizer",
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
    "determinism",
    "weights",
    "translate",
    "shuffle",
    "group_by_length",
    "checkpoint",
    "receipt",
    "redundancy",
    "guards",
];

impl RunFile {
    /// The same run, but the boss reads all data. Predictions and texts need this.
    #[must_use]
    pub fn with_data_at_boss(mut self) -> Self {
        if let Some(data) = &mut self.data {
            data.on_workers = None;
        }
        self
    }

    /// Reads a run file. Paths in it are relative to it.
    ///
    /// # Errors
    /// With file, line and column: an unknown or missing key, a value of the wrong type.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        let path = path.as_ref();
        let (file, text) = Self::read(path)?;
        parallel::check_cuts(&text, &file)
            .map_err(|fault| fault.in_file(&path.display().to_string()))?;
        Ok(file)
    }

    /// Reads the run file of a run's folder, with what the run learned from its table. Reads no
    /// file that it names. It was checked when the run began.
    ///
    /// # Errors
    /// As for [`RunFile::from_file`].
    pub fn from_folder(folder: &Path) -> Result<Self, BossManError> {
        Self::read(&folder.join("run.yaml"))?.0.with_table_of(folder)
    }

    fn read(path: &Path) -> Result<(Self, String), BossManError> {
        let text = yaml::read_file(path)?;
        if FileKind::of(&text) == Some(FileKind::Model) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let problem = format!(
                "is a model file; name a run file, which has `model: {name}` and says how to \
                 train it; `bossman check` takes a model file"
            );
            return Err(BossManError::file(path, problem));
        }
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        let mut file =
            parse(&text, folder).map_err(|fault| fault.in_file(&path.display().to_string()))?;
        file.loss_place.set_file(path);
        Ok((file, text))
    }
}

/// The name of a run's folder.
const NAME: Reader<String> = Reader::new(RunName::EXPECTED, |node| {
    (TEXT.read)(node).filter(|name| RunName::parse(name).is_some())
});

/// The limit of a norm. Some programs write 0 for none.
const NORM: Reader<f64> =
    Reader::new("a number above 0 (for no limit, leave the key out)", POSITIVE.read);

const DETERMINISM: Reader<Determinism> =
    Reader::keyword("`strict` or `fast`", &["strict", "fast"], |node| {
        let text = node.as_text()?;
        Determinism::NAMES.into_iter().find(|(name, _)| *name == text).map(|(_, choice)| choice)
    });

fn parse(text: &str, folder: &Path) -> Result<RunFile, Diagnostic> {
    let root = yaml::parse(text)?;
    let run = root.mapping("the run file", "key", &KEYS)?;
    let facts = check_conflicts(&run)?;
    let optimizer_node = run.need("optimizer")?;
    let optimizer = optimizer(&optimizer_node.choice("`optimizer`", "an optimizer")?)?;
    optimizer.check().map_err(|why| Diagnostic::new(optimizer_node.location, why))?;
    let batch_size = run.required("batch_size", &SIZE)?;
    let loss_node = run.need("loss")?;
    Ok(RunFile {
        name: run.optional("name", &NAME)?,
        model: folder.join(run.required("model", &TEXT)?),
        data: run.get("data").map(|node| data::data(node, folder)).transpose()?,
        tokenizer: text::without_files(&run, folder)?,
        loss: loss(&loss_node.choice("`loss`", "a loss")?)?,
        loss_place: Place::new(loss_node.location),
        optimizer,
        batch_size,
        microbatches: parallel::microbatches(&run, batch_size)?,
        accumulate: facts.accumulate,
        clip_grad_norm: run.optional("clip_grad_norm", &NORM)?,
        lr_schedule: lr_schedule(&run)?,
        recompute: recompute(&run)?,
        precision: run.optional("precision", &PRECISION)?.unwrap_or_default(),
        determinism: run.optional("determinism", &DETERMINISM)?.unwrap_or_default(),
        length: length(&run, &root)?,
        seed: run.optional("seed", &COUNT)?.unwrap_or(0),
        schedule: facts.schedule,
        chunks: facts.chunks.map(|chunks| chunks as u32),
        cuts: parallel::cuts(&run)?,
        replicas: facts.replicas,
        fast_reduction: facts.reduction == ReductionOrder::Fast,
        collective: facts.collective,
        compress: facts.compress,
        sharding: facts.sharding,
        weights: weights(&run, folder)?,
        shuffle: run.optional("shuffle", &FLAG)?.unwrap_or(true),
        group_by_length: facts.run.groups_by_length,
        translate: run.get("translate").map(text::translate).transpose()?,
        checkpoint: checkpoint::checkpoint(&run, folder)?,
        redundancy: recovery::redundancy(&run)?,
        guards: guards::guards(&run)?,
    })
}

/// Reads the settings that may exclude each other, and checks them.
fn check_conflicts(run: &Mapping<'_>) -> Result<Facts, Diagnostic> {
    let mut facts = parallel::facts(run)?;
    facts.accumulate = parallel::small_count(run, "accumulate")?.unwrap_or(1);
    facts.run = RunFacts {
        groups_by_length: run.optional("group_by_length", &FLAG)?.unwrap_or(false),
        shuffles: run.optional("shuffle", &FLAG)?.unwrap_or(true),
        translates: run.get("translate").is_some(),
        trains_on_pairs: trains_on_pairs(run),
        audits_checkpoints: checkpoint::audit(run)?.is_some_and(|audit| audit > 0),
        has_checkpoints: run.get("checkpoint").is_some(),
        recovers_from_checkpoint: run
            .get("redundancy")
            .is_some_and(|node| node.as_text() == Some("checkpoint")),
        ..RunFacts::default()
    };
    match conflicts::check(&facts) {
        Ok(()) => Ok(facts),
        Err(violation) => {
            Err(Diagnostic::new(run.need(violation.key)?.location, violation.to_string()))
        }
    }
}

/// Whether the run trains on pairs of texts. Errors of its data are found later.
fn trains_on_pairs(run: &Mapping<'_>) -> bool {
    let entries = run.get("data").and_then(|data| data.entries("`data`", "key").ok());
    let train = entries.into_iter().flatten().find(|(key, _)| *key == "train");
    let format = train.and_then(|(_, train)| train.choice("`train`", "a format").ok());
    format.is_some_and(|format| format.name == "pairs")
}

fn recompute(run: &Mapping<'_>) -> Result<Recompute, Diagnostic> {
    match run.get("recompute") {
        None => Ok(Recompute::None),
        Some(node) => node.read("`recompute`", &RECOMPUTE),
    }
}

fn length(run: &Mapping<'_>, root: &Node) -> Result<Option<Length>, Diagnostic> {
    match (run.optional("epochs", &SIZE)?, run.optional("steps", &SIZE)?) {
        (Some(epochs), None) => Ok(Some(Length::Epochs(epochs))),
        (None, Some(steps)) => Ok(Some(Length::Steps(steps))),
        (Some(_), Some(_)) => {
            Err(Diagnostic::new(run.need("steps")?.location, "give `epochs` or `steps`, not both"))
        }
        (None, None) if run.get("data").is_none() => Ok(None),
        (None, None) => Err(Diagnostic::new(
            root.location,
            "`epochs` or `steps` is missing: when does training end?",
        )),
    }
}

fn weights(run: &Mapping<'_>, folder: &Path) -> Result<Option<Weights>, Diagnostic> {
    let Some(node) = run.get("weights") else { return Ok(None) };
    if let Some(path) = node.as_text() {
        return Ok(Some(Weights::of(folder.join(path))));
    }
    let weights = node.mapping("`weights`", "key", &["path", "on", "rename", "ignore", "fresh"])?;
    let mut rename = RenameRules::default();
    if let Some(node) = weights.get("rename") {
        for (name, source) in node.entries("`rename`", "name in the model")? {
            let sources = sources::read(source)?;
            rename.rule(name, &sources).map_err(|why| Diagnostic::new(source.location, why))?;
        }
    }
    if let Some(node) = weights.get("ignore") {
        for name in node.list("`ignore`", "a list of names in the file")? {
            let text = name.read("a name in the file", &TEXT)?;
            rename.ignore(&text).map_err(|why| Diagnostic::new(name.location, why))?;
        }
    }
    if let Some(node) = weights.get("fresh") {
        for name in node.list("`fresh`", "a list of names in the model")? {
            let text = name.read("a name in the model", &TEXT)?;
            rename.fresh(&text).map_err(|why| Diagnostic::new(name.location, why))?;
        }
    }
    let path = folder.join(weights.required("path", &TEXT)?);
    let reader = weights.optional("on", &FILE_READER)?.unwrap_or_default();
    Ok(Some(Weights { path, rename, reader }))
}
