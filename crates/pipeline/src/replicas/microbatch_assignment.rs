//! The assignment of microbatches to replicas.

use super::StagePlacement;
use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The time of a replica for its share of a batch, in any unit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Speed {
    /// The time for each microbatch.
    pub each: u64,
    /// The time that does not depend on the number of microbatches, for example that of the
    /// optimizer step.
    pub once: u64,
}

impl From<u64> for Speed {
    fn from(each: u64) -> Self {
        Speed { each, once: 0 }
    }
}

impl Speed {
    fn and(self, other: Speed) -> Speed {
        Speed {
            each: self.each.saturating_add(other.each),
            once: self.once.saturating_add(other.once),
        }
    }

    fn slower(self, other: Speed) -> Speed {
        Speed { each: self.each.max(other.each), once: self.once.max(other.once) }
    }

    fn time(self, microbatches: u32) -> u128 {
        u128::from(self.once) + u128::from(self.each.max(1)) * u128::from(microbatches)
    }

    /// The times of every worker, summed over its stages.
    fn of_workers<P: Into<Speed>>(
        stage_placement: &StagePlacement,
        speed: impl Fn(StageId, WorkerId) -> P,
    ) -> BTreeMap<WorkerId, Speed> {
        let mut of_worker: BTreeMap<WorkerId, Speed> = BTreeMap::new();
        for (stage, workers) in stage_placement.iter() {
            for worker in workers {
                let sum = of_worker.entry(*worker).or_default();
                *sum = sum.and(speed(stage, *worker).into());
            }
        }
        of_worker
    }
}

/// The replica that takes each microbatch of a batch, for every stage.
///
/// Unless they are [in turn](MicrobatchAssignment::in_turn), each replica takes whole branches of
/// the [tree](super::Tree) along which gradients are summed, as far as its share allows. For
/// example, shares of five and three of eight microbatches are `0 1 2 3 6` and `4 5 7`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MicrobatchAssignment(Vec<Vec<u16>>);

impl MicrobatchAssignment {
    /// Assigns equal numbers of microbatches to replicas, or one more to some.
    pub fn even(stage_placement: &StagePlacement, microbatches: u32) -> Self {
        Self::by_speed(stage_placement, microbatches, |_, _| 1u64)
    }

    /// Assigns microbatches so that the slowest replica finishes as early as possible. `speed` is
    /// the time of a worker for a stage. A plain number is the time for one microbatch.
    ///
    /// If all stages have the same number of replicas, replica `r` of each takes the same
    /// microbatches. So replicas form separate pipelines.
    ///
    /// Every replica gets at least one microbatch if there are enough. Otherwise its time could no
    /// longer be measured.
    pub fn by_speed<P: Into<Speed>>(
        stage_placement: &StagePlacement,
        microbatches: u32,
        speed: impl Fn(StageId, WorkerId) -> P,
    ) -> Self {
        Self::soonest(stage_placement, microbatches, 1, speed)
    }

    /// The same, but a slow replica may get no microbatch.
    pub fn by_speed_alone<P: Into<Speed>>(
        stage_placement: &StagePlacement,
        microbatches: u32,
        speed: impl Fn(StageId, WorkerId) -> P,
    ) -> Self {
        Self::soonest(stage_placement, microbatches, 0, speed)
    }

    fn soonest<P: Into<Speed>>(
        stage_placement: &StagePlacement,
        microbatches: u32,
        least: u32,
        speed: impl Fn(StageId, WorkerId) -> P,
    ) -> Self {
        let of_worker = Speed::of_workers(stage_placement, speed);
        let speeds = |workers: &[WorkerId]| -> Vec<Speed> {
            workers.iter().map(|w| of_worker.get(w).copied().unwrap_or_default()).collect()
        };
        let replicas = stage_placement.of(StageId(0)).len();
        let lanes = stage_placement.iter().all(|(_, workers)| workers.len() == replicas);
        let slowest = |all: Vec<Speed>, workers: &[WorkerId]| -> Vec<Speed> {
            all.into_iter()
                .zip(speeds(workers))
                .map(|(slowest, speed)| slowest.slower(speed))
                .collect()
        };
        let lane = stage_placement
            .iter()
            .fold(vec![Speed::default(); replicas], |all, (_, workers)| slowest(all, workers));
        let microbatch_assignment =
            |(_, workers): (StageId, &[WorkerId])| match (workers.len(), lanes) {
                (..=1, _) => Vec::new(),
                (_, true) => branches(microbatches, &shares(microbatches, least, &lane)),
                (_, false) => {
                    branches(microbatches, &shares(microbatches, least, &speeds(workers)))
                }
            };
        MicrobatchAssignment(stage_placement.iter().map(microbatch_assignment).collect())
    }

    /// The same shares, but replicas take turns. So neighbours in the [tree](super::Tree) finish at
    /// about the same time, and sums that wait for a neighbour wait at one replica instead of at
    /// each.
    #[must_use]
    pub fn in_turn(mut self) -> Self {
        self.0.iter_mut().for_each(|takers| *takers = in_turn(takers));
        self
    }

    /// The replica of a stage that takes a microbatch.
    pub fn replica(&self, stage: StageId, microbatch: u32) -> u16 {
        let of_stage = self.0.get(stage.0 as usize);
        of_stage.and_then(|takers| takers.get(microbatch as usize)).copied().unwrap_or(0)
    }

    /// The worker of the replica that takes a microbatch through a stage.
    pub fn worker(
        &self,
        stage_placement: &StagePlacement,
        stage: StageId,
        microbatch: u32,
    ) -> Option<WorkerId> {
        stage_placement.of(stage).get(usize::from(self.replica(stage, microbatch))).copied()
    }

    /// The microbatches, of `microbatches`, that a worker takes through a stage, ascending.
    pub fn taken<'a>(
        &'a self,
        stage_placement: &'a StagePlacement,
        stage: StageId,
        worker: WorkerId,
        microbatches: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        (0..microbatches).filter(move |m| self.worker(stage_placement, stage, *m) == Some(worker))
    }

    /// The time of the slowest worker with its share, by `speed` as for
    /// [`MicrobatchAssignment::by_speed`].
    pub fn longest<P: Into<Speed>>(
        &self,
        stage_placement: &StagePlacement,
        microbatches: u32,
        speed: impl Fn(StageId, WorkerId) -> P,
    ) -> u128 {
        let taken = |worker: WorkerId| {
            let stage = stage_placement.stages_of(worker).next().unwrap_or(StageId(0));
            self.taken(stage_placement, stage, worker, microbatches).count() as u32
        };
        let times = Speed::of_workers(stage_placement, speed)
            .into_iter()
            .map(|(worker, speed)| speed.time(taken(worker)));
        times.max().unwrap_or(0)
    }

    /// Whether it assigns microbatches only to replicas that exist.
    pub fn fits(&self, stage_placement: &StagePlacement) -> bool {
        let fits = |(stage, workers): (StageId, &[WorkerId])| {
            let takers = self.0.get(stage.0 as usize).map_or(&[][..], Vec::as_slice);
            takers.iter().all(|taker| usize::from(*taker) < workers.len())
        };
        self.0.len() <= stage_placement.stages() && stage_placement.iter().all(fits)
    }
}

/// The number of microbatches of each replica. Each microbatch goes to the replica that would
/// finish it first. Every replica gets `least` microbatches if there are enough.
fn shares(microbatches: u32, least: u32, speeds: &[Speed]) -> Vec<u32> {
    let least = if microbatches as usize >= speeds.len() { least } else { 0 };
    let mut shares = vec![least; speeds.len()];
    for _ in least * speeds.len() as u32..microbatches {
        let end = |replica: &usize| speeds[*replica].time(shares[*replica] + 1);
        if let Some(next) = (0..speeds.len()).min_by_key(end) {
            shares[next] += 1;
        }
    }
    shares
}

/// Cuts every share into powers of two and places these side by side, the largest first, so that
/// each is a branch of the tree.
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

/// The same number for each replica, spread evenly: the replica that is furthest behind its share
/// is next.
fn in_turn(takers: &[u16]) -> Vec<u16> {
    let mut shares: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    takers.iter().for_each(|taker| shares.entry(*taker).or_default().0 += 1);
    let next = |_| {
        // The smallest (taken + 1/2) / share is next.
        let at = |(share, taken): (u64, u64)| {
            (u128::from(2 * taken + 1) << 64) / u128::from(share.max(1))
        };
        let (replica, _) = shares.iter().min_by_key(|(replica, of)| (at(**of), **replica))?;
        let replica = *replica;
        shares.entry(replica).or_default().1 += 1;
        Some(replica)
    };
    (0..takers.len()).filter_map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::super::nodes;
    use super::*;

    fn stage_placement(replicas: &[u16]) -> StagePlacement {
        let mut next = 0;
        let stage = |replicas: &u16| {
            let workers = (next..next + replicas).map(WorkerId).collect();
            next += replicas;
            workers
        };
        StagePlacement::new(replicas.iter().map(stage).collect())
    }

    #[test]
    fn an_even_deal_gives_each_replica_a_branch_where_it_can() {
        let stage_placement = stage_placement(&[2]);
        let microbatch_assignment = MicrobatchAssignment::even(&stage_placement, 8);
        let taken = |worker| {
            microbatch_assignment
                .taken(&stage_placement, StageId(0), WorkerId(worker), 8)
                .collect::<Vec<_>>()
        };
        assert_eq!((taken(0), taken(1)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        assert_eq!(nodes(8, taken(1)).len(), 1);
    }

    #[test]
    fn a_slow_replica_takes_fewer_and_every_microbatch_is_taken_once() {
        let stage_placement = stage_placement(&[2]);
        // They take 3 and 5.
        let microbatch_assignment =
            MicrobatchAssignment::by_speed(&stage_placement, 8, |_, worker| {
                3 + 2 * u64::from(worker.0)
            });
        let taken = |worker| {
            microbatch_assignment
                .taken(&stage_placement, StageId(0), WorkerId(worker), 8)
                .collect::<Vec<_>>()
        };
        assert_eq!((taken(0), taken(1)), (vec![0, 1, 2, 3, 6], vec![4, 5, 7]));
        for microbatches in 1..20 {
            for replicas in 1..6 {
                let stage_placement = self::stage_placement(&[replicas]);
                let microbatch_assignment =
                    MicrobatchAssignment::by_speed(&stage_placement, microbatches, |_, worker| {
                        3 + u64::from(worker.0) * 5
                    });
                assert!(microbatch_assignment.fits(&stage_placement));
                let taken = (0..replicas).map(|w| {
                    microbatch_assignment
                        .taken(&stage_placement, StageId(0), WorkerId(w), microbatches)
                        .count()
                });
                assert_eq!(taken.sum::<usize>(), microbatches as usize);
            }
        }
    }

    #[test]
    fn replicas_take_turns_by_their_shares() {
        assert_eq!(in_turn(&[0, 0, 0, 0, 1, 1, 1, 1]), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(in_turn(&[0, 0, 0, 0, 0, 1, 1, 0]), [0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(in_turn(&[]), []);
        for takers in [vec![2, 2, 2, 0, 1, 1], vec![1], vec![3; 7]] {
            let sorted = |mut all: Vec<u16>| {
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(in_turn(&takers)), sorted(takers));
        }
    }

    #[test]
    fn what_a_replica_does_once_counts_too() {
        let stage_placement = stage_placement(&[2]);
        let speed = |_: StageId, worker: WorkerId| Speed {
            each: 10,
            once: if worker.0 == 1 { 40 } else { 0 },
        };
        let microbatch_assignment = MicrobatchAssignment::by_speed(&stage_placement, 8, speed);
        assert_eq!(
            microbatch_assignment.taken(&stage_placement, StageId(0), WorkerId(1), 8).count(),
            2
        );
        assert_eq!(
            (
                microbatch_assignment.longest(&stage_placement, 8, speed),
                MicrobatchAssignment::even(&stage_placement, 8).longest(&stage_placement, 8, speed)
            ),
            (60, 80)
        );
    }

    #[test]
    fn nobody_is_left_without() {
        let stage_placement = stage_placement(&[3]);
        let speed = |_: StageId, worker: WorkerId| if worker.0 == 1 { 1_000_000u64 } else { 1 };
        let taken = |m| {
            MicrobatchAssignment::by_speed(&stage_placement, m, speed)
                .taken(&stage_placement, StageId(0), WorkerId(1), m)
                .count()
        };
        assert_eq!((taken(2), taken(3), taken(12)), (0, 1, 1));
    }

    #[test]
    fn stages_with_as_many_replicas_form_pipelines() {
        // The second worker of the second stage is slow, and with it the second pipeline.
        let stage_placement = stage_placement(&[2, 2]);
        let microbatch_assignment =
            MicrobatchAssignment::by_speed(&stage_placement, 8, |_, worker| {
                if worker.0 == 3 {
                    3u64
                } else {
                    1
                }
            });
        for m in 0..8 {
            assert_eq!(
                microbatch_assignment.replica(StageId(0), m),
                microbatch_assignment.replica(StageId(1), m)
            );
        }
        let of_slow =
            microbatch_assignment.taken(&stage_placement, StageId(1), WorkerId(3), 8).count();
        assert_eq!(of_slow, 2);
    }
}
