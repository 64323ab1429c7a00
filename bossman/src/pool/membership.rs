//! Between two steps: reports events to the membership, and carries out what it decides.

use super::{Pool, Seen, STATUS_INTERVAL};
use crate::events::Event;
use crate::recovery::policy::log_remedy;
use crate::session::step_report::StepReport;
use crate::session::train_step::TrainedStep;
use crate::session::trainer::Trainer;
use crate::tuning::replica_devices::{self, device_kind, UnlikeReplicas};
use crate::BossManError;
use pipeline::boss::{Instruction, MembershipChange, Prepare, ReportLinks};
use pipeline::ids::{StageId, WorkerId};
use pipeline::membership::{
    Change, Decision, LinkRate, MemberState, Position, StepDone, StepTimes,
};
use pipeline::message::{Failure, Progress};
use pipeline::recovery::Remedy;
use pipeline::replicas::{Speed, StagePlacement};
use pipeline::Plan;
use runtime::MembershipEvent;
use std::time::Instant;
use tracing::{debug, debug_span, info, Instrument};

impl Pool {
    /// Applies joins and leaves, so that the run continues with the current workers.
    pub(crate) async fn update_membership(
        &mut self,
        trainer: &mut Trainer,
    ) -> Result<(), BossManError> {
        loop {
            let Some(change) = self.next_change(trainer)? else { return Ok(()) };
            let Change { placement, followers } = change.clone();
            let step = trainer.position.counters.step;
            let members = placement.members();
            let span = debug_span!("membership", step, ?members, ?followers);
            debug!(parent: &span, "membership changes");
            let plan = Plan { stage_placement: placement, ..trainer.plan.clone() };
            let request = MembershipChange { plan, followers };
            match trainer.call(Box::new(request)).instrument(span).await {
                Ok(behind) => {
                    self.membership.on_changed(change, behind.into_iter().collect());
                    self.adopt_members(trainer);
                    self.refresh_links(trainer).await;
                }
                // A worker that left is among the events by now.
                Err(error) if self.recover(trainer, &error) => {
                    self.membership.on_change_failed(change);
                    self.adopt_members(trainer);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the same may succeed with the remaining workers, so that it should be repeated.
    /// Removes a member that fails where others do not.
    pub(crate) fn recover(&mut self, trainer: &mut Trainer, error: &BossManError) -> bool {
        let BossManError::Worker(failure) = error else { return false };
        let remedy = self.membership.on_failure(failure);
        log_remedy(error, remedy);
        self.carry_out_decisions(trainer);
        !matches!(remedy, Remedy::Stop(_))
    }

    /// Records a completed step, and the part of each member.
    pub(crate) fn record_step(&mut self, trainer: &mut Trainer, step: &TrainedStep) {
        let StepReport { step: number, loss, samples, .. } = step.report;
        let Some(last) = &trainer.schedules.last_step else { return };
        self.membership.on_step(StepDone {
            step: number,
            samples,
            microbatches: last.schedule.microbatches,
            assignment: &last.schedule.microbatch_assignment,
            behind: step.behind.iter().copied().collect(),
        });
        self.carry_out_decisions(trainer);
        self.samples += samples;
        for worker in trainer.plan.stage_placement.members() {
            self.workers.entry(worker).and_modify(|seen| seen.last = Instant::now());
        }
        if self.last_status.elapsed() >= STATUS_INTERVAL || number == 1 {
            self.last_status = Instant::now();
            self.broadcast_progress(trainer, loss);
        }
    }

    /// Fetches the known rates of links from the boss's session.
    pub(super) async fn refresh_links(&mut self, trainer: &Trainer) {
        let Ok(links) = trainer.call(ReportLinks).await else { return };
        let rates = links.into_iter().filter_map(|(from, to, report)| {
            Some(LinkRate { from, to: to?, bytes_per_second: report.bytes_per_second })
        });
        self.membership.set_links(rates.collect());
    }

    fn next_change(&mut self, trainer: &mut Trainer) -> Result<Option<Change>, Failure> {
        let counters = trainer.position.counters;
        self.membership.set_position(Position { step: counters.step, updates: counters.updates });
        self.report_events();
        let (plan, schedules) = (&trainer.plan, &trainer.schedules);
        let speed = |stage: StageId, worker: WorkerId| Speed {
            each: schedules.microbatch_time(plan, stage, worker),
            once: schedules.observed.per_step_time(stage, worker),
        };
        let microbatches = trainer.strategy.microbatches;
        let times = StepTimes { stages: &plan.stages, microbatches, speed: &speed };
        let change = self.membership.update(&times);
        self.carry_out_decisions(trainer);
        change
    }

    fn report_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                MembershipEvent::Joined { worker, info, address } => {
                    self.notices.report(&Event::Joined {
                        worker,
                        address: address.ip(),
                        host: info.host.clone(),
                        device: info.device.clone(),
                        processor: info.processor.clone(),
                        threads: info.threads,
                        missing: None,
                    });
                    let seen = Seen::new(*info);
                    self.membership.on_joined(worker, seen.process());
                    self.workers.insert(worker, seen);
                }
                MembershipEvent::Leaving(worker) => self.membership.on_leaving(worker),
                MembershipEvent::Left { worker, reason } => {
                    self.membership.on_left(worker, &reason);
                }
            }
        }
        while let Ok((worker, result)) = self.prepared.try_recv() {
            self.membership.on_prepared(worker, result);
        }
    }

    fn carry_out_decisions(&mut self, trainer: &mut Trainer) {
        while let Some(decision) = self.membership.poll_decision() {
            match decision {
                Decision::Notice(notice) => {
                    info!(%notice, "pool");
                    self.notices.report(&notice.into());
                }
                Decision::Prepare { worker, placement } => self.prepare(trainer, worker, placement),
                Decision::Disconnect { worker, reason } => {
                    trainer.handle.disconnect(worker, &reason);
                }
                Decision::ForgetTimes(worker) => trainer.schedules.observed.forget_worker(worker),
            }
        }
    }

    /// Prepares a worker during the steps of the others. It cannot take part if its device is
    /// unlike that of its stages' first replicas, unless the user allowed that.
    fn prepare(
        &mut self,
        trainer: &mut Trainer,
        worker: WorkerId,
        stage_placement: StagePlacement,
    ) {
        let Some(optimizer) = trainer.optimizer else { return };
        let unlike = self.unlike_first_replica(worker, &stage_placement);
        if let Err(error) = trainer.judge_replicas(unlike) {
            if self.membership.on_unfit(worker) {
                return;
            }
            let failure = Failure::new(error.to_string());
            // Its device stays what it is, so it must not join again.
            trainer.handle.evict(worker, &failure.message);
            self.prepared_sender.send((worker, Err(failure))).ok();
            return;
        }
        let handle = trainer.handle.clone();
        let files = trainer.file_payloads().into_iter();
        let files = files.map(|(hash, payload)| (hash, handle.slots.insert(payload))).collect();
        let data = trainer.data.specs().to_vec();
        let plan = Plan { stage_placement, ..trainer.plan.clone() };
        let prepare = Prepare { worker, plan, files, optimizer, data };
        let prepared = self.prepared_sender.clone();
        tokio::spawn(async move {
            let result = handle.call(Instruction::Prepare(Box::new(prepare))).await;
            prepared.send((worker, result)).ok();
        });
    }

    /// The stage of a new worker whose first replica computes on an unlike device, if any.
    fn unlike_first_replica(
        &self,
        worker: WorkerId,
        placement: &StagePlacement,
    ) -> Option<UnlikeReplicas> {
        let device_of =
            |worker: WorkerId| self.workers.get(&worker).map(|seen| device_kind(&seen.info));
        placement.stages_of(worker).find_map(|stage| {
            let replicas = [placement.first(stage)?, worker];
            replica_devices::unlike([(stage, &replicas[..])], device_of)
        })
    }

    /// The workers have these stages from now on.
    fn adopt_members(&mut self, trainer: &mut Trainer) {
        trainer.schedules.cache.clear();
        trainer.plan.stage_placement = self.membership.placement().clone();
        self.carry_out_decisions(trainer);
    }

    fn broadcast_progress(&self, trainer: &Trainer, loss: f32) {
        let active = self.membership.members().filter(|(_, m)| m.state == MemberState::Active);
        for (worker, member) in active {
            let progress = Progress {
                step: trainer.position.counters.step,
                loss,
                steps: member.steps,
                samples: member.samples,
                share: member.share,
                bytes_per_second: member.bytes_per_second,
            };
            trainer.handle.send_progress(worker, progress);
        }
        self.board.set_pool(self.status(trainer, loss));
    }
}
