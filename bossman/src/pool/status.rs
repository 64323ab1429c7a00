//! The status of a pool, as `bossman status` shows it.

use super::{Pool, Seen};
use crate::output::printable;
use crate::session::trainer::Trainer;
use crate::status::{MemberStatus, Phase, Status, WorkerStatus, MAX_TEXT, MAX_WORKERS};
use pipeline::ids::WorkerId;
use pipeline::membership::Member;

/// The most workers in a status that have left: the last ones. The size of an answer is limited.
const MAX_LEFT_SHOWN: usize = 16;

impl Pool {
    /// The status after the last step of `trainer`.
    pub(super) fn status(&self, trainer: &Trainer, loss: f32) -> Status {
        let left = self.membership.members().filter(|(_, member)| member.state.has_left()).count();
        let mut hidden = left.saturating_sub(MAX_LEFT_SHOWN);
        let is_shown = |(_, member): &(WorkerId, &Member)| {
            let is_hidden = member.state.has_left() && hidden > 0;
            hidden -= usize::from(is_hidden);
            !is_hidden
        };
        let shown = self.membership.members().filter(is_shown).take(MAX_WORKERS);
        let workers: Vec<_> = shown.filter_map(|(w, c)| self.row(trainer, w, c)).collect();
        let rate = self.samples as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        Status {
            phase: Phase::Training,
            step: trainer.position.counters.step,
            loss: Some(loss).filter(|loss| loss.is_finite()),
            samples_per_second: Some(rate),
            more: self.membership.members().len() - workers.len(),
            workers,
            ..Status::default()
        }
    }

    fn row(&self, trainer: &Trainer, worker: WorkerId, member: &Member) -> Option<WorkerStatus> {
        let Seen { info, joined, last } = self.workers.get(&worker)?;
        let stage = trainer.plan.stage_placement.stages_of(worker).next();
        let nanos =
            stage.and_then(|stage| trainer.schedules.observed.microbatch_time(stage, worker));
        let member = MemberStatus {
            state: member.state.name().into(),
            reason: member.state.reason().map(|reason| printable(reason, MAX_TEXT)),
            share: member.share,
            steps: member.steps,
            samples: member.samples,
            milliseconds: nanos.map(|nanos| nanos as f64 / 1e6),
            link_bytes_per_second: member.bytes_per_second,
            memory_bytes: info.memory_bytes,
            last_seen_seconds: last.elapsed().as_secs_f64(),
        };
        Some(WorkerStatus {
            worker: worker.0,
            host: printable(&info.host, 64),
            device: printable(&info.device, 16),
            joined_seconds: joined.elapsed().as_secs_f64(),
            member: Some(member),
        })
    }
}
