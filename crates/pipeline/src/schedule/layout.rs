//! The part of a plan on which schedules depend, and the end of every training step.

use super::Action;
use crate::ids::{StageId, WorkerId};
use crate::replicas::Reduction;
use crate::replicas::{Sharding, StagePlacement};

/// Stages, their workers, and the edges between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// For every stage, the workers that have it.
    pub stage_placement: StagePlacement,
    /// The pairs of stages (maker, user) between which a variable goes.
    pub edges: Vec<(StageId, StageId)>,
    /// Those of them between which a gradient comes back.
    pub back: Vec<(StageId, StageId)>,
    /// For every stage, whether something in it is trained, so that its backward pass has a half
    /// for parameters.
    pub trained: Vec<bool>,
    /// For every stage, whether its replicas exchange gradients or running statistics.
    pub reduced: Vec<bool>,
    /// The pairs of stages (owner, user) that share parameters.
    pub ties: Vec<(StageId, StageId)>,
    /// The state that replicas of a stage shard, if any.
    pub sharding: Option<Sharding>,
}

/// The end of a round.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ending {
    /// Gradients are kept for a later round.
    Gather,
    /// Parameters are updated.
    #[default]
    Step,
    /// Parameters are updated by gradients whose norm over all stages is limited.
    ClippedStep,
    /// The same, but every replica computes the norm. So no replica updates before all have all
    /// gradients.
    CommittedStep,
}

impl Layout {
    /// A chain of trained stages. Each sends to the next.
    pub fn chain(stage_placement: StagePlacement) -> Self {
        let stages = stage_placement.stages() as u16;
        let edges: Vec<_> = (1..stages).map(|user| (StageId(user - 1), StageId(user))).collect();
        Layout {
            back: edges.clone(),
            edges,
            trained: vec![true; stage_placement.stages()],
            reduced: vec![true; stage_placement.stages()],
            stage_placement,
            ties: Vec::new(),
            sharding: None,
        }
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.stage_placement.stages()
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.stage_placement.workers()
    }

    /// The stages of a worker, ascending.
    pub fn stages_of(&self, worker: WorkerId) -> impl Iterator<Item = StageId> + Clone + '_ {
        self.stage_placement.stages_of(worker)
    }

    /// For every worker the actions that follow its backward passes, before those of
    /// [`Layout::ending`]: all stages sum their gradients over microbatches and replicas, and apply
    /// the statistics of norms in the order of microbatches.
    pub fn reduction(&self, reduction: Reduction) -> Vec<Vec<Action>> {
        let list = |worker: u16| {
            let stages = self.stages_of(WorkerId(worker)).filter(|stage| self.is_reduced(*stage));
            stages.filter(|_| reduction.is_apart()).map(|stage| Action::Reduce { stage }).collect()
        };
        (0..self.workers() as u16).map(list).collect()
    }

    /// For every worker the actions that end a round. First all stages send the gradients of tied
    /// copies. Then all compute norms; of replicas with the same gradients, only the first does.
    /// Then all update. Last, all load the shards that others updated, and the values of tied
    /// copies. So no two workers wait for each other.
    pub fn ending(&self, ending: Ending) -> Vec<Vec<Action>> {
        let borrows = |stage: &StageId| self.ties.iter().any(|(_, user)| user == stage);
        let list = |worker: u16| {
            let worker = WorkerId(worker);
            let stages = self.stages_of(worker);
            let reduce = stages.clone().filter(borrows).map(|stage| Action::ReduceTied { stage });
            let speaks = |stage: &StageId| match ending {
                Ending::ClippedStep => {
                    self.stage_placement.first(*stage) == Some(worker) || self.is_sharded(*stage)
                }
                Ending::CommittedStep => true,
                Ending::Gather | Ending::Step => false,
            };
            let norms = stages.clone().filter(speaks);
            let norms = norms.map(|stage| Action::GradNorm { stage });
            let steps = stages.clone().map(|stage| Action::OptimStep { stage });
            let sharded = stages
                .clone()
                .filter(|stage| self.is_sharded(*stage) && !self.shards_parameters(*stage));
            let gather = sharded.map(|stage| Action::AllGather { stage });
            let update = stages.filter(borrows).map(|stage| Action::UpdateTied { stage });
            let all = reduce.chain(norms).chain(steps).chain(gather).chain(update);
            all.filter(|_| ending != Ending::Gather).collect()
        };
        (0..self.workers() as u16).map(list).collect()
    }

    /// Whether something of a stage is trained.
    pub fn is_trained(&self, stage: StageId) -> bool {
        self.trained.get(stage.0 as usize).copied().unwrap_or(true)
    }

    /// Whether the replicas of a stage exchange gradients or running statistics.
    pub fn is_reduced(&self, stage: StageId) -> bool {
        self.reduced.get(stage.0 as usize).copied().unwrap_or(true)
    }

    /// Whether each replica of a stage updates a part of its parameters.
    pub fn is_sharded(&self, stage: StageId) -> bool {
        self.sharding.is_some()
            && self.stage_placement.of(stage).len() > 1
            && self.is_trained(stage)
    }

    /// Whether the gradients of a stage leave with each microbatch.
    pub fn shards_gradients(&self, stage: StageId) -> bool {
        self.sharding.is_some_and(Sharding::shards_gradients) && self.is_sharded(stage)
    }

    /// Whether the replicas of a stage gather its parameters before they use them.
    pub fn shards_parameters(&self, stage: StageId) -> bool {
        self.sharding.is_some_and(Sharding::shards_parameters) && self.is_sharded(stage)
    }

    /// Whether another stage waits for the gradients of a stage's inputs.
    pub fn is_awaited(&self, stage: StageId) -> bool {
        self.back.iter().any(|(_, user)| *user == stage)
    }

    /// The actions that take a microbatch back through a stage.
    pub fn backward(
        &self,
        stage: StageId,
        microbatch: u32,
        split: bool,
    ) -> impl Iterator<Item = Action> {
        let (first, second) = match split && self.is_trained(stage) {
            false => (Action::Backward { stage, microbatch }, None),
            true => (
                Action::BackwardInput { stage, microbatch },
                Some(Action::BackwardWeight { stage, microbatch }),
            ),
        };
        [first].into_iter().chain(second)
    }
}
