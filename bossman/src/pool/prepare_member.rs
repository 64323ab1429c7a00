//! A worker that comes is made ready beside the steps of the others.

use super::{MemberState, Pool};
use crate::session::boss::BossMan;
use link::Payload;
use pipeline::boss::{Prepare, Request};
use pipeline::effect::Answer;
use pipeline::ids::{StageId, WorkerId};
use pipeline::Plan;

impl BossMan {
    /// Begins to prepare the workers that have arrived.
    pub(super) fn prepare_joined(&mut self) {
        let Some(pool) = &self.pool else { return };
        let joined = pool.members.iter().filter(|(_, c)| c.state == MemberState::Joined);
        for worker in joined.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.begin_preparing(worker);
        }
    }

    fn begin_preparing(&mut self, worker: WorkerId) {
        let files: Vec<(String, Payload)> = self.file_payloads();
        let data = self.open_data.specs().to_vec();
        let (Some(pool), Some(optimizer)) = (&mut self.pool, self.optimizer) else { return };
        let Some(stage) = smallest_stage(&self.plan, pool) else { return };
        let Some(like) = self.plan.stage_placement.first(stage) else { return };
        let files = files.into_iter().map(|(hash, payload)| (hash, self.handle.slots.insert(payload))).collect();
        let stage_placement = self.plan.stage_placement.joined_by([(&worker, &like)]);
        let plan = Plan { stage_placement, ..self.plan.clone() };
        let request = Request::Prepare(Box::new(Prepare { worker, plan, files, optimizer, data }));
        pool.set(worker, MemberState::Preparing(stage));
        let (handle, ready) = (self.handle.clone(), pool.prepared_sender.clone());
        tokio::spawn(async move {
            let prepared = handle.call(request).await;
            ready.send((worker, prepared.map(|_: Answer| ()))).ok();
        });
    }
}

/// The first stage of the place that has the fewest workers, those counted that are on their way there.
fn smallest_stage(plan: &Plan, pool: &Pool) -> Option<StageId> {
    let on_their_way = |stage: StageId| {
        let goes_there = |state: &MemberState| match state {
            MemberState::Preparing(place) | MemberState::Ready(place) => {
                plan.stage_placement.of(*place) == plan.stage_placement.of(stage)
            }
            MemberState::CatchingUp(guide) => plan.stage_placement.has(stage, *guide),
            _ => false,
        };
        pool.members.values().filter(|c| goes_there(&c.state)).count()
    };
    let places = plan.stage_placement.iter().filter(|(_, members)| !members.is_empty());
    places.min_by_key(|(stage, members)| members.len() + on_their_way(*stage)).map(|(stage, _)| stage)
}
