//! Whether a worker makes the others faster or slower.
//!
//! A replica takes a share of the microbatches, and in return all exchange gradients with it. If
//! its line or its processor is so slow that the others would finish earlier without it, its share
//! is empty.

use super::MemberState;
use crate::session::boss::BossMan;
use pipeline::boss::Request;
use pipeline::ids::{StageId, WorkerId};
use pipeline::message::LinkReport;
use pipeline::replicas::{buckets, Bucket, BucketBytes, MicrobatchAssignment, Speed, StagePlacement};

/// Without it the others have to be this much faster: less is within what is observed from step to step.
const EVICT_BELOW: f64 = 0.9;
/// The number of steps after which a worker is judged.
const MIN_STEPS_TO_JUDGE: u64 = 5;

impl BossMan {
    /// Puts aside who slows the others down, one at a time.
    pub(super) fn evict_stragglers(&mut self) {
        let Some(pool) = &self.pool else { return };
        let judged = |worker: &WorkerId| {
            pool.members
                .get(worker)
                .is_some_and(|c| c.state == MemberState::Active && c.steps_since_active >= MIN_STEPS_TO_JUDGE)
        };
        let stage_placement = &self.plan.stage_placement;
        let members = stage_placement.members();
        if !members.iter().all(judged) {
            return;
        }
        let with = self.step_time(stage_placement);
        let slows = |worker: &WorkerId| {
            let others = stage_placement.without(*worker);
            let is_whole = others.iter().all(|(_, members)| !members.is_empty());
            let without = is_whole.then(|| self.step_time(&others))?;
            (without < with * EVICT_BELOW).then_some((*worker, without))
        };
        let slowest = members.iter().filter_map(slows).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((worker, without)) = slowest else { return };
        let link = pool.members.get(&worker).and_then(|c| c.bytes_per_second);
        let link = link.map_or(String::new(), |rate| format!(", its link carries {:.1} MB/s", rate as f64 / 1e6));
        let reason = format!("a step takes {:.0} ms with it and {:.0} ms without{link}", with / 1e6, without / 1e6);
        let updates = self.updates;
        if let Some(pool) = &mut self.pool {
            pool.evict(worker, reason, updates);
        }
    }

    /// The time of a step of these workers, in nanoseconds: the slowest with its share, and with
    /// what it exchanges.
    fn step_time(&self, stage_placement: &StagePlacement) -> f64 {
        let speed = |stage: StageId, worker: WorkerId| Speed {
            each: self.microbatch_time(stage, worker),
            once: self.scheduling.observed.per_step_time(stage, worker).saturating_add(self.exchange_time(
                stage_placement,
                stage,
                worker,
            )),
        };
        let microbatches = self.settings.microbatches;
        MicrobatchAssignment::by_speed(stage_placement, microbatches, speed).longest(
            stage_placement,
            microbatches,
            speed,
        ) as f64
    }

    /// The time of a worker's exchange of a stage's gradients, in nanoseconds: its part goes out to
    /// be summed, and sums come back, each as much as what is trained of the stage, less the part
    /// that is its own.
    fn exchange_time(&self, stage_placement: &StagePlacement, stage: StageId, worker: WorkerId) -> u64 {
        let replicas = stage_placement.of(stage).len() as u64;
        let (Some(rate), true) = (self.link_rate(stage_placement, worker), replicas > 1) else { return 0 };
        let Some(spec) = self.plan.stages.get(stage.0 as usize) else { return 0 };
        let bytes: u64 = buckets(spec, BucketBytes::default(), None).iter().map(Bucket::bytes).sum();
        let moved = 2.0 * bytes as f64 * (replicas - 1) as f64 / replicas as f64;
        (moved / rate.max(1) as f64 * 1e9) as u64
    }

    /// The rate of a worker's slowest link to another of these, in bytes per second, if known.
    pub(super) fn link_rate(&self, stage_placement: &StagePlacement, worker: WorkerId) -> Option<u64> {
        let between = |(from, to, report): &(WorkerId, Option<WorkerId>, LinkReport)| {
            let to = (*to)?;
            let ends = (*from == worker && stage_placement.is_member(to))
                || (to == worker && stage_placement.is_member(*from));
            Some(report.bytes_per_second).filter(|rate| ends && *rate > 0)
        };
        self.pool.as_ref()?.links.iter().filter_map(between).min()
    }

    /// Asks the boss's session for what is known of links; it is known there without the workers.
    pub(super) async fn refresh_links(&mut self) {
        if let Ok(answer) = self.call(Request::Links).await {
            if let Some(pool) = &mut self.pool {
                pool.links = answer.links;
            }
        }
    }
}
