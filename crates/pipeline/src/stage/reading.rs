//! The samples that this worker reads from its own files for its stages.

use super::inbox::Item;
use super::needs::loss_output;
use super::outbox::Outbox;
use crate::effect::StageEffect;
use crate::ids::{MicrobatchKey, Slot, StageId, Ticket};
use crate::message::{Failure, Round};
use crate::plan::StageSpec;
use crate::samples::{part, Column, DataSpec, DataTask, Reading, Samples};
use crate::schedule::Action;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Requests to read samples beside the compute thread.
#[derive(Default)]
pub(super) struct SampleReader {
    pending: BTreeMap<Ticket, Request>,
}

struct Request {
    /// The command.
    id: u64,
    purpose: Purpose,
}

enum Purpose {
    Open,
    Read(MicrobatchKey, Vec<ColumnUse>),
}

/// A column of the samples, and the stage that takes it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ColumnUse {
    column: Column,
    stage: StageId,
}

/// The result of a request.
pub(super) struct Answer {
    /// The command.
    pub(super) id: u64,
    pub(super) result: Result<ReadResult, Failure>,
}

pub(super) enum ReadResult {
    /// The data set is open.
    Opened,
    /// A microbatch is read.
    Read(MicrobatchKey, Vec<ReadTensor>),
}

/// A tensor for a stage.
pub(super) struct ReadTensor {
    pub(super) stage: StageId,
    pub(super) item: Item,
    pub(super) slot: Slot,
}

impl ReadResult {
    pub(super) fn into_slots(self) -> Vec<Slot> {
        match self {
            ReadResult::Opened => Vec::new(),
            ReadResult::Read(_, tensors) => tensors.into_iter().map(|read| read.slot).collect(),
        }
    }
}

impl StageSpec {
    /// The columns of a sample that it takes. `loss`: the round computes a loss.
    fn columns(&self, loss: bool) -> Vec<Column> {
        let inputs = self
            .inputs
            .iter()
            .filter(|input| input.from.is_none())
            .map(|input| Column::Input(input.value));
        let target = loss_output(self).filter(|_| loss).map(|_| Column::Target);
        inputs.chain(target).collect()
    }

    /// Whether samples come to it from outside of the model.
    pub fn takes_samples(&self) -> bool {
        !self.columns(true).is_empty()
    }
}

/// The columns of a microbatch that goes forward here.
struct Wanted {
    microbatch: u32,
    columns: Vec<ColumnUse>,
}

/// The columns of each microbatch, in the order of the first pass that takes it.
fn wanted(round: &Round, stages: &[StageSpec]) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
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
            wanted.push(Wanted { microbatch, columns: Vec::new() });
        }
        let uses = columns.into_iter().map(|column| ColumnUse { column, stage });
        wanted[place].columns.extend(uses);
    }
    // The uses of a column follow each other, so it is read once.
    wanted.iter_mut().for_each(|wanted| wanted.columns.sort());
    wanted
}

impl SampleReader {
    /// Whether no request is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Requests to open a data set.
    pub(super) fn open(&mut self, id: u64, spec: DataSpec, outbox: &mut Outbox) {
        let ticket = outbox.data(DataTask::Open(spec));
        self.pending.insert(ticket, Request { id, purpose: Purpose::Open });
    }

    /// Requests the samples of a round that begins, and then those of the probable next round.
    pub(super) fn begin_round(
        &mut self,
        id: u64,
        round: &Round,
        samples: Samples,
        stages: &[StageSpec],
        outbox: &mut Outbox,
    ) {
        let (batch, microbatches) = (round.batch, round.microbatches);
        let wanted = wanted(round, stages);
        // Shared: a batch has many microbatches.
        let batches: Vec<Arc<[i64]>> =
            samples.batches.iter().map(|batch| batch.as_slice().into()).collect();
        let next: Arc<[i64]> = samples.next.as_slice().into();
        let reading = |batch: &Arc<[i64]>, part: Range<usize>, columns: &[ColumnUse]| Reading {
            data: samples.data,
            batch: batch.clone(),
            part,
            columns: columns.iter().map(|used| used.column).collect(),
        };
        // A last batch that is smaller has fewer microbatches.
        let count = microbatches.min(u32::try_from(next.len()).unwrap_or(u32::MAX));
        let ahead = |wanted: &Wanted| {
            Some(reading(&next, part(next.len(), wanted.microbatch, count)?, &wanted.columns))
        };
        let ahead: Vec<Reading> = wanted.iter().filter_map(ahead).collect();
        for Wanted { microbatch: index, columns } in wanted {
            let Some((place, part)) = samples.part(index, microbatches) else { continue };
            let ticket = outbox.data(DataTask::Read(reading(&batches[place], part, &columns)));
            let purpose = Purpose::Read(MicrobatchKey { batch, index }, columns);
            self.pending.insert(ticket, Request { id, purpose });
        }
        if !ahead.is_empty() {
            outbox.push(StageEffect::ReadAhead(ahead));
        }
    }

    /// A request is complete. `None` if it is unknown.
    pub(super) fn on_data(
        &mut self,
        ticket: Ticket,
        result: Result<Vec<Slot>, Failure>,
        outbox: &mut Outbox,
    ) -> Option<Answer> {
        let Some(Request { id, purpose }) = self.pending.remove(&ticket) else {
            outbox.drop_slots(result.unwrap_or_default());
            return None;
        };
        let result = match purpose {
            Purpose::Open => result.map(|slots| {
                outbox.drop_slots(slots);
                ReadResult::Opened
            }),
            Purpose::Read(key, columns) => match result {
                Ok(slots) if slots.len() == columns.len() => {
                    let tensor = |(used, slot): (ColumnUse, Slot)| {
                        let item = match used.column {
                            Column::Input(value) => Item::Value(value),
                            Column::Target => Item::Target,
                        };
                        ReadTensor { stage: used.stage, item, slot }
                    };
                    Ok(ReadResult::Read(key, columns.into_iter().zip(slots).map(tensor).collect()))
                }
                Ok(slots) => {
                    outbox.drop_slots(slots);
                    let failure =
                        Failure::new("read other columns than were asked for; please report it");
                    Err(Failure { microbatch: Some(key.index), ..failure })
                }
                Err(failure) => {
                    let action = Some("reading samples".to_string());
                    Err(Failure { microbatch: Some(key.index), action, ..failure })
                }
            },
        };
        Some(Answer { id, result })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{membership, round, text};
    use super::*;
    use crate::samples::DataId;

    /// The requests for the first two microbatches of a round of four, at the first stage.
    fn began() -> (SampleReader, Outbox) {
        let (mut reader, mut outbox) = (SampleReader::default(), Outbox::default());
        let forward = |microbatch| Action::Forward { stage: StageId(0), microbatch };
        let round = round(vec![forward(1), forward(0)]);
        let batches = vec![vec![10, 11, 12, 13]];
        let samples = Samples { data: DataId([0; 32]), batches, next: Vec::new() };
        let stages = membership(&[1, 1], 0, None).stages;
        reader.begin_round(5, &round, samples, &stages, &mut outbox);
        assert_eq!(text(&mut outbox), "read\nread\n");
        (reader, outbox)
    }

    #[test]
    fn a_tensor_goes_to_the_stage_that_takes_its_column() {
        let (mut reader, mut outbox) = began();
        let answer = reader.on_data(Ticket(0), Ok(vec![Slot(1)]), &mut outbox).expect("known");
        let Ok(ReadResult::Read(key, tensors)) = answer.result else { panic!("not read") };
        assert_eq!((answer.id, key), (5, MicrobatchKey { batch: 7, index: 1 }));
        let read: Vec<_> = tensors.iter().map(|read| (read.stage, read.slot)).collect();
        assert_eq!(read, [(StageId(0), Slot(1))]);
    }

    #[test]
    fn a_failure_names_the_microbatch() {
        let (mut reader, mut outbox) = began();
        let result = Err(Failure::new("no such file"));
        let answer = reader.on_data(Ticket(1), result, &mut outbox).expect("known");
        let failure = answer.result.err().expect("a failure");
        assert_eq!(failure.to_string(), "reading samples, microbatch 0: no such file");
        let answer = reader.on_data(Ticket(0), Ok(Vec::new()), &mut outbox).expect("known");
        assert!(answer.result.is_err(), "a column is missing");
    }

    #[test]
    fn a_result_counts_once() {
        let (mut reader, mut outbox) = began();
        reader.on_data(Ticket(0), Ok(vec![Slot(1)]), &mut outbox);
        assert!(reader.on_data(Ticket(0), Ok(vec![Slot(2)]), &mut outbox).is_none());
        assert_eq!(text(&mut outbox), "drop [2]\n");
    }
}
