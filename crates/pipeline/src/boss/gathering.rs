//! Collects the answer to a request.

use super::request::{id_makers, Keepers};
use super::{Request, RunRequest};
use crate::effect::{Answer, Micros, WorkerSpan};
use crate::ids::{Slot, StageId, WorkerId};
use crate::kept::MOST_COPIES;
use crate::message::{Head, Span};
use crate::norm::{Square, Squares};
use crate::plan::Plan;
use crate::schedule::Action;
use crate::task::LayerTimes;
use crate::watch::LayerHealth;
use layerspec::{LayerId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The workers that have not answered, and the parts that have arrived.
pub(super) struct Gathering {
    started: Micros,
    unanswered: BTreeSet<WorkerId>,
    answer: Answer,
    /// The announced tensors minus the arrived ones, for each worker.
    missing: BTreeMap<WorkerId, i64>,
    /// Outputs of the model that have not arrived.
    outputs: BTreeMap<(u32, ValueId), WorkerId>,
    /// Whether named tensors are requested, and those that arrived.
    names: Option<BTreeSet<String>>,
    /// Parts of snapshots that are not stored yet: the storing worker and the worker that makes the
    /// part. `None` if none are requested.
    keeps: Option<BTreeMap<(WorkerId, u32), WorkerId>>,
    /// Workers that have not listed their snapshots.
    uncounted: BTreeSet<WorkerId>,
    /// The number of layers that each worker measures.
    probes: Option<usize>,
    unmeasured: BTreeSet<WorkerId>,
    /// Workers that have not sent their hashes.
    undigested: BTreeSet<WorkerId>,
    /// Workers that have not sent their NCCL ids, with the stages of these.
    unidentified: BTreeMap<WorkerId, Vec<StageId>>,
    /// Workers that have not sent norms, and the norms of the others.
    norms: BTreeSet<WorkerId>,
    squares: Squares,
    scale: f64,
    /// The layers whose health workers may report, if requested.
    health: Option<BTreeSet<LayerId>>,
    /// Set once the norms of every replica have arrived: each has the data for its update.
    committed: bool,
    commits: bool,
}

impl Gathering {
    pub(super) fn new(now: Micros, unanswered: BTreeSet<WorkerId>, request: &Request, plan: &Plan) -> Self {
        let run = match request {
            Request::Run(run) => Some(run),
            _ => None,
        };
        let gives_norms = |worker: &WorkerId| {
            let actions = run.and_then(|run| run.actions.get(worker.0 as usize));
            actions.is_some_and(|list| list.iter().any(|a| matches!(a, Action::GradNorm { .. })))
        };
        let probes = match request {
            Request::Measure(probes) => Some(probes.len()),
            _ => None,
        };
        Gathering {
            started: now,
            answer: Answer::default(),
            missing: BTreeMap::new(),
            outputs: run.filter(|run| run.outputs).map(|run| outputs(run, plan)).unwrap_or_default(),
            names: matches!(request, Request::SendState { .. }).then(BTreeSet::new),
            keeps: match request {
                Request::Keep(keeping) => Some(kept_by(keeping.parts(plan))),
                _ => None,
            },
            uncounted: if matches!(request, Request::Copies { .. }) { unanswered.clone() } else { BTreeSet::new() },
            probes,
            unmeasured: if probes.is_some() { unanswered.clone() } else { BTreeSet::new() },
            undigested: if matches!(request, Request::Digest) { unanswered.clone() } else { BTreeSet::new() },
            unidentified: if matches!(request, Request::MakeIds) { id_makers(plan) } else { BTreeMap::new() },
            norms: unanswered.iter().copied().filter(gives_norms).collect(),
            squares: Squares::default(),
            scale: run.and_then(|run| run.update).map_or(1.0, |update| update.scale),
            health: run.filter(|run| run.watch.health).map(|_| layers(plan)),
            unanswered,
            committed: false,
            commits: run.is_some_and(|run| commits(run, plan)),
        }
    }

    /// Whether every worker can update its parameters without further help of others.
    pub(super) fn is_committed(&self) -> bool {
        self.committed
    }

    /// Continues without a lost worker.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.unanswered.remove(&worker);
        self.missing.remove(&worker);
        self.outputs.retain(|_, from| *from != worker);
    }

    /// Takes a worker's part of the answer. Returns the norm over all stages once it is known.
    ///
    /// # Errors
    /// The worker violated the protocol. The error returns its tensors, which are not used.
    pub(super) fn take(
        &mut self,
        now: Micros,
        from: WorkerId,
        head: Head,
        slots: &[Slot],
    ) -> Result<Option<f64>, String> {
        match head {
            Head::Done { losses, sent, received, answered, spans, .. } => {
                if !self.unanswered.remove(&from) {
                    return Err("answered twice".into());
                }
                let owes = [&self.unmeasured, &self.norms, &self.undigested, &self.uncounted];
                let owed = owes.iter().any(|owed| owed.contains(&from));
                if owed || self.unidentified.contains_key(&from) {
                    return Err("answered without what it was asked for".into());
                }
                self.answer.losses.extend(losses);
                let clock = Clock { asked: self.started, received, answered, heard: now };
                self.answer.spans.extend(spans.into_iter().map(|span| clock.place(from, span)));
                *self.missing.entry(from).or_insert(0) += i64::from(sent);
                self.check_count(from)?;
            }
            Head::Output { key, value } => {
                let [slot] = slots else { return Err("sent an output without its tensor".into()) };
                let place = (key.index, value);
                if self.outputs.get(&place) != Some(&from) {
                    return Err(format!(
                        "sent an output of microbatch {} twice, or one that it does not make",
                        key.index
                    ));
                }
                self.arrives(from)?;
                self.outputs.remove(&place);
                self.answer.outputs.push((key.index, value, *slot));
            }
            Head::State { name, .. } => {
                let [slot] = slots else { return Err("sent a parameter without its tensor".into()) };
                // Otherwise a worker could replace another worker's weights.
                let asked = self.unanswered.contains(&from) || self.missing.contains_key(&from);
                let new = asked && self.names.as_mut().is_some_and(|names| names.insert(name.clone()));
                if !new {
                    return Err(format!("sent the parameter `{name}` twice, or unasked"));
                }
                self.arrives(from)?;
                self.answer.state.push((name, *slot));
            }
            Head::Kept { part, .. } => {
                if self.keeps.as_mut().is_none_or(|keeps| keeps.remove(&(from, part)).is_none()) {
                    return Err("keeps what nobody asked it to".into());
                }
            }
            Head::Copies { copies, .. } => {
                if copies.len() > MOST_COPIES || !self.uncounted.remove(&from) {
                    return Err("told unasked what it keeps, or more than it can".into());
                }
                self.answer.copies.extend(copies.into_iter().map(|copy| (from, copy)));
            }
            Head::Measured { times, .. } => {
                if self.probes != Some(times.len()) || !self.unmeasured.remove(&from) {
                    return Err("sent measurements that nobody asked for".into());
                }
                self.answer.measured.push((from, times.iter().map(LayerTimes::bounded).collect()));
            }
            Head::Digests { digests, .. } => {
                if !self.undigested.remove(&from) {
                    return Err("sent digests that nobody asked for".into());
                }
                let of_worker = |(stage, name, digest)| (from, stage, name, digest);
                self.answer.digests.extend(digests.into_iter().map(of_worker));
            }
            Head::UniqueIds { ids, .. } => {
                let stages: Vec<StageId> = ids.iter().map(|(stage, _)| *stage).collect();
                if self.unidentified.remove(&from) != Some(stages) {
                    return Err("sent ids for communicators that nobody asked for".into());
                }
                self.answer.unique_ids.extend(ids);
            }
            Head::Health { layers, .. } => {
                let known = |seen: &LayerHealth| self.health.as_ref().is_some_and(|known| known.contains(&seen.layer));
                if !layers.iter().all(known) || !self.unanswered.contains(&from) {
                    return Err("told unasked how layers fare".into());
                }
                let all = std::mem::take(&mut self.answer.health);
                self.answer.health = LayerHealth::together(all.into_iter().chain(layers));
            }
            Head::Norms { squares, losses, .. } => {
                let norm = self.norms(from, squares)?;
                self.answer.losses.extend(losses);
                return Ok(norm);
            }
            _ => return Err("sent what only the boss may send".into()),
        }
        Ok(None)
    }

    fn arrives(&mut self, from: WorkerId) -> Result<(), String> {
        *self.missing.entry(from).or_insert(0) -= 1;
        self.check_count(from)
    }

    fn check_count(&self, from: WorkerId) -> Result<(), String> {
        let missing = self.missing.get(&from).copied().unwrap_or(0);
        let done = !self.unanswered.contains(&from);
        let to_come = self.outputs.values().filter(|worker| **worker == from).count() as i64;
        if done && (missing < 0 || (self.names.is_none() && missing > to_come)) {
            return Err("sent more tensors than it says, or fewer than it can".into());
        }
        Ok(())
    }

    fn norms(&mut self, from: WorkerId, squares: Vec<Square>) -> Result<Option<f64>, String> {
        if !self.norms.remove(&from) {
            return Err("sent norms that nobody asked for".into());
        }
        self.squares.take(squares)?;
        if !self.norms.is_empty() {
            return Ok(None);
        }
        let norm = self.squares.norm()? * self.scale.abs();
        self.answer.grad_norm = Some(norm);
        self.committed = self.commits;
        Ok(Some(norm))
    }

    /// Whether every worker has answered. Tensors may still arrive.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Whether tensors of a worker are still arriving.
    pub(super) fn misses(&self, worker: WorkerId) -> bool {
        let keeps = self.keeps.iter().flatten().any(|((keeper, _), maker)| *keeper == worker || *maker == worker);
        keeps || self.missing.get(&worker).is_some_and(|missing| *missing != 0)
    }

    /// Whether the answer is about stored snapshots.
    pub(super) fn is_kept(&self) -> bool {
        self.keeps.is_some()
    }

    pub(super) fn is_complete(&self) -> bool {
        let kept = self.keeps.as_ref().is_none_or(BTreeMap::is_empty);
        kept && self.unanswered.is_empty() && self.missing.values().all(|missing| *missing == 0)
    }

    pub(super) fn into_answer(self) -> Answer {
        let mut answer = self.answer;
        answer.losses.sort_by_key(|(microbatch, _)| *microbatch);
        answer.outputs.sort_by_key(|(microbatch, value, _)| (*microbatch, *value));
        answer.digests.sort_unstable();
        answer.unique_ids.sort_by_key(|(stage, _)| *stage);
        answer.measured.sort_by_key(|(worker, _)| *worker);
        answer
    }

    /// Every arrived tensor, to free an answer that is not given.
    pub(super) fn give_up(&mut self) -> Vec<Slot> {
        let outputs = self.answer.outputs.drain(..).map(|(.., slot)| slot);
        outputs.chain(self.answer.state.drain(..).map(|(_, slot)| slot)).collect()
    }
}

/// Whether every replica of every stage computes the norm before its update. Tied parameters travel
/// only after that, so with them no worker can finish alone.
fn commits(run: &RunRequest, plan: &Plan) -> bool {
    let finds = |(stage, worker): (StageId, WorkerId)| {
        let list = run.actions.get(worker.0 as usize).map_or(&[][..], Vec::as_slice);
        list.contains(&Action::GradNorm { stage })
    };
    let all =
        plan.stage_placement.iter().flat_map(|(stage, workers)| workers.iter().map(move |worker| (stage, *worker)));
    // Sharded parameters are updated by one replica, and the others depend on it.
    let alone = plan.sharding.is_none() && plan.stages.iter().all(|stage| stage.tied_copies.is_empty());
    alone && all.into_iter().all(finds)
}

fn layers(plan: &Plan) -> BTreeSet<LayerId> {
    plan.stages.iter().flat_map(|stage| &stage.layers).map(|layer| layer.id).collect()
}

/// The storing worker of each part, and the worker that makes it.
fn kept_by(parts: BTreeMap<u32, Keepers>) -> BTreeMap<(WorkerId, u32), WorkerId> {
    let both = |(part, Keepers { owner, other, sends })| {
        [((owner, part), owner), ((other, part), if sends { owner } else { other })]
    };
    parts.into_iter().flat_map(both).collect()
}

/// The outputs of the model that a round computes, each with its worker.
fn outputs(run: &RunRequest, plan: &Plan) -> BTreeMap<(u32, ValueId), WorkerId> {
    let of_stage = |stage: StageId| {
        let outputs = plan.stages.iter().filter(move |s| s.stage == stage).flat_map(|s| &s.outputs);
        outputs.filter(|o| o.model_output.is_some()).map(|o| o.value)
    };
    let lists = run.actions.iter().enumerate().map(|(worker, list)| (WorkerId(worker as u16), list));
    let made = lists.flat_map(|(worker, list)| {
        let forwards = list.iter().filter_map(|action| match *action {
            Action::Forward { stage, microbatch } => Some((stage, microbatch)),
            _ => None,
        });
        forwards.flat_map(move |(stage, microbatch)| of_stage(stage).map(move |v| ((microbatch, v), worker)))
    });
    made.collect()
}

/// A question and its answer, by the clocks of both ends.
struct Clock {
    asked: Micros,
    received: Micros,
    answered: Micros,
    heard: Micros,
}

impl Clock {
    /// Converts a worker's time to the boss's clock. The middle of the worker's working time is the
    /// middle of the boss's wait, as in NTP (RFC 5905).
    fn place(&self, worker: WorkerId, span: Span) -> WorkerSpan {
        let middle = |a: Micros, b: Micros| i128::from(a.0) + i128::from(b.0);
        let ahead = (middle(self.received, self.answered) - middle(self.asked, self.heard)) / 2;
        let on_boss = |time: Micros| Micros(u64::try_from(i128::from(time.0) - ahead).unwrap_or(0));
        WorkerSpan { worker, action: span.action, start: on_boss(span.start), end: on_boss(span.end) }
    }
}
