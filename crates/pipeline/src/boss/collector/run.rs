//! The answer to a round.

use super::clock::Clock;
use super::norms::Norms;
use crate::boss::answer::RoundResults;
use crate::boss::request::RunRequest;
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::Span;
use crate::norm::Square;
use crate::plan::Plan;
use crate::schedule::Action;
use crate::watch::LayerHealth;
use layerspec::{LayerId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The losses, outputs, norms and health that a round returns.
pub(super) struct RunParts {
    /// Outputs of the model that have not arrived, with their worker.
    missing_outputs: BTreeMap<(u32, ValueId), WorkerId>,
    norms: Norms,
    /// The layers whose health workers may report, if requested.
    watched: Option<BTreeSet<LayerId>>,
    results: RoundResults,
}

impl RunParts {
    pub(super) fn of(run: &RunRequest, plan: &Plan, workers: &BTreeSet<WorkerId>) -> Self {
        RunParts {
            missing_outputs: outputs(run, plan),
            norms: Norms::of(run, plan, workers),
            watched: run.watch.health.then(|| layers(plan)),
            results: RoundResults::default(),
        }
    }

    pub(super) fn norms(&self) -> &Norms {
        &self.norms
    }

    /// Continues without the outputs of a lost worker.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.missing_outputs.retain(|_, from| *from != worker);
    }

    /// The number of outputs that a worker has still to send.
    pub(super) fn missing_outputs_of(&self, worker: WorkerId) -> i64 {
        self.missing_outputs.values().filter(|from| **from == worker).count() as i64
    }

    /// Takes the losses and times of a worker that is done.
    pub(super) fn take_done(
        &mut self,
        from: WorkerId,
        losses: Vec<(u32, f32)>,
        spans: Vec<Span>,
        clock: &Clock,
    ) {
        self.results.losses.extend(losses);
        self.results.spans.extend(spans.into_iter().map(|span| clock.place(from, span)));
    }

    /// Whether a worker has still to send this output.
    pub(super) fn misses_output(&self, from: WorkerId, microbatch: u32, value: ValueId) -> bool {
        self.missing_outputs.get(&(microbatch, value)) == Some(&from)
    }

    pub(super) fn put_output(&mut self, microbatch: u32, value: ValueId, slot: Slot) {
        self.missing_outputs.remove(&(microbatch, value));
        self.results.outputs.push((microbatch, value, slot));
    }

    /// Takes the health of layers from a worker that is at work.
    pub(super) fn take_health(&mut self, layers: Vec<LayerHealth>) -> Result<(), String> {
        let known = |seen: &LayerHealth| {
            self.watched.as_ref().is_some_and(|known| known.contains(&seen.layer))
        };
        if !layers.iter().all(known) {
            return Err("reported the health of layers unasked".into());
        }
        let all = std::mem::take(&mut self.results.health);
        self.results.health = LayerHealth::together(all.into_iter().chain(layers));
        Ok(())
    }

    /// Takes a worker's sums of squares. Returns the norm over all stages with the last of them.
    pub(super) fn take_norms(
        &mut self,
        from: WorkerId,
        squares: Vec<Square>,
        losses: Vec<(u32, f32)>,
    ) -> Result<Option<f64>, String> {
        let norm = self.norms.take(from, squares)?;
        self.results.losses.extend(losses);
        Ok(norm)
    }

    /// The number of outputs that have arrived.
    pub(super) fn held(&self) -> usize {
        self.results.outputs.len()
    }

    pub(super) fn into_slots(self) -> Vec<Slot> {
        self.results.outputs.into_iter().map(|(.., slot)| slot).collect()
    }

    pub(super) fn into_results(self, behind: Vec<(WorkerId, usize)>) -> RoundResults {
        let mut results = RoundResults { grad_norm: self.norms.norm(), behind, ..self.results };
        results.losses.sort_by_key(|(microbatch, _)| *microbatch);
        results.outputs.sort_by_key(|(microbatch, value, _)| (*microbatch, *value));
        results
    }
}

fn layers(plan: &Plan) -> BTreeSet<LayerId> {
    plan.stages.iter().flat_map(|stage| &stage.layers).map(|layer| layer.id).collect()
}

/// The outputs of the model that a round computes and sends, each with its worker.
fn outputs(run: &RunRequest, plan: &Plan) -> BTreeMap<(u32, ValueId), WorkerId> {
    let of_stage = |stage: StageId| {
        let outputs = plan.stages.iter().filter(move |s| s.stage == stage).flat_map(|s| &s.outputs);
        outputs.filter(|o| o.model_output.is_some_and(|o| run.outputs.has(o))).map(|o| o.value)
    };
    let lists =
        run.actions.iter().enumerate().map(|(worker, list)| (WorkerId(worker as u16), list));
    let made = lists.flat_map(|(worker, list)| {
        let forwards = list.iter().filter_map(|action| match *action {
            Action::Forward { stage, microbatch } => Some((stage, microbatch)),
            _ => None,
        });
        forwards.flat_map(move |(stage, microbatch)| {
            of_stage(stage).map(move |v| ((microbatch, v), worker))
        })
    });
    made.collect()
}
