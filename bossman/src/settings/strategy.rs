//! The consequences of the settings for a session, computed once.

use super::guards::NonFinite;
use super::user_settings::{ParallelSettings, Settings};
use layerspec::LayerGraph;
use pipeline::message::Reduction;
use pipeline::replicas::BucketBytes;
use pipeline::schedule::Ending;
use pipeline::{Plan, ScheduleKind};
use std::collections::BTreeSet;

/// The bytes of a bucket of compressed gradients. Compression implies a slow network. It should
/// start to send early, and an extra message costs little.
const COMPRESSED_BUCKET_BYTES: u64 = 2 << 20;

/// The consequences of [`Settings`] for this model and these workers.
pub(crate) struct Strategy {
    /// The microbatches of a batch.
    pub(crate) microbatches: u32,
    /// The requested schedule. `None`: it is chosen by measurement.
    pub(crate) schedule: Option<ScheduleKind>,
    /// The limit of the gradients' norm. It is infinite if only overflow matters, and `None` if
    /// nobody needs the norm.
    pub(crate) max_norm: Option<f64>,
    /// How gradients are summed without NCCL.
    pub(crate) reduction: Reduction,
    pub(crate) buckets: BucketBytes,
    /// Whether workers may join and leave between steps.
    pub(crate) is_pool: bool,
}

impl Strategy {
    pub(crate) fn new(settings: &Settings, graph: &LayerGraph, workers: usize) -> Self {
        let parallel = &settings.parallel;
        // Overflowed gradients are recognised by their norm.
        let finds_overflow = settings.scales_loss || settings.guards.nonfinite == NonFinite::Skip;
        // If no dimension counts samples, no batch can be cut.
        let can_cut = graph.batch().is_some();
        let default = if can_cut { u32::try_from(workers).unwrap_or(u32::MAX) } else { 1 };
        Strategy {
            microbatches: settings.microbatches.unwrap_or(default),
            schedule: parallel.requested_schedule(),
            max_norm: settings.max_norm.or(finds_overflow.then_some(f64::INFINITY)),
            reduction: reduction(parallel),
            buckets: match parallel.compress {
                None => BucketBytes::default(),
                Some(_) => BucketBytes { other: COMPRESSED_BUCKET_BYTES, ..Default::default() },
            },
            is_pool: false,
        }
    }

    /// Changes the strategy to that of a pool with this plan. Layers are not measured, because that
    /// would have to be repeated with every worker that joins. So the default schedule is 1F1B, or
    /// interleaved 1F1B if a list of cuts gives a worker several stages.
    pub(crate) fn open_pool(&mut self, plan: &Plan) {
        let groups = plan.stage_placement.iter().map(|(_, workers)| workers);
        let has_several = groups.collect::<BTreeSet<_>>().len() < plan.stages.len();
        self.schedule.get_or_insert(match has_several {
            true => ScheduleKind::Interleaved,
            false => ScheduleKind::OneFOneB,
        });
        self.is_pool = true;
    }

    /// How a step with fixed members ends that updates parameters.
    pub(crate) fn update_ending(&self) -> Ending {
        if self.max_norm.is_some() {
            Ending::ClippedStep
        } else {
            Ending::Step
        }
    }

    /// How a step ends. In a pool, a worker that leaves must leave the others with all gradients
    /// or with nothing changed.
    pub(crate) fn ending(&self, updates: bool) -> Ending {
        match (updates, self.is_pool) {
            (false, _) => Ending::Gather,
            (true, true) => Ending::CommittedStep,
            (true, false) => self.update_ending(),
        }
    }

    /// The limit of the norm that workers apply. In a pool the norm also proves that every worker
    /// has all gradients, so it is always computed.
    pub(crate) fn applied_max_norm(&self) -> Option<f64> {
        self.max_norm.or(self.is_pool.then_some(f64::INFINITY))
    }
}

fn reduction(parallel: &ParallelSettings) -> Reduction {
    match (&parallel.replicas, parallel.compress) {
        (None, _) => Reduction::Sequential,
        (Some(_), Some(compress)) => Reduction::Compressed(compress),
        (Some(_), None) if parallel.fast_reduction => Reduction::Fast,
        (Some(_), None) => Reduction::Tree,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::replicas::Replicas;
    use pipeline::room::CutMemory;
    use pipeline::schedule::Terms;
    use pipeline::Cuts;

    #[test]
    fn a_pool_has_a_schedule_for_its_cuts() {
        let text = format!(
            "inputs: {{x: [batch, 4]}}\nlayers:\n{}",
            "  - Linear: {in_features: 4, out_features: 4}\n".repeat(6)
        );
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        for (replicas, names, expected) in [
            (&[2][..], &[][..], ScheduleKind::OneFOneB),
            (&[2], &["3"], ScheduleKind::Interleaved),
            (&[1, 1], &["3"], ScheduleKind::OneFOneB),
            (&[1, 1], &["1", "3", "4"], ScheduleKind::Interleaved),
        ] {
            let mut settings = Settings::default();
            settings.parallel.cuts = Cuts::At(names.iter().map(ToString::to_string).collect());
            settings.parallel.replicas = Some(Replicas::Of(replicas.to_vec()));
            let plan = settings.parallel.plan(&graph, 2, &CutMemory::default());
            let plan = plan.expect("a good cut");
            let mut strategy = Strategy::new(&settings, &graph, 2);
            strategy.open_pool(&plan);
            let kind = strategy.schedule.expect("a schedule");
            assert_eq!(kind, expected, "{replicas:?} {names:?}");
            let terms = Terms { reduction: Reduction::Tree, ..Terms::new(kind, 4) };
            plan.schedule_for(&terms).expect("it goes with the stages");
        }
    }
}
