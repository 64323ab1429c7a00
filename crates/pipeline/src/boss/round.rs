//! Refuses a round that lacks a tensor it would wait for, or that has a tensor without use.

use super::request::RunRequest;
use crate::ids::{StageId, WorkerId};
use crate::message::{Failure, MAX_MICROBATCHES};
use crate::plan::{Plan, StageSpec};
use crate::schedule::Action;
use layerspec::ValueId;
use std::collections::BTreeSet;

/// Checks that a round has each action and each outside tensor of its actions exactly once.
pub(super) fn check(run: &RunRequest, plan: &Plan) -> Result<(), Failure> {
    let mut wanted = Wanted::default();
    for (worker, list) in run.actions.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for action in list {
            let spec = plan.stages.get(action.stage().0 as usize);
            let me = WorkerId(worker as u16);
            let here = match action.microbatch() {
                Some(m) => {
                    run.microbatch_assignment.worker(&plan.stage_placement, action.stage(), m)
                        == Some(me)
                }
                None => plan.stage_placement.has(action.stage(), me),
            };
            let Some(spec) = spec.filter(|_| here) else {
                return Err(Failure::new(format!(
                    "the {} of {} is not worker {worker}'s",
                    action.verb(),
                    action.stage()
                )));
            };
            if !action.may_repeat() && !seen.insert(*action) {
                return Err(listed_twice(action).on(me));
            }
            wanted.add(run, spec, action);
        }
    }
    if run.microbatches > MAX_MICROBATCHES {
        return Err(Failure::new(format!(
            "a batch of {} microbatches; at most {MAX_MICROBATCHES} are possible",
            run.microbatches
        )));
    }
    if !run.microbatch_assignment.fits(&plan.stage_placement) {
        return Err(Failure::new("microbatches are assigned to replicas that do not exist"));
    }
    if run.actions.len() > plan.workers() {
        return Err(Failure::new(format!(
            "actions for {} workers; there are {}",
            run.actions.len(),
            plan.workers()
        )));
    }
    let used =
        |value: ValueId| plan.stages.iter().any(|s| s.inputs.iter().any(|i| i.value == value));
    let wants_grad = |v: ValueId| {
        plan.stages.iter().any(|s| s.outputs.iter().any(|o| o.value == v && o.needs_grad))
    };
    if let Some(samples) = &run.samples {
        let microbatches =
            wanted.inputs.iter().chain(&wanted.targets).map(|(microbatch, _)| *microbatch);
        if let Some(missing) =
            microbatches.into_iter().find(|m| samples.part(*m, run.microbatches).is_none())
        {
            return Err(Failure {
                microbatch: Some(missing),
                ..Failure::new("no samples are given for it")
            });
        }
        // Workers read them from their files.
        (wanted.inputs, wanted.targets) = Default::default();
    }
    let inputs = run
        .inputs
        .iter()
        .filter(|(_, value, _)| used(*value))
        .map(|(index, value, _)| (*index, *value));
    each_once("an input", &mut wanted.inputs, inputs)?;
    each_once(
        "a target",
        &mut wanted.targets,
        run.targets.iter().map(|(index, _)| (*index, ValueId(0))),
    )?;
    let grads = run.grads.iter().flatten().filter(|(_, value, _)| wants_grad(*value));
    each_once("a gradient", &mut wanted.grads, grads.map(|(index, value, _)| (*index, *value)))?;
    update(run)
}

fn listed_twice(action: &Action) -> Failure {
    Failure {
        stage: Some(action.stage()),
        action: Some(action.verb().to_string()),
        microbatch: action.microbatch(),
        ..Failure::new("it is listed twice")
    }
}

/// The tensors that actions take from the boss, by microbatch and variable.
#[derive(Default)]
struct Wanted {
    inputs: BTreeSet<(u32, ValueId)>,
    targets: BTreeSet<(u32, ValueId)>,
    grads: BTreeSet<(u32, ValueId)>,
}

impl Wanted {
    fn add(&mut self, run: &RunRequest, spec: &StageSpec, action: &Action) {
        match *action {
            Action::Forward { microbatch, .. } => {
                let inputs = spec.inputs.iter().filter(|i| i.from.is_none());
                self.inputs.extend(inputs.map(|i| (microbatch, i.value)));
                let loss_here =
                    run.loss.is_some() && spec.outputs.iter().any(|o| o.model_output == Some(0));
                self.targets.extend(loss_here.then_some((microbatch, ValueId(0))));
            }
            Action::Backward { microbatch, .. } | Action::BackwardInput { microbatch, .. }
                if run.grads.is_some() =>
            {
                let outputs =
                    spec.outputs.iter().filter(|o| o.model_output.is_some() && o.needs_grad);
                self.grads.extend(outputs.map(|o| (microbatch, o.value)));
            }
            _ => {}
        }
    }
}

fn each_once(
    what: &str,
    wanted: &mut BTreeSet<(u32, ValueId)>,
    given: impl Iterator<Item = (u32, ValueId)>,
) -> Result<(), Failure> {
    for place in given {
        if !wanted.remove(&place) {
            let message =
                format!("{what} is given twice, or for a microbatch that does not take it");
            return Err(Failure { microbatch: Some(place.0), ..Failure::new(message) });
        }
    }
    match wanted.first() {
        Some((microbatch, _)) => Err(Failure {
            microbatch: Some(*microbatch),
            ..Failure::new(format!("{what} is missing"))
        }),
        None => Ok(()),
    }
}

/// Checks that a round that updates parameters states how, and computes the norm if it limits it.
fn update(run: &RunRequest) -> Result<(), Failure> {
    let stages = |wanted: &dyn Fn(&Action) -> bool| -> BTreeSet<StageId> {
        run.actions.iter().flatten().filter(|a| wanted(a)).map(Action::stage).collect()
    };
    let updated = stages(&|a| matches!(a, Action::OptimStep { .. }));
    let measured = stages(&|a| matches!(a, Action::GradNorm { .. }));
    let limited = run.update.is_some_and(|update| update.max_norm.is_some());
    match updated.is_empty() {
        true => Ok(()),
        false if run.update.is_none() => {
            Err(Failure::new("an optimizer step without a learning rate"))
        }
        false if limited != (measured == updated) || (!limited && !measured.is_empty()) => {
            Err(Failure::new(
                "a limit for the norm of gradients needs an action for every stage that finds the \
                 norm, and such an action needs a limit",
            ))
        }
        false => Ok(()),
    }
}
