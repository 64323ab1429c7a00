//! Which replica takes which microbatch.

use super::Homes;
use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// For every stage which of its replicas takes each microbatch of a batch.
///
/// Each replica takes whole branches of the [tree](super::Tree) along which gradients are summed, as far as its share
/// allows: of eight microbatches five and three are `0 1 2 3 6` and `4 5 7`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Deal(Vec<Vec<u16>>);

impl Deal {
    /// Every replica takes as many, or one more.
    pub fn even(homes: &Homes, microbatches: u32) -> Self {
        Self::by_speed(homes, microbatches, |_, _| 1)
    }

    /// Each replica takes as many as lets the slowest be done soonest. `time` is what a worker takes for one microbatch
    /// through a stage, in any unit.
    ///
    /// Where all stages have as many replicas, replica `r` of each takes the same microbatches, so that they form
    /// pipelines of their own.
    pub fn by_speed(homes: &Homes, microbatches: u32, time: impl Fn(StageId, WorkerId) -> u64) -> Self {
        let mut of_worker: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (stage, workers) in homes.iter() {
            for worker in workers {
                let sum = of_worker.entry(*worker).or_insert(0);
                *sum = sum.saturating_add(time(stage, *worker));
            }
        }
        let times = |workers: &[WorkerId]| -> Vec<u64> {
            workers.iter().map(|w| of_worker.get(w).copied().unwrap_or(1)).collect()
        };
        let replicas = homes.of(StageId(0)).len();
        let lanes = homes.iter().all(|(_, workers)| workers.len() == replicas);
        let slowest = |mut all: Vec<u64>, workers: &[WorkerId]| {
            all.iter_mut().zip(times(workers)).for_each(|(slowest, time)| *slowest = time.max(*slowest));
            all
        };
        let lane = homes.iter().fold(vec![1; replicas], |all, (_, workers)| slowest(all, workers));
        let deal = |(_, workers): (StageId, &[WorkerId])| match (workers.len(), lanes) {
            (..=1, _) => Vec::new(),
            (_, true) => branches(microbatches, &shares(microbatches, &lane)),
            (_, false) => branches(microbatches, &shares(microbatches, &times(workers))),
        };
        Deal(homes.iter().map(deal).collect())
    }

    /// The replica of a stage that takes a microbatch.
    pub fn replica(&self, stage: StageId, microbatch: u32) -> u16 {
        let of_stage = self.0.get(stage.0 as usize);
        of_stage.and_then(|takers| takers.get(microbatch as usize)).copied().unwrap_or(0)
    }

    /// Its worker.
    pub fn worker(&self, homes: &Homes, stage: StageId, microbatch: u32) -> Option<WorkerId> {
        homes.of(stage).get(usize::from(self.replica(stage, microbatch))).copied()
    }

    /// The microbatches that a worker takes through a stage, of so many, ascending.
    pub fn taken<'a>(
        &'a self,
        homes: &'a Homes,
        stage: StageId,
        worker: WorkerId,
        microbatches: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        (0..microbatches).filter(move |m| self.worker(homes, stage, *m) == Some(worker))
    }

    /// How long the slowest worker takes with its share, by `time` as for [`Deal::by_speed`].
    pub fn longest(&self, homes: &Homes, microbatches: u32, time: impl Fn(StageId, WorkerId) -> u64) -> u64 {
        let mut busy: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (stage, workers) in homes.iter() {
            for worker in workers {
                let taken = self.taken(homes, stage, *worker, microbatches).count() as u64;
                let sum = busy.entry(*worker).or_insert(0);
                *sum = sum.saturating_add(time(stage, *worker).saturating_mul(taken));
            }
        }
        busy.into_values().max().unwrap_or(0)
    }

    /// Whether it deals to replicas that there are.
    pub fn fits(&self, homes: &Homes) -> bool {
        let fits = |(stage, workers): (StageId, &[WorkerId])| {
            let takers = self.0.get(stage.0 as usize).map_or(&[][..], Vec::as_slice);
            takers.iter().all(|taker| usize::from(*taker) < workers.len())
        };
        self.0.len() <= homes.stages() && homes.iter().all(fits)
    }
}

/// How many microbatches each replica takes: each goes to who would be done with it first.
fn shares(microbatches: u32, times: &[u64]) -> Vec<u32> {
    let mut shares = vec![0u32; times.len()];
    for _ in 0..microbatches {
        let end = |replica: &usize| u128::from(times[*replica].max(1)) * u128::from(shares[*replica] + 1);
        if let Some(next) = (0..times.len()).min_by_key(end) {
            shares[next] += 1;
        }
    }
    shares
}

/// Cuts every share into powers of two and lays these side by side, the largest first, so that each is a branch.
fn branches(microbatches: u32, shares: &[u32]) -> Vec<u16> {
    let bits = |(replica, share): (usize, &u32)| {
        let share = *share;
        (0..u32::BITS)
            .map(move |bit| share & (1 << bit))
            .filter(|size| *size > 0)
            .map(move |size| (size, replica as u16))
    };
    let mut pieces: Vec<(u32, u16)> = shares.iter().enumerate().flat_map(bits).collect();
    pieces.sort_by_key(|(size, replica)| (Reverse(*size), *replica));
    let takers = pieces.into_iter().flat_map(|(size, replica)| (0..size).map(move |_| replica));
    takers.take(microbatches as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::super::nodes;
    use super::*;

    fn homes(replicas: &[u16]) -> Homes {
        let mut next = 0;
        let stage = |replicas: &u16| {
            let workers = (next..next + replicas).map(WorkerId).collect();
            next += replicas;
            workers
        };
        Homes::new(replicas.iter().map(stage).collect())
    }

    #[test]
    fn an_even_deal_gives_each_replica_a_branch_where_it_can() {
        let homes = homes(&[2]);
        let deal = Deal::even(&homes, 8);
        let taken = |worker| deal.taken(&homes, StageId(0), WorkerId(worker), 8).collect::<Vec<_>>();
        assert_eq!((taken(0), taken(1)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        assert_eq!(nodes(8, taken(1)).len(), 1);
    }

    #[test]
    fn a_slow_replica_takes_fewer_and_every_microbatch_is_taken_once() {
        let homes = homes(&[2]);
        // They take 3 and 5.
        let deal = Deal::by_speed(&homes, 8, |_, worker| 3 + 2 * u64::from(worker.0));
        let taken = |worker| deal.taken(&homes, StageId(0), WorkerId(worker), 8).collect::<Vec<_>>();
        assert_eq!((taken(0), taken(1)), (vec![0, 1, 2, 3, 6], vec![4, 5, 7]));
        for microbatches in 1..20 {
            for replicas in 1..6 {
                let homes = self::homes(&[replicas]);
                let deal = Deal::by_speed(&homes, microbatches, |_, worker| 3 + u64::from(worker.0) * 5);
                assert!(deal.fits(&homes));
                let taken = (0..replicas).map(|w| deal.taken(&homes, StageId(0), WorkerId(w), microbatches).count());
                assert_eq!(taken.sum::<usize>(), microbatches as usize);
            }
        }
    }

    #[test]
    fn stages_with_as_many_replicas_form_pipelines() {
        // The second worker of the second stage is slow, and with it the second pipeline.
        let homes = homes(&[2, 2]);
        let deal = Deal::by_speed(&homes, 8, |_, worker| if worker.0 == 3 { 3 } else { 1 });
        for m in 0..8 {
            assert_eq!(deal.replica(StageId(0), m), deal.replica(StageId(1), m));
        }
        let of_slow = deal.taken(&homes, StageId(1), WorkerId(3), 8).count();
        assert_eq!(of_slow, 2);
    }
}
