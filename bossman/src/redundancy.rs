//! Copies of the state of training that workers keep for each other while a run goes on.

use crate::checkpoint::{Counters, Due, Every, Run};
use crate::output;
use crate::progress::Progress;
use crate::state_dict::{expected, Wanted};
use crate::{BossMan, BossManError};
use pipeline::boss::{speakers, Keeping, Request};
use pipeline::effect::Answer;
use pipeline::ids::{StageId, WorkerId};
use pipeline::kept::{CopyId, CopyNote, KeptCopy, Recalled};
use pipeline::message::Failure;
use pipeline::StateName;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use tokio::task::JoinHandle;

/// Where the state comes from with which a run goes on where workers are lost.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum Redundancy {
    /// It does not go on by itself.
    #[default]
    None,
    /// From the last checkpoint.
    Checkpoint,
    /// From the last copy that workers keep for each other, which is made so often; or from a checkpoint that is newer.
    Neighbour(Every),
}

/// A number that nobody else draws, for a run or a membership of it.
pub(crate) fn number() -> u64 {
    // The standard library's maps draw their keys at random.
    RandomState::new().build_hasher().finish()
}

/// What else goes on, as workers keep it with a copy.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    counters: Counters,
    run: Run,
}

/// A copy all of which is with workers that are here.
pub(crate) struct KeptState {
    pub(crate) counters: Counters,
    pub(crate) run: Run,
    copy: CopyId,
    /// For each tensor who keeps it, and as part of what.
    tensors: BTreeMap<String, Vec<(WorkerId, u32)>>,
}

/// The copies of a run at work.
pub(crate) struct Copies {
    run: u64,
    membership: u64,
    due: Due,
    /// One is due that could not be made yet.
    owed: bool,
    at_work: Option<(CopyId, JoinHandle<Result<(), BossManError>>)>,
    /// The last that is whole.
    last: Option<CopyId>,
    /// The user knows that there is one.
    told: bool,
}

impl Copies {
    /// Copies of the run with this number, which may have gone on from one.
    pub(crate) fn new(run: u64, every: Every, from: Option<&KeptState>) -> Self {
        // Of what was lost there is one copy less.
        let (owed, last) = (from.is_some(), from.map(|kept| kept.copy));
        Copies { run, membership: number(), due: Due::start(every), owed, at_work: None, last, told: false }
    }

    /// A step has ended: has workers make a copy where one is due and the one before has arrived. What goes wrong with it is
    /// told, and training goes on.
    pub(crate) async fn after_step(&mut self, boss: &mut BossMan, step: u64, run: &Run, progress: &Progress) {
        self.owed |= self.due.is_now(step);
        self.take_note(progress).await;
        if !self.owed || self.at_work.is_some() || !boss.is_between_updates() {
            return;
        }
        self.owed = false;
        let copy = CopyId { run: self.run, step, membership: self.membership };
        match boss.begin_copy(copy, self.last, run).await {
            Ok(arriving) => self.at_work = Some((copy, tokio::spawn(arriving))),
            Err(error) => output::warn(&format!("warning: workers keep no copy of step {step}: {error}")),
        }
    }

    /// Whether the copy that was at work has arrived.
    async fn take_note(&mut self, progress: &Progress) {
        let Some((copy, arriving)) = self.at_work.take_if(|(_, arriving)| arriving.is_finished()) else { return };
        let problem = match arriving.await {
            Ok(Ok(())) => {
                self.last = Some(copy);
                if !std::mem::replace(&mut self.told, true) {
                    progress.line(&format!("workers keep the state of step {} for each other, and so on", copy.step));
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        output::warn(&format!("warning: workers keep no copy of step {}: {problem}", copy.step));
    }
}

impl BossMan {
    /// Has workers copy their state as it is between two steps, keep it, and send it to a neighbour, which keeps it, too. What is
    /// given back ends when all of it has arrived.
    async fn begin_copy(
        &mut self,
        copy: CopyId,
        last: Option<CopyId>,
        run: &Run,
    ) -> Result<impl Future<Output = Result<(), BossManError>> + Send + 'static, BossManError> {
        let counters = self.counters();
        let text = serde_json::to_string(&Note { counters, run: run.clone() });
        let text = text.map_err(|e| BossManError::Usage(format!("a copy's note: {e}")))?;
        let by_stage = self.copies_stage_by_stage();
        let number = |stage| speakers(&self.plan, stage, true).len() as u32;
        let parts = match by_stage {
            true => self.plan.stages.iter().map(|spec| number(Some(spec.stage))).sum(),
            false => number(None),
        };
        let (neighbours, mut before) = (self.neighbours(), 0);
        let ask = |boss: &BossMan, stage: Option<StageId>| {
            let note = CopyNote { parts, text: text.clone() };
            let neighbours = neighbours.clone();
            let keeping = Keeping { copy, note, last, stage, before, neighbours };
            before += speakers(&boss.plan, stage, true).len() as u32;
            boss.handle.call(Request::Keep(Box::new(keeping)))
        };
        let (replies, asked) = self.ask_for_copies(ask).await;
        asked?;
        Ok(async move {
            for reply in replies {
                let arrived: Result<Answer, Failure> = reply.await;
                arrived?;
            }
            Ok(())
        })
    }

    /// Who keeps what each worker copies: the next one on another machine, for machines fail as a whole.
    fn neighbours(&self) -> BTreeMap<WorkerId, WorkerId> {
        let (members, infos) = (self.plan.homes.members(), self.handle.workers());
        let host = |worker: &WorkerId| infos.get(usize::from(worker.0)).map(|info| &info.host);
        let neighbour = |worker: &WorkerId| {
            let after = members.iter().filter(|other| *other > worker);
            let mut others = after.chain(members.iter().filter(|other| *other < worker));
            let next = others.clone().next();
            others.find(|other| host(other) != host(worker)).or(next).copied()
        };
        members.iter().filter_map(|worker| Some((*worker, neighbour(worker)?))).collect()
    }

    /// The last copy of the run with this number of which the workers that are here keep every part.
    pub(crate) async fn kept(&mut self, run: u64) -> Result<Option<KeptState>, BossManError> {
        let copies = self.call(Request::Copies { run }).await?.copies;
        let mut steps: Vec<CopyId> = copies.iter().map(|(_, kept)| kept.copy).filter(|copy| copy.run == run).collect();
        steps.sort();
        steps.dedup();
        Ok(steps.into_iter().rev().find_map(|copy| {
            let of_copy = copies.iter().filter(|(_, kept)| kept.copy == copy);
            self.whole(copy, of_copy.map(|(worker, kept)| (*worker, kept)))
        }))
    }

    /// A copy, if all of it is there, and it is of this model.
    fn whole<'a>(
        &self,
        copy: CopyId,
        kept: impl Iterator<Item = (WorkerId, &'a KeptCopy)> + Clone,
    ) -> Option<KeptState> {
        let (_, first) = kept.clone().next()?;
        let Note { counters, run } = serde_json::from_str(&first.note.text).ok()?;
        let parts: BTreeSet<u32> = kept.clone().flat_map(|(_, kept)| kept.parts.keys().copied()).collect();
        if !parts.into_iter().eq(0..first.note.parts) || counters.step != copy.step {
            return None;
        }
        let mut tensors: BTreeMap<String, Vec<(WorkerId, u32)>> = BTreeMap::new();
        for (worker, kept) in kept {
            for (part, names) in &kept.parts {
                names.iter().for_each(|name| tensors.entry(name.clone()).or_default().push((worker, *part)));
            }
        }
        let wanted = expected(self.model.graph()).owned;
        let weights = tensors.keys().filter(|name| !StateName::parse(name).optimizer);
        weights.eq(wanted.keys()).then_some(KeptState { counters, run, copy, tensors })
    }

    /// Has workers go on from a copy that they keep, as from [a checkpoint](BossMan::restore): what a worker needs and keeps
    /// does not travel.
    pub(crate) async fn restore_kept(&mut self, kept: &KeptState) -> Result<(), BossManError> {
        let wanted = expected(self.model.graph()).owned;
        let mut tensors = Vec::new();
        for (text, keepers) in &kept.tensors {
            let name = StateName::parse(text);
            let parameter = name.kept().map_or(name.name, |(parameter, _)| parameter);
            let stranger = || BossManError::StateDict(vec![format!("`{parameter}`: the model has no such parameter")]);
            let Wanted { layer, parameter, .. } = wanted.get(parameter).ok_or_else(stranger)?;
            // What the optimizer keeps is with the owner alone.
            let most = if name.optimizer { 1 } else { usize::MAX };
            for stage in self.plan.holders(*layer, parameter).into_iter().take(most) {
                let at_home = keepers.iter().find(|(keeper, _)| self.plan.homes.first(stage) == Some(*keeper));
                let Some((keeper, part)) = at_home.or(keepers.first()).copied() else { continue };
                tensors.push(Recalled { keeper, part, name: text.clone(), stage });
            }
        }
        self.loaded = true;
        self.call(Request::Restore { copy: kept.copy, tensors }).await?;
        self.go_on_from(kept.counters);
        Ok(())
    }
}
