//! The search for a straggler: a worker that makes the others slower.
//!
//! A replica takes a share of the microbatches, but all others exchange gradients with it. If its
//! link or its processor is so slow that the others would finish earlier without it, it is evicted.

use crate::ids::{StageId, WorkerId};
use crate::plan::StageSpec;
use crate::replicas::{buckets, Bucket, BucketBytes, MicrobatchAssignment, Speed, StagePlacement};

/// A straggler is evicted if a step without it takes less than this part of the time. Smaller gains
/// are within the variation from step to step.
const EVICT_BELOW: f64 = 0.9;

/// The rate of a link between two workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LinkRate {
    /// One end.
    pub from: WorkerId,
    /// The other end.
    pub to: WorkerId,
    /// The rate of large tensors.
    pub bytes_per_second: u64,
}

/// The known rates of links.
#[derive(Default)]
pub(super) struct Links(Vec<LinkRate>);

impl Links {
    pub(super) fn new(mut rates: Vec<LinkRate>) -> Self {
        rates.retain(|link| link.bytes_per_second > 0);
        Links(rates)
    }

    /// The rate of a worker's slowest link to another worker of a placement, in bytes per second.
    pub(super) fn slowest(&self, placement: &StagePlacement, worker: WorkerId) -> Option<u64> {
        let is_between = |link: &&LinkRate| {
            (link.from == worker && placement.is_member(link.to))
                || (link.to == worker && placement.is_member(link.from))
        };
        self.0.iter().filter(is_between).map(|link| link.bytes_per_second).min()
    }
}

/// The figures that predict the time of a step, in nanoseconds.
pub struct StepTimes<'a> {
    /// The stages of the model.
    pub stages: &'a [StageSpec],
    /// The microbatches of a batch.
    pub microbatches: u32,
    /// The time of a worker for a stage, without the exchange of gradients.
    pub speed: &'a dyn Fn(StageId, WorkerId) -> Speed,
}

impl StepTimes<'_> {
    /// The worker that slows the others down most, with the reason. The last worker of a stage is
    /// never a straggler.
    pub(super) fn straggler(
        &self,
        placement: &StagePlacement,
        links: &Links,
    ) -> Option<(WorkerId, String)> {
        let with = self.step(placement, links);
        let gain = |worker: WorkerId| {
            let others = placement.without(worker);
            let is_whole = others.iter().all(|(_, workers)| !workers.is_empty());
            let without = is_whole.then(|| self.step(&others, links))?;
            (without < with * EVICT_BELOW).then_some((worker, without))
        };
        let gains = placement.members().into_iter().filter_map(gain);
        let (worker, without) = gains.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let link = links.slowest(placement, worker).map_or(String::new(), |rate| {
            format!(", its link carries {:.1} MB/s", rate as f64 / 1e6)
        });
        let (with, without) = (with / 1e6, without / 1e6);
        let reason = format!("a step takes {with:.0} ms with it and {without:.0} ms without{link}");
        Some((worker, reason))
    }

    /// The time of a step with this placement: the slowest worker's, with its share and its
    /// exchange of gradients.
    fn step(&self, placement: &StagePlacement, links: &Links) -> f64 {
        let speed = |stage: StageId, worker: WorkerId| {
            let Speed { each, once } = (self.speed)(stage, worker);
            let exchange = self.exchange(placement, stage, links.slowest(placement, worker));
            Speed { each, once: once.saturating_add(exchange) }
        };
        let assignment = MicrobatchAssignment::by_speed(placement, self.microbatches, speed);
        assignment.longest(placement, self.microbatches, speed) as f64
    }

    /// The time in which a worker with this link exchanges a stage's gradients. Its part goes out
    /// to be summed and sums come back, each as large as the trained parameters of the stage, less
    /// its own part.
    fn exchange(&self, placement: &StagePlacement, stage: StageId, rate: Option<u64>) -> u64 {
        let replicas = placement.of(stage).len() as u64;
        let spec = self.stages.get(usize::from(stage.0));
        let (Some(rate), Some(spec), true) = (rate, spec, replicas > 1) else { return 0 };
        let bytes: u64 =
            buckets(spec, BucketBytes::default(), None).iter().map(Bucket::bytes).sum();
        let moved = 2.0 * bytes as f64 * (replicas - 1) as f64 / replicas as f64;
        (moved / rate as f64 * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::WorkerGroups;
    use crate::{Cuts, Placement, Plan};
    use layerspec::LayerGraph;

    #[test]
    fn a_slow_link_makes_a_straggler() {
        let layer = "{Linear: {in_features: 64, out_features: 64}}";
        let text = format!("inputs: {{x: [batch, 64]}}\nlayers: [{layer}]\n");
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let plan = Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(&[3]), Placement::Plain);
        let plan = plan.expect("a good cut");
        let link = |from, to, bytes_per_second| LinkRate {
            from: WorkerId(from),
            to: WorkerId(to),
            bytes_per_second,
        };
        let links =
            Links::new(vec![link(0, 1, 1_000_000), link(0, 2, 100_000), link(1, 2, 100_000)]);
        let speed = |_: StageId, _: WorkerId| Speed::from(10_000_000);
        let times = StepTimes { stages: &plan.stages, microbatches: 6, speed: &speed };
        // Gradients have 16,640 bytes. Each of three replicas moves 4/3 of that, and each of two
        // replicas moves all of it.
        let reason = "a step takes 242 ms with it and 47 ms without, its link carries 0.1 MB/s";
        let straggler = times.straggler(&plan.stage_placement, &links);
        assert_eq!(straggler, Some((WorkerId(2), reason.to_string())));
        let alone = StagePlacement::single([WorkerId(2)]);
        assert_eq!(times.straggler(&alone, &links), None);
    }
}
