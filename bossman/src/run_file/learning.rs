//! The keys of learning in a run file: loss, optimizer, learning-rate schedule.

use layerspec::yaml::{
    Choice, Mapping, COUNT, FLAG, INTEGER, NON_NEGATIVE, NUMBER, POSITIVE, PROBABILITY, SIZE, TEXT,
};
use layerspec::Diagnostic;
use pipeline::loss::{ClassDim, Classes};
use pipeline::lr_schedule::{LrDecay, LrSchedule, Warmup};
use pipeline::optimizer::AdamArgs;
use pipeline::{LossSpec, OptimizerSpec};

pub(super) fn loss(choice: &Choice<'_>) -> Result<LossSpec, Diagnostic> {
    let keys: &[&str] = match choice.name {
        "MSELoss" | "L1Loss" | "BCELoss" => &[],
        "SmoothL1Loss" => &["beta"],
        "HuberLoss" => &["delta"],
        "CrossEntropyLoss" => &["weight", "ignore_index", "class_dim", "label_smoothing"],
        "NLLLoss" => &["weight", "ignore_index", "class_dim"],
        "BCEWithLogitsLoss" => &["pos_weight"],
        "KLDivLoss" => &["reduction", "log_target"],
        _ => return Err(choice.unknown("loss", &LossSpec::NAMES)),
    };
    let args = choice.arguments(keys)?;
    Ok(match choice.name {
        "MSELoss" => LossSpec::MSELoss,
        "L1Loss" => LossSpec::L1Loss,
        "SmoothL1Loss" => {
            LossSpec::SmoothL1Loss { beta: args.optional("beta", &NON_NEGATIVE)?.unwrap_or(1.0) }
        }
        "HuberLoss" => {
            LossSpec::HuberLoss { delta: args.optional("delta", &POSITIVE)?.unwrap_or(1.0) }
        }
        "CrossEntropyLoss" => {
            let label_smoothing = args.optional("label_smoothing", &PROBABILITY)?.unwrap_or(0.0);
            let classes = classes(&args)?;
            if label_smoothing > 0.0 && classes.weight.contains(&0.0) {
                let why = "`weight`: with `label_smoothing` every class needs a weight above 0, \
                           because a microbatch whose targets all have weight 0 has no mean; \
                           `ignore_index` leaves a class out";
                return Err(Diagnostic::new(args.need("weight")?.location, why));
            }
            LossSpec::CrossEntropyLoss { classes, label_smoothing }
        }
        "NLLLoss" => LossSpec::NLLLoss { classes: classes(&args)? },
        "BCELoss" => LossSpec::BCELoss,
        "BCEWithLogitsLoss" => {
            LossSpec::BCEWithLogitsLoss { pos_weight: weights(&args, "pos_weight")? }
        }
        _ => LossSpec::KLDivLoss {
            log_target: args.optional("log_target", &FLAG)?.unwrap_or(false),
            batchmean: batchmean(&args)?,
        },
    })
}

fn classes(args: &Mapping<'_>) -> Result<Classes, Diagnostic> {
    let ignore_index =
        args.optional("ignore_index", &INTEGER)?.unwrap_or(Classes::default().ignore_index);
    Ok(Classes { weight: weights(args, "weight")?, ignore_index, class_dim: class_dim(args)? })
}

fn class_dim(args: &Mapping<'_>) -> Result<ClassDim, Diagnostic> {
    match args.optional("class_dim", &INTEGER)? {
        None | Some(1) => Ok(ClassDim::Second),
        Some(-1) => Ok(ClassDim::Last),
        Some(_) => {
            let expected = "1, or -1 for the last dimension";
            Err(args.need("class_dim")?.unexpected("`class_dim`", expected))
        }
    }
}

fn weights(args: &Mapping<'_>, key: &str) -> Result<Vec<f64>, Diagnostic> {
    let Some(node) = args.get(key) else { return Ok(Vec::new()) };
    let expected = "a list of numbers, 0 or more, one for each class";
    node.list(&format!("`{key}`"), expected)?
        .iter()
        .map(|weight| weight.read("a weight", &NON_NEGATIVE))
        .collect()
}

/// PyTorch's default is `mean`, over elements. `sum` is refused, because a batch is cut into
/// microbatches.
fn batchmean(args: &Mapping<'_>) -> Result<bool, Diagnostic> {
    match args.optional("reduction", &TEXT)?.as_deref() {
        None | Some("mean") => Ok(false),
        Some("batchmean") => Ok(true),
        Some(_) => Err(args.need("reduction")?.unexpected("`reduction`", "`mean` or `batchmean`")),
    }
}

pub(super) fn optimizer(choice: &Choice<'_>) -> Result<OptimizerSpec, Diagnostic> {
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
            let args =
                choice.arguments(&["lr", "momentum", "dampening", "weight_decay", "nesterov"])?;
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

fn betas(args: &Mapping<'_>) -> Result<(f64, f64), Diagnostic> {
    let Some(node) = args.get("betas") else { return Ok((0.9, 0.999)) };
    match node.list("`betas`", "two numbers")? {
        [first, second] => Ok((first.read("a beta", &NUMBER)?, second.read("a beta", &NUMBER)?)),
        _ => Err(node.unexpected("`betas`", "two numbers")),
    }
}

const LR_SCHEDULES: [&str; 5] = ["constant", "linear", "cosine", "inverse_sqrt", "step"];

pub(super) fn lr_schedule(run: &Mapping<'_>) -> Result<LrSchedule, Diagnostic> {
    let Some(node) = run.get("lr_schedule") else { return Ok(LrSchedule::default()) };
    let choice = node.choice("`lr_schedule`", "a learning-rate schedule")?;
    let keys: &[&str] = match choice.name {
        "constant" => &["warmup", "start_factor"],
        "linear" | "cosine" => &["warmup", "start_factor", "total_steps"],
        "inverse_sqrt" => &["warmup", "start_factor", "timescale"],
        "step" => &["warmup", "start_factor", "step_size", "gamma"],
        _ => return Err(choice.unknown("learning-rate schedule", &LR_SCHEDULES)),
    };
    let args = choice.arguments(keys)?;
    let total_steps = || args.required("total_steps", &SIZE);
    let decay = match choice.name {
        "linear" => LrDecay::Linear { total_steps: total_steps()? },
        "cosine" => LrDecay::Cosine { total_steps: total_steps()? },
        "inverse_sqrt" => LrDecay::InverseSqrt { timescale: args.optional("timescale", &SIZE)? },
        "step" => {
            let gamma = args.optional("gamma", &NON_NEGATIVE)?.unwrap_or(0.1);
            LrDecay::Step { step_size: args.required("step_size", &SIZE)?, gamma }
        }
        _ => LrDecay::Constant,
    };
    let steps = args.optional("warmup", &COUNT)?.unwrap_or(0);
    let start_factor = args.optional("start_factor", &PROBABILITY)?.unwrap_or(0.0);
    if let Some(factor) = args.get("start_factor").filter(|_| steps == 0 && start_factor > 0.0) {
        let why = "`start_factor` needs `warmup`, in whose first step it is the factor";
        return Err(Diagnostic::new(factor.location, why));
    }
    let schedule = LrSchedule { warmup: Warmup { steps, start_factor }, decay };
    schedule.check().map_err(|why| Diagnostic::new(node.location, why))?;
    Ok(schedule)
}
