//! What a run file says of learning: loss, optimizer, learning-rate schedule.

use layerspec::yaml::{Choice, Mapping, COUNT, FLAG, NON_NEGATIVE, NUMBER, PROBABILITY, SIZE};
use layerspec::Fault;
use pipeline::lr_schedule::{LrDecay, LrSchedule, Warmup};
use pipeline::optimizer::AdamArgs;
use pipeline::{LossSpec, OptimizerSpec};

pub(super) fn loss(choice: &Choice<'_>) -> Result<LossSpec, Fault> {
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

pub(super) fn optimizer(choice: &Choice<'_>) -> Result<OptimizerSpec, Fault> {
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

const LR_SCHEDULES: [&str; 5] = ["constant", "linear", "cosine", "inverse_sqrt", "step"];

pub(super) fn lr_schedule(run: &Mapping<'_>) -> Result<LrSchedule, Fault> {
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
    let schedule = LrSchedule { warmup: Warmup { steps, start_factor }, decay };
    schedule.check().map_err(|why| Fault::new(node.place, why))?;
    Ok(schedule)
}
