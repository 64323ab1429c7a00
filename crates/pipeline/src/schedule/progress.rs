//! The progress of a played schedule: the arrivals that each pass and each replica waits for.

use super::work::Work;
use super::Costs;
use crate::ids::{StageId, WorkerId};

/// The passes of every microbatch through every stage.
pub(super) struct Passes {
    microbatches: usize,
    passes: Vec<Pass>,
}

/// One microbatch at one stage.
#[derive(Copy, Clone, Default)]
pub(super) struct Pass {
    /// The number of inputs that have not arrived.
    pub(super) inputs: u32,
    /// The number of gradients of outputs that have not arrived.
    pub(super) grads: u32,
    pub(super) forward_done: bool,
    /// Whether the gradients of the inputs are computed.
    pub(super) input_done: bool,
}

impl Passes {
    pub(super) fn new(work: &Work<'_>, costs: &Costs) -> Self {
        let mut first = vec![Pass::default(); work.layout.stages()];
        for (_, user) in &work.layout.edges {
            first[user.0 as usize].inputs += 1;
        }
        for (maker, _) in &work.layout.back {
            first[maker.0 as usize].grads += 1;
        }
        for stage in costs.from_boss.keys() {
            first[stage.0 as usize].inputs += 1;
        }
        let microbatches = work.microbatches as usize;
        let passes = first.into_iter().flat_map(|pass| std::iter::repeat_n(pass, microbatches));
        Passes { microbatches, passes: passes.collect() }
    }

    pub(super) fn of(&self, stage: usize, microbatch: u32) -> &Pass {
        &self.passes[stage * self.microbatches + microbatch as usize]
    }

    pub(super) fn of_mut(&mut self, stage: usize, microbatch: u32) -> &mut Pass {
        &mut self.passes[stage * self.microbatches + microbatch as usize]
    }
}

/// A stage on one of its workers.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) stage: usize,
    pub(super) replica: usize,
}

/// Every replica of every stage.
pub(super) struct Replicas(Vec<Vec<Replica>>);

/// The arrivals that a replica of a stage still waits for in the round.
#[derive(Copy, Clone, Default)]
pub(super) struct Replica {
    /// The number of microbatches whose backward pass is not complete.
    pub(super) passes: u32,
    /// The number of sums of gradients that other replicas have still to send.
    pub(super) sums: u32,
    /// The number of sums over all replicas that others have still to send.
    pub(super) reduced: u32,
    /// The number of stages that have still to send gradients of tied parameters.
    pub(super) tied_grads: u32,
    /// The number of stages that have still to send new values of tied parameters.
    pub(super) tied_values: u32,
    /// The number of parts of parameters that others have shared and that were not yet gathered.
    pub(super) shared: u32,
}

impl Replicas {
    pub(super) fn new(work: &Work<'_>) -> Self {
        let of_stage = |(stage, workers): (StageId, &[WorkerId])| {
            let layout = work.layout;
            let passes: Vec<u32> =
                workers.iter().map(|worker| work.taken(stage, *worker).count() as u32).collect();
            // From each other replica one sum, or one for each microbatch.
            let most = if layout.shards_gradients(stage) { u32::MAX } else { 1 };
            let all_sums: u32 = passes.iter().map(|passes| *passes.min(&most)).sum();
            // If parameters are gathered first, no sum comes back.
            let comes_back = !layout.shards_parameters(stage);
            let others = (passes.len() as u32).saturating_sub(1);
            let replica = |passes: u32| Replica {
                passes,
                sums: all_sums - passes.min(most),
                reduced: if comes_back { others } else { 0 },
                tied_grads: layout.ties.iter().filter(|(owner, _)| *owner == stage).count() as u32,
                tied_values: layout.ties.iter().filter(|(_, user)| *user == stage).count() as u32,
                shared: 0,
            };
            passes.into_iter().map(replica).collect()
        };
        Replicas(work.layout.stage_placement.iter().map(of_stage).collect())
    }

    pub(super) fn of(&self, place: Place) -> &Replica {
        &self.0[place.stage][place.replica]
    }

    pub(super) fn of_mut(&mut self, place: Place) -> &mut Replica {
        &mut self.0[place.stage][place.replica]
    }

    /// The number of replicas of a stage.
    pub(super) fn count(&self, stage: usize) -> usize {
        self.0[stage].len()
    }

    /// The other replicas of a stage.
    pub(super) fn others(&self, place: Place) -> impl Iterator<Item = Place> + use<> {
        let Place { stage, replica } = place;
        (0..self.count(stage))
            .filter(move |other| *other != replica)
            .map(move |replica| Place { stage, replica })
    }
}

/// One of what is counted down has arrived.
pub(super) fn count_down(count: &mut u32) {
    *count = count.saturating_sub(1);
}
