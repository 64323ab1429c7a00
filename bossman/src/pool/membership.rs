//! Between two steps: who has come or gone, who has caught up, and who then has the stages.

use super::{Member, MemberState, Pool, MAX_TEXT};
use crate::output::printable;
use crate::session::boss::BossMan;
use crate::BossManError;
use pipeline::boss::{MembershipChange, Request};
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use pipeline::Plan;
use runtime::MembershipEvent;
use std::collections::BTreeMap;

/// One that is so many behind will not catch up: what it lacks is sent slower than it grows.
const MAX_COMMANDS_BEHIND: usize = 12;
/// The number of updates after which an evicted worker is tried again.
const READMIT_AFTER_UPDATES: u64 = 200;

/// The followers, and the worker whose stages each will have.
type Followers = BTreeMap<WorkerId, WorkerId>;

impl BossMan {
    /// Takes in who has come and gone, and has the workers go on as those who are here.
    pub(crate) async fn update_membership(&mut self) -> Result<(), BossManError> {
        if self.pool.is_none() {
            return Ok(());
        }
        loop {
            self.drain_membership_events();
            self.prepare_joined();
            let Some((plan, followers)) = self.plan_members()? else { return Ok(()) };
            let membership_change = MembershipChange { plan: plan.clone(), followers: followers.clone() };
            match self.call(Request::ChangeMembership(Box::new(membership_change))).await {
                Ok(answer) => {
                    self.adopt_members(plan, &followers);
                    self.refresh_links().await;
                    if let Some(pool) = &mut self.pool {
                        pool.commands_behind = answer.behind.into_iter().collect();
                        pool.must_confirm_members = false;
                    }
                }
                // A worker that left is among the events by now. A worker that has caught up has
                // the state, even if the others do not know.
                Err(error) if self.recover(&error) => {
                    let follows = |worker: &WorkerId| {
                        let member = self.pool.as_ref().and_then(|pool| pool.members.get(worker));
                        member.is_some_and(|c| matches!(c.state, MemberState::CatchingUp(_)))
                    };
                    let already = followers.into_iter().filter(|(worker, _)| follows(worker)).collect();
                    self.adopt_members(plan, &already);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the same may succeed with the workers that are left; what failed is then to be done again.
    pub(crate) fn recover(&mut self, error: &BossManError) -> bool {
        let (Some(pool), BossManError::Worker(failure)) = (&mut self.pool, error) else { return false };
        pool.must_confirm_members = true;
        if failure.passing {
            return true;
        }
        // A worker that fails where others do not is left out. If a second worker fails in the same
        // step, the step is the cause.
        match failure.worker.filter(|_| !failure.refused && pool.failed_in_step.is_empty()) {
            Some(worker) if pool.members.get(&worker).is_some_and(|c| c.state == MemberState::Active) => {
                pool.failed_in_step.push(worker);
                pool.remember_removal(worker, &format!("it failed: {}", failure.message));
                pool.say(&format!("{worker} failed and is left out: {failure}"));
                self.handle.disconnect(worker, &format!("it failed: {}", failure.message));
                pool.members.entry(worker).and_modify(|c| c.state = left("it failed"));
                true
            }
            _ => false,
        }
    }

    fn drain_membership_events(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        while let Ok(event) = pool.events.try_recv() {
            match event {
                MembershipEvent::Joined { worker, info, address } => {
                    pool.say(&format!(
                        "{worker} joined from {} ({}, {}, {} threads)",
                        address.ip(),
                        printable(&info.host, MAX_TEXT),
                        printable(&info.device, MAX_TEXT),
                        info.threads
                    ));
                    let newcomer = Member::new(info, MemberState::Joined);
                    let sent_away = pool.removed_processes.remove(&newcomer.process_key());
                    pool.members.insert(worker, newcomer);
                    if let Some(reason) = sent_away {
                        pool.evict(worker, format!("it was here before: {reason}"), self.updates);
                    }
                }
                MembershipEvent::Left { worker, reason } => pool.lost(worker, &reason),
            }
        }
        while let Ok((worker, prepared)) = pool.prepared.try_recv() {
            if pool.members.get(&worker).is_none_or(Member::has_left) {
                continue;
            }
            match (prepared, pool.members.get(&worker).map(|c| c.state.clone())) {
                (Ok(()), Some(MemberState::Preparing(stage))) => pool.set(worker, MemberState::Ready(stage)),
                (Ok(()), _) => {}
                (Err(failure), _) => {
                    pool.say(&format!("{worker} cannot take part: {failure}"));
                    pool.remember_removal(worker, &failure.message);
                    self.handle.disconnect(worker, &failure.message);
                    pool.lost(worker, &failure.message);
                }
            }
        }
    }

    /// The new placement and the followers, if they differ from the current ones.
    ///
    /// # Errors
    /// Nobody is left who has some stage.
    fn plan_members(&mut self) -> Result<Option<(Plan, Followers)>, BossManError> {
        self.evict_stragglers();
        let updates = self.updates;
        let Some(pool) = &mut self.pool else { return Ok(None) };
        for worker in pool.readmit_evicted(updates) {
            self.scheduling.observed.forget_worker(worker);
        }
        let mut stage_placement = self.plan.stage_placement.clone();
        for (worker, _) in pool.members.iter().filter(|(_, c)| !matches!(c.state, MemberState::Active)) {
            stage_placement = stage_placement.without(*worker);
        }
        if let Some((stage, _)) = stage_placement.iter().find(|(_, members)| members.is_empty()) {
            let left = Failure::new(format!(
                "everybody has left who had {stage}, and its weights are gone with them; start again from the weights that were \
                 saved last (--weights)"
            ));
            return Err(BossManError::Worker(left));
        }
        let mut followers = BTreeMap::new();
        for (worker, member) in &pool.members {
            match member.state {
                MemberState::CatchingUp(guide) => {
                    let caught_up = pool.commands_behind.get(worker).is_some_and(|behind| *behind == 0);
                    let guide = replica_still_present(&self.plan, &stage_placement, guide);
                    match guide {
                        Some(guide) if caught_up => stage_placement = stage_placement.joined_by([(worker, &guide)]),
                        Some(guide) => drop(followers.insert(*worker, guide)),
                        None => {}
                    }
                }
                MemberState::Ready(stage) => {
                    // Workers take turns to send their state.
                    let members = stage_placement.of(stage);
                    let turn = followers.len() % members.len().max(1);
                    followers.extend(members.get(turn).map(|guide| (*worker, *guide)));
                }
                _ => {}
            }
        }
        let follow = pool.members.iter().filter(|(_, c)| matches!(c.state, MemberState::CatchingUp(_)));
        let same = follow.map(|(worker, _)| worker).eq(followers.keys());
        if stage_placement == self.plan.stage_placement && same && !pool.must_confirm_members {
            return Ok(None);
        }
        Ok(Some((Plan { stage_placement, ..self.plan.clone() }, followers)))
    }

    /// The workers know: from now on these have the stages.
    fn adopt_members(&mut self, plan: Plan, followers: &Followers) {
        self.scheduling.schedule_cache.clear();
        let Some(pool) = &mut self.pool else { return };
        for (worker, member) in &mut pool.members {
            let follows = followers.get(worker);
            let has = plan.stage_placement.is_member(*worker);
            member.state = match (&member.state, has, follows) {
                (MemberState::Active, true, _) => continue,
                (_, true, _) => {
                    member.steps_since_active = 0;
                    MemberState::Active
                }
                (MemberState::Ready(_) | MemberState::CatchingUp(_), _, Some(guide)) => MemberState::CatchingUp(*guide),
                _ => continue,
            };
        }
        let working = plan.stage_placement.members().len();
        let before = self.plan.stage_placement.members().len();
        if working != before {
            pool.say(&format!("step {}: {working} workers", self.step + 1));
        }
        self.plan = plan;
    }

    /// A step is done: who took what.
    pub(crate) fn record_shares(&mut self, loss: f32, samples: u64, behind: Vec<(WorkerId, usize)>) {
        let shares = self.shares(samples);
        let step = self.step;
        let members = self.plan.stage_placement.members();
        let rates: Vec<_> = members.iter().map(|worker| self.link_rate(&self.plan.stage_placement, *worker)).collect();
        let Some(pool) = &mut self.pool else { return };
        pool.failed_in_step.clear();
        pool.samples += samples;
        for (worker, rate) in members.iter().zip(rates) {
            pool.members.entry(*worker).and_modify(|c| c.bytes_per_second = rate);
        }
        for (worker, (microbatches, taken)) in &shares {
            if let Some(member) = pool.members.get_mut(worker) {
                member.steps += 1;
                member.steps_since_active += 1;
                member.samples += taken;
                member.share = *microbatches;
                member.last_seen = std::time::Instant::now();
            }
        }
        pool.commands_behind = behind.into_iter().collect();
        let too_far =
            pool.commands_behind.iter().filter(|(_, behind)| **behind > MAX_COMMANDS_BEHIND).map(|(worker, _)| *worker);
        for worker in too_far.collect::<Vec<_>>() {
            let reason = "its line or its processor is too slow: it fell further behind while it caught up";
            self.handle.disconnect(worker, reason);
            pool.remember_removal(worker, reason);
        }
        if pool.last_status.elapsed() >= super::STATUS_INTERVAL || step == 1 {
            pool.last_status = std::time::Instant::now();
            self.broadcast_progress(loss);
        }
    }

    fn broadcast_progress(&self, loss: f32) {
        let Some(pool) = &self.pool else { return };
        for (worker, member) in pool.members.iter().filter(|(_, c)| c.state == MemberState::Active) {
            let progress = pipeline::message::Progress {
                step: self.step,
                loss,
                steps: member.steps,
                samples: member.samples,
                share: member.share,
                bytes_per_second: member.bytes_per_second,
            };
            self.handle.send_progress(*worker, progress);
        }
        self.handle.set_status(self.status(loss).json());
    }

    /// Each worker's part of the last batch, and its number of samples.
    fn shares(&self, samples: u64) -> BTreeMap<WorkerId, (f64, u64)> {
        let Some(last) = &self.last_step else { return BTreeMap::new() };
        let microbatches = last.schedule.microbatches;
        let count = u64::from(microbatches.max(1));
        let size = |m: u32| samples / count + u64::from(u64::from(m) < samples % count);
        let share = |worker: WorkerId| {
            let stage = self.plan.stage_placement.stages_of(worker).next()?;
            let taken: Vec<u32> = last
                .schedule
                .microbatch_assignment
                .taken(&self.plan.stage_placement, stage, worker, microbatches)
                .collect();
            Some((worker, (taken.len() as f64 / count as f64, taken.into_iter().map(size).sum())))
        };
        self.plan.stage_placement.members().into_iter().filter_map(share).collect()
    }
}

impl Pool {
    fn lost(&mut self, worker: WorkerId, reason: &str) {
        let Some(member) = self.members.get_mut(&worker).filter(|c| !c.has_left()) else { return };
        member.state = left(reason);
        member.share = 0.0;
        self.commands_behind.remove(&worker);
        self.say(&format!("{worker} left ({reason})"));
    }

    /// The workers that were evicted long ago.
    fn readmit_evicted(&mut self, updates: u64) -> Vec<WorkerId> {
        let is_over = |c: &Member| matches!(&c.state, MemberState::Evicted { until, .. } if *until <= updates);
        let again = self.members.iter_mut().filter(|(_, member)| is_over(member));
        again
            .map(|(worker, member)| {
                member.state = MemberState::Joined;
                *worker
            })
            .collect()
    }

    pub(super) fn evict(&mut self, worker: WorkerId, reason: String, updates: u64) {
        self.say(&format!("{worker} is put aside: {reason}"));
        self.set(worker, MemberState::Evicted { reason, until: updates + READMIT_AFTER_UPDATES });
        if let Some(member) = self.members.get_mut(&worker) {
            member.share = 0.0;
        }
    }
}

fn left(reason: &str) -> MemberState {
    MemberState::Left { reason: reason.into() }
}

/// A worker that is here with the stages that this one has, or had: itself, where it is.
fn replica_still_present(
    plan: &Plan,
    stage_placement: &pipeline::replicas::StagePlacement,
    like: WorkerId,
) -> Option<WorkerId> {
    if stage_placement.is_member(like) {
        return Some(like);
    }
    let stage = plan.stage_placement.stages_of(like).next()?;
    stage_placement.of(stage).first().copied()
}
