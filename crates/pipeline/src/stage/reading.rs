//! The samples that this worker reads from its own files for its stages.

use super::inbox::Item;
use super::needs::loss_output;
use super::{Job, StageSession};
use crate::effect::{Micros, StageEffect};
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket};
use crate::message::{Failure, Round};
use crate::plan::StageSpec;
use crate::samples::{part, Column, DataSpec, DataTask, Reading};
use crate::schedule::Action;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The requested reading.
pub(super) struct Asked {
    /// By which command.
    id: u64,
    what: What,
}

enum What {
    Open,
    /// For each column the stage that takes it.
    Read(MicrobatchKey, Vec<(Column, StageId)>),
}

impl StageSpec {
    /// The columns of a sample that it takes. `loss`: the round computes a loss.
    fn columns(&self, loss: bool) -> Vec<Column> {
        let inputs = self.inputs.iter().filter(|input| input.from.is_none()).map(|input| Column::Input(input.value));
        let target = loss_output(self).filter(|_| loss).map(|_| Column::Target);
        inputs.chain(target).collect()
    }

    /// Whether samples come to it from outside of the model.
    pub fn takes_samples(&self) -> bool {
        !self.columns(true).is_empty()
    }
}

/// For each microbatch that goes forward here, in the order of the first pass that takes it: its columns, each with the stage
/// that takes it.
fn wanted(round: &Round, stages: &[StageSpec]) -> Vec<(u32, Vec<(Column, StageId)>)> {
    let mut wanted: Vec<(u32, Vec<(Column, StageId)>)> = Vec::new();
    let mut places = BTreeMap::new();
    for action in &round.actions {
        let Action::Forward { stage, microbatch } = *action else { continue };
        let Some(spec) = stages.iter().find(|spec| spec.stage == stage) else { continue };
        let columns = spec.columns(round.loss.is_some());
        if columns.is_empty() {
            continue;
        }
        let place = *places.entry(microbatch).or_insert(wanted.len());
        if place == wanted.len() {
            wanted.push((microbatch, Vec::new()));
        }
        wanted[place].1.extend(columns.into_iter().map(|column| (column, stage)));
    }
    // Those of a column follow each other: it is read once.
    wanted.iter_mut().for_each(|(_, columns)| columns.sort());
    wanted
}

impl StageSession {
    pub(super) fn open_data(&mut self, id: u64, spec: DataSpec) {
        self.job = Some(Job::Task { id });
        self.ask(Asked { id, what: What::Open }, DataTask::Open(spec));
    }

    /// Whether every microbatch of a round that is read here is one of its samples.
    pub(super) fn has_samples(&self, round: &Round) -> bool {
        let Some(samples) = &round.samples else { return true };
        let forwards = round.actions.iter().filter(|action| matches!(action, Action::Forward { .. }));
        forwards.filter_map(Action::microbatch).all(|m| samples.part(m, round.microbatches).is_some())
    }

    /// Has the samples read of the round that begins, and then those that are likely to come next.
    pub(super) fn read_samples(&mut self) {
        let Some(Job::Round(running)) = &mut self.job else { return };
        let Some(samples) = running.round.samples.take() else { return };
        let (id, batch, microbatches) = (running.id, running.round.batch, running.round.microbatches);
        let wanted = wanted(&running.round, &self.stages);
        // Shared: a batch has many microbatches.
        let batches: Vec<Arc<[i64]>> = samples.batches.iter().map(|batch| batch.as_slice().into()).collect();
        let next: Arc<[i64]> = samples.next.as_slice().into();
        let reading = |batch: &Arc<[i64]>, part: Range<usize>, columns: &[(Column, StageId)]| Reading {
            data: samples.data,
            batch: batch.clone(),
            part,
            columns: columns.iter().map(|(column, _)| *column).collect(),
        };
        // A last batch that is smaller has fewer microbatches.
        let count = microbatches.min(u32::try_from(next.len()).unwrap_or(u32::MAX));
        let ahead = |(microbatch, columns): &(u32, Vec<(Column, StageId)>)| {
            Some(reading(&next, part(next.len(), *microbatch, count)?, columns))
        };
        let ahead: Vec<Reading> = wanted.iter().filter_map(ahead).collect();
        for (index, columns) in wanted {
            let Some((place, part)) = samples.part(index, microbatches) else { continue };
            let task = DataTask::Read(reading(&batches[place], part, &columns));
            let what = What::Read(MicrobatchKey { batch, index }, columns);
            self.ask(Asked { id, what }, task);
        }
        if !ahead.is_empty() {
            self.effects.push_back(StageEffect::ReadAhead(ahead));
        }
    }

    fn ask(&mut self, asked: Asked, task: DataTask) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.reads.insert(ticket, asked);
        self.effects.push_back(StageEffect::Data { ticket, task });
    }

    /// Data was opened, or a microbatch read: a tensor for each column that was asked for.
    pub fn on_data(&mut self, now: Micros, ticket: Ticket, result: Result<Vec<Slot>, Failure>) {
        self.now = now;
        let Some(Asked { id, what }) = self.reads.remove(&ticket) else {
            return self.drop_slots(result.unwrap_or_default());
        };
        let active = self.is_active(id);
        match (what, result) {
            (What::Open, Ok(tensors)) => {
                self.drop_slots(tensors);
                if active {
                    self.done(id, Vec::new(), 0, Vec::new());
                }
            }
            (What::Read(key, columns), Ok(tensors)) if active && tensors.len() == columns.len() => {
                let mut refused = None;
                for ((column, stage), slot) in columns.into_iter().zip(tensors) {
                    let item = match column {
                        Column::Input(value) => Item::Value(value),
                        Column::Target => Item::Target,
                    };
                    if let Err((slots, problem)) = self.inbox.put(key, stage, item, vec![slot]) {
                        self.drop_slots(slots);
                        refused = refused.or(problem);
                    }
                }
                match refused {
                    None => self.advance(),
                    Some(problem) => self.fail(id, Failure::new(format!("this worker's own reading {problem}"))),
                }
            }
            (What::Read(key, _), Ok(tensors)) => {
                self.drop_slots(tensors);
                if active {
                    let failure = Failure::new("read other columns than were asked for; please report it");
                    self.fail(id, Failure { microbatch: Some(key.index), ..failure });
                }
            }
            (What::Open, Err(failure)) if active => self.fail(id, failure),
            (What::Read(key, _), Err(failure)) if active => {
                let action = Some("reading samples".to_string());
                self.fail(id, Failure { microbatch: Some(key.index), action, ..failure });
            }
            (_, Err(_)) => {}
        }
    }
}
