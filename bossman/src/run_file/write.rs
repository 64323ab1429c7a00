//! A run file as text, with every default written.

use super::yaml_text::{document, list, map, one_or_list, Yaml};
use super::{columns, sources, Data, FileReader, Length, RunFile, Validation, Weights};
use crate::checkpoint::{Every, KeepBest, Policy};
use crate::data::{DataError, Normalize, Source, Table, Text, TextPairs, Tokenizer};
use crate::{BossManError, Guards, NonFinite, RecoverySource, TranslationSettings};
use layerspec::{Precision, Recompute};
use pipeline::loss::Classes;
use pipeline::lr_schedule::{LrDecay, LrSchedule};
use pipeline::optimizer::AdamArgs;
use pipeline::replicas::Replicas;
use pipeline::{Cuts, LossSpec, OptimizerSpec};
use std::collections::BTreeMap;
use std::path::Path;

impl RunFile {
    /// Writes the run as a run file that reads back as the same run.
    pub fn to_yaml(&self) -> String {
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        let mut put = |key: &str, value: Yaml| entries.push((key.into(), value));
        if let Some(name) = &self.name {
            put("name", name.as_str().into());
        }
        put("model", path(&self.model));
        if let Some(of) = &self.data {
            put("data", data(of));
        }
        if let Some(of) = &self.tokenizer {
            put("tokenizer", without_files(of));
        }
        put("loss", loss(&self.loss));
        put("optimizer", optimizer(&self.optimizer));
        put("lr_schedule", lr_schedule(&self.lr_schedule));
        if let Some(norm) = self.clip_grad_norm {
            put("clip_grad_norm", norm.into());
        }
        put("batch_size", self.batch_size.into());
        if self.microbatches > 0 {
            put("microbatches", u64::from(self.microbatches).into());
        }
        put("accumulate", u64::from(self.accumulate).into());
        match self.length {
            Some(Length::Epochs(epochs)) => put("epochs", epochs.into()),
            Some(Length::Steps(steps)) => put("steps", steps.into()),
            None => {}
        }
        put("seed", self.seed.into());
        put("schedule", self.schedule.map_or("auto".into(), word));
        if let Some(chunks) = self.chunks {
            put("chunks", u64::from(chunks).into());
        }
        match &self.cuts {
            Cuts::Auto => put("cuts", "auto".into()),
            Cuts::At(names) => put("cuts", list(names.iter().map(String::as_str))),
        }
        match &self.replicas {
            Some(Replicas::Auto) => put("replicas", "auto".into()),
            Some(Replicas::Each(each)) => put("replicas", u64::from(*each).into()),
            Some(Replicas::Of(of)) => put("replicas", list(of.iter().map(|n| u64::from(*n)))),
            None => {}
        }
        if self.fast_reduction {
            put("reduction", "fast".into());
        }
        put("collective", word(self.collective));
        if let Some(compress) = self.compress {
            put("compress", word(compress));
        }
        if let Some(sharding) = self.sharding {
            put("shard", word(sharding));
        }
        put("recompute", recompute(self.recompute).into());
        put("precision", precision(self.precision).into());
        put("determinism", word(self.determinism));
        if let Some(of) = &self.weights {
            put("weights", weights(of));
        }
        put("shuffle", self.shuffle.into());
        put("group_by_length", self.group_by_length.into());
        if let Some(of) = &self.translate {
            put("translate", translate(of));
        }
        if let Some(policy) = &self.checkpoint {
            put("checkpoint", checkpoint(policy));
            if policy.audit > 0 {
                put("receipt", map([("audit", (policy.audit as u64).into())]));
            }
        }
        put("redundancy", redundancy(self.redundancy));
        put("guards", guards(&self.guards));
        document(&entries)
    }

    /// The same run with its data in this folder, by the names of the files. The boss reads it.
    ///
    /// # Errors
    /// A path has no name.
    pub fn with_data_in(mut self, folder: &Path) -> Result<Self, BossManError> {
        let there = |path: &Path| match path.file_name() {
            Some(name) => Ok(folder.join(name)),
            None => Err(DataError::file(path, "has no name to look for".to_string())),
        };
        if let Some(data) = &mut self.data {
            data.train = data.train.with_paths(&there)?;
            if let Some(Validation::Source(of)) = &mut data.validation {
                **of = of.with_paths(&there)?;
            }
            data.test = data.test.as_ref().map(|of| of.with_paths(&there)).transpose()?;
        }
        if let Some(Text { tokenizer: Tokenizer::File(path), .. }) = &mut self.tokenizer {
            *path = there(path.as_path())?;
        }
        Ok(self.with_data_at_boss())
    }

    /// The same run with absolute paths.
    ///
    /// # Errors
    /// The working folder is gone.
    pub fn with_absolute_paths(mut self) -> Result<Self, BossManError> {
        let absolute = |path: &Path| {
            // The folder of a bare name.
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            std::path::absolute(path).map_err(|e| BossManError::io(path, &e))
        };
        let source = |source: &Source| {
            source.with_paths(&|path| {
                std::path::absolute(path).map_err(|e| DataError::file(path, e.to_string()))
            })
        };
        self.model = absolute(&self.model)?;
        if let Some(data) = &mut self.data {
            data.train = source(&data.train)?;
            if let Some(Validation::Source(of)) = &mut data.validation {
                **of = source(of)?;
            }
            data.test = data.test.as_ref().map(source).transpose()?;
            data.on_workers = data.on_workers.as_deref().map(absolute).transpose()?;
        }
        if let Some(Text { tokenizer: Tokenizer::File(path), .. }) = &mut self.tokenizer {
            *path = absolute(path.as_path())?;
        }
        if let Some(weights) = &mut self.weights {
            weights.path = absolute(&weights.path)?;
        }
        if let Some(dir) = self.checkpoint.as_mut().and_then(|policy| policy.dir.as_mut()) {
            if !dir.contains("://") {
                *dir = absolute(Path::new(dir))?.to_string_lossy().into_owned();
            }
        }
        Ok(self)
    }
}

fn word(name: impl ToString) -> Yaml {
    Yaml::Text(name.to_string())
}

fn path(path: &Path) -> Yaml {
    Yaml::Text(path.to_string_lossy().into_owned())
}

fn data(data: &Data) -> Yaml {
    let mut entries = vec![("train".to_string(), source(&data.train))];
    let mut put = |key: &str, value: Yaml| entries.push((key.into(), value));
    match &data.validation {
        Some(Validation::Source(of)) => put("validation", source(of)),
        Some(Validation::Split(share)) => put("validation", map([("split", (*share).into())])),
        None => {}
    }
    if let Some(of) = &data.test {
        put("test", source(of));
    }
    if let Some(spec) = data.columns() {
        put("columns", columns::to_yaml(spec));
        if spec.normalize {
            put("normalize", "auto".into());
        }
    }
    if let Some(of) = &data.normalize {
        put("normalize", normalize(of));
    }
    if let Some(root) = &data.on_workers {
        put("on", "workers".into());
        put("root", path(root));
    }
    Yaml::Map(entries)
}

fn source(source: &Source) -> Yaml {
    match source {
        Source::File(file) => path(file),
        Source::Columns(of) => path(&of.path),
        Source::Idx { images, labels } => {
            map([("idx", map([("images", path(images)), ("labels", path(labels))]))])
        }
        Source::Npy { inputs, target } => {
            let inputs = inputs.iter().map(|(name, file)| (name.clone(), path(file)));
            let inputs = Yaml::Map(inputs.collect());
            map([("npy", map([("inputs", inputs), ("target", path(target))]))])
        }
        Source::Npz(of) => map([("npz", table(of))]),
        Source::Safetensors(of) => map([("safetensors", table(of))]),
        Source::Jsonl(of) => map([("jsonl", table(of))]),
        Source::Parquet(of) => map([("parquet", table(of))]),
        Source::Images { folder, classes } => {
            let classes = classes.iter().map(|names| list(names.iter().map(String::as_str)));
            let mut entries = vec![("folder".to_string(), path(folder))];
            entries.extend(classes.map(|names| ("classes".into(), names)));
            map([("images", Yaml::Map(entries))])
        }
        Source::Text(of) => map([("text", text(of))]),
        Source::Pairs(of) => map([("pairs", pairs(of))]),
    }
}

fn table(table: &Table) -> Yaml {
    map([
        ("path", path(&table.path)),
        ("inputs", string_map(&table.inputs)),
        ("target", table.target.as_str().into()),
    ])
}

fn string_map(strings: &BTreeMap<String, String>) -> Yaml {
    Yaml::Map(strings.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect())
}

fn tokenizer(tokenizer: &Tokenizer) -> Yaml {
    match tokenizer {
        Tokenizer::Bytes => "bytes".into(),
        Tokenizer::File(file) => path(file),
    }
}

/// How text becomes tokens without text to train on.
fn without_files(text: &Text) -> Yaml {
    let mut entries = vec![("path".to_string(), tokenizer(&text.tokenizer))];
    if text.sequence_length < u64::MAX {
        entries.push(("sequence_length".into(), text.sequence_length.into()));
    }
    entries.extend(one_or_list(&text.eos).map(|eos| ("eos".into(), eos)));
    Yaml::Map(entries)
}

fn text(text: &Text) -> Yaml {
    let paths = text.paths.iter().map(|file| path(file)).collect();
    let mut entries = vec![
        ("path".to_string(), Yaml::List(paths)),
        ("tokenizer".into(), tokenizer(&text.tokenizer)),
        ("sequence_length".into(), text.sequence_length.into()),
    ];
    entries.extend(one_or_list(&text.eos).map(|eos| ("eos".into(), eos)));
    Yaml::Map(entries)
}

fn pairs(pairs: &TextPairs) -> Yaml {
    let mut entries = vec![("path".to_string(), path(&pairs.path))];
    let mut put = |key: &str, value: Yaml| entries.push((key.into(), value));
    if let Some(keys) = &pairs.keys {
        put("keys", list(keys.iter().map(String::as_str)));
    }
    put("tokenizer", tokenizer(&pairs.tokenizer));
    if let Some(of) = &pairs.target_tokenizer {
        put("target_tokenizer", tokenizer(of));
    }
    for (key, token) in ["bos", "eos", "pad"].into_iter().zip(&pairs.special_tokens) {
        put(key, token.as_str().into());
    }
    if let Some(length) = pairs.max_length {
        put(if pairs.fixed { "length" } else { "max_length" }, length.into());
    }
    put("inputs", string_map(&pairs.inputs));
    Yaml::Map(entries)
}

fn normalize(normalize: &Normalize) -> Yaml {
    let mut entries = Vec::new();
    entries.extend(normalize.input.as_ref().map(|name| ("input".into(), name.as_str().into())));
    entries.push(("divide".to_string(), normalize.divide.into()));
    entries.push(("mean".into(), list(normalize.mean.iter().copied())));
    entries.push(("std".into(), list(normalize.std.iter().copied())));
    Yaml::Map(entries)
}

fn loss(loss: &LossSpec) -> Yaml {
    let classes = |classes: &Classes| {
        let mut entries = Vec::new();
        if !classes.weight.is_empty() {
            entries.push(("weight".to_string(), list(classes.weight.iter().copied())));
        }
        entries.push(("ignore_index".into(), Yaml::Plain(classes.ignore_index.to_string())));
        entries.push(("class_dim".into(), Yaml::Plain(classes.class_dim.dim().to_string())));
        entries
    };
    let arguments = match loss {
        LossSpec::MSELoss | LossSpec::L1Loss | LossSpec::BCELoss => return loss.name().into(),
        LossSpec::SmoothL1Loss { beta } => vec![("beta".to_string(), (*beta).into())],
        LossSpec::HuberLoss { delta } => vec![("delta".into(), (*delta).into())],
        LossSpec::CrossEntropyLoss { classes: of, label_smoothing } => {
            let mut entries = classes(of);
            entries.push(("label_smoothing".into(), (*label_smoothing).into()));
            entries
        }
        LossSpec::NLLLoss { classes: of } => classes(of),
        LossSpec::BCEWithLogitsLoss { pos_weight } => {
            vec![("pos_weight".into(), list(pos_weight.iter().copied()))]
        }
        LossSpec::KLDivLoss { log_target, batchmean } => vec![
            ("reduction".into(), if *batchmean { "batchmean" } else { "mean" }.into()),
            ("log_target".into(), (*log_target).into()),
        ],
    };
    map([(loss.name(), Yaml::Map(arguments))])
}

fn optimizer(optimizer: &OptimizerSpec) -> Yaml {
    let adam = |args: &AdamArgs| {
        map([
            ("lr", args.lr.into()),
            ("betas", list([args.betas.0, args.betas.1])),
            ("eps", args.eps.into()),
            ("weight_decay", args.weight_decay.into()),
        ])
    };
    let arguments = match optimizer {
        OptimizerSpec::SGD { lr, momentum, dampening, weight_decay, nesterov } => map([
            ("lr", (*lr).into()),
            ("momentum", (*momentum).into()),
            ("dampening", (*dampening).into()),
            ("weight_decay", (*weight_decay).into()),
            ("nesterov", (*nesterov).into()),
        ]),
        OptimizerSpec::Adam(args) | OptimizerSpec::AdamW(args) => adam(args),
    };
    map([(optimizer.name(), arguments)])
}

fn lr_schedule(schedule: &LrSchedule) -> Yaml {
    let mut arguments = vec![
        ("warmup".to_string(), schedule.warmup.steps.into()),
        ("start_factor".into(), schedule.warmup.start_factor.into()),
    ];
    let name = match schedule.decay {
        LrDecay::Constant => "constant",
        LrDecay::Linear { total_steps } => {
            arguments.push(("total_steps".into(), total_steps.into()));
            "linear"
        }
        LrDecay::Cosine { total_steps } => {
            arguments.push(("total_steps".into(), total_steps.into()));
            "cosine"
        }
        LrDecay::InverseSqrt { timescale } => {
            arguments.extend(timescale.map(|scale| ("timescale".into(), scale.into())));
            "inverse_sqrt"
        }
        LrDecay::Step { step_size, gamma } => {
            arguments.push(("step_size".into(), step_size.into()));
            arguments.push(("gamma".into(), gamma.into()));
            "step"
        }
    };
    map([(name, Yaml::Map(arguments))])
}

fn recompute(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
    }
}

fn weights(weights: &Weights) -> Yaml {
    let rules = weights.rename.texts();
    let names = |names: &[String]| list(names.iter().map(String::as_str));
    let renamed = rules.renamed.iter().map(|(name, from)| (name.clone(), sources::write(from)));
    let reader = match weights.reader {
        FileReader::Boss => "boss",
        FileReader::Workers => "workers",
    };
    map([
        ("path", path(&weights.path)),
        ("on", reader.into()),
        ("rename", Yaml::Map(renamed.collect())),
        ("ignore", names(&rules.ignored)),
        ("fresh", names(&rules.fresh)),
    ])
}

fn translate(translate: &TranslationSettings) -> Yaml {
    let mut entries = vec![
        ("beams".to_string(), u64::from(translate.search.beams).into()),
        ("length_penalty".into(), translate.search.length_penalty.into()),
        ("max_length".into(), translate.search.max_length.into()),
        ("samples".into(), translate.samples.into()),
    ];
    if translate.pairs < u64::MAX {
        entries.push(("pairs".into(), translate.pairs.into()));
    }
    Yaml::Map(entries)
}

fn checkpoint(policy: &Policy) -> Yaml {
    let mut entries = Vec::new();
    entries.extend(policy.dir.as_ref().map(|dir| ("dir".to_string(), dir.as_str().into())));
    entries.push(("every".into(), every(policy.every)));
    entries.push(("keep".into(), (policy.keep as u64).into()));
    let best = policy.keep_best.map(|best| match best {
        KeepBest::Loss => "loss",
        KeepBest::Accuracy => "accuracy",
    });
    entries.extend(best.map(|best| ("keep_best".into(), best.into())));
    Yaml::Map(entries)
}

fn every(every: Every) -> Yaml {
    match every {
        Every::Steps(steps) => map([("steps", steps.into())]),
        Every::Minutes(minutes) => map([("minutes", minutes.into())]),
    }
}

fn redundancy(source: RecoverySource) -> Yaml {
    match source {
        RecoverySource::None => "none".into(),
        RecoverySource::Checkpoint => "checkpoint".into(),
        RecoverySource::PeerSnapshot(interval) => map([("neighbour", every(interval))]),
    }
}

fn guards(guards: &Guards) -> Yaml {
    let nonfinite = match guards.nonfinite {
        NonFinite::Stop => "stop",
        NonFinite::Skip => "skip",
    };
    map([
        ("nonfinite", nonfinite.into()),
        ("layers_every", guards.layers_every.into()),
        ("chance_after", guards.chance_after.into()),
    ])
}
