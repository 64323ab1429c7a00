//! Cuts the model for a number of workers, as the settings ask for.

use super::user_settings::ParallelSettings;
use crate::BossManError;
use layerspec::LayerGraph;
use pipeline::plan::PlanError;
use pipeline::replicas::{Replicas, WorkerGroups};
use pipeline::room::CutMemory;
use pipeline::{Cuts, Placement, Plan, ScheduleKind};

/// The default number of stages on each worker if parameters are sharded.
const MAX_STAGES_PER_WORKER: usize = 8;

impl ParallelSettings {
    /// Cuts the model for `workers` workers.
    ///
    /// # Errors
    /// The model or the workers do not fit the settings.
    pub(crate) fn plan(
        &self,
        graph: &LayerGraph,
        workers: usize,
        memory: &CutMemory,
    ) -> Result<Plan, BossManError> {
        let mut error: Option<PlanError> = None;
        for worker_groups in self.worker_groups(workers)? {
            let mut of_these = None;
            for placement in self.placements(worker_groups.len()) {
                match Plan::within(graph, &self.cuts, worker_groups.clone(), placement, memory) {
                    Ok(plan) => return Ok(plan.sharded(self.sharding)),
                    // The last one asks for the fewest stages.
                    Err(e) => of_these = Some(e),
                }
            }
            error = error.or(of_these);
        }
        Err(error.map_or_else(
            || BossManError::Usage("a run without workers".into()),
            BossManError::from,
        ))
    }

    /// The possible worker groups for this number of workers.
    pub(crate) fn worker_groups(&self, workers: usize) -> Result<Vec<WorkerGroups>, BossManError> {
        let Some(replicas) = &self.replicas else { return Ok(vec![WorkerGroups::from(workers)]) };
        let groupings = replicas.groupings(workers);
        match (groupings.is_empty(), replicas) {
            (false, _) => Ok(groupings),
            (true, Replicas::Of(of)) => Err(BossManError::Usage(format!(
                "replicas {of:?} are {} workers in all, each at least one a place; there are \
                 {workers}",
                of.iter().map(|n| u32::from(*n)).sum::<u32>()
            ))),
            (true, _) => Err(BossManError::Usage(format!(
                "{workers} workers cannot be grouped so that each stage has the requested number \
                 of replicas; start a multiple of that number, or set `replicas` to auto"
            ))),
        }
    }

    /// The possible placements of stages on `places` places, the best first.
    fn placements(&self, places: usize) -> Vec<Placement> {
        let kind = self.requested_schedule().unwrap_or_default();
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let named = match &self.cuts {
            Cuts::At(names) => Some((names.len() + 1) / places.max(1)),
            Cuts::Auto => None,
        };
        // Neither `auto` nor `ready` fixes the number of stages on a worker. A list of cuts does.
        if let (None | Some(ScheduleKind::Ready), Some(chunks @ 2..)) =
            (self.requested_schedule(), named)
        {
            return vec![Placement::Interleaved { chunks: small(chunks) }];
        }
        if kind != ScheduleKind::GPipe || !self.shards_parameters() || self.chunks.is_some() {
            return vec![Placement::of(kind, self.chunks.map(small))];
        }
        // A worker with one stage would gather all parameters at once.
        let most = named.unwrap_or(MAX_STAGES_PER_WORKER);
        (1..=small(most).max(1)).rev().map(|chunks| Placement::of(kind, Some(chunks))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::user_settings::Settings;
    use super::*;

    #[test]
    fn a_list_of_cuts_sets_the_stages_of_auto_and_ready() {
        let text = format!(
            "inputs: {{x: [batch, 4]}}\nlayers:\n{}",
            "  - Linear: {in_features: 4, out_features: 4}\n".repeat(6)
        );
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let plan = |schedule: Option<ScheduleKind>, names: &[&str]| {
            let mut settings = Settings::default().parallel;
            settings.schedule = schedule;
            settings.cuts = Cuts::At(names.iter().map(ToString::to_string).collect());
            settings.plan(&graph, 2, &CutMemory::default())
        };
        for schedule in [None, Some(ScheduleKind::Ready)] {
            for (names, chunks) in [(&["1", "3", "4"][..], 2), (&["1", "2", "3", "4", "5"][..], 3)]
            {
                let plan = plan(schedule, names).expect("several stages a worker");
                assert!(Placement::Interleaved { chunks }.is(&plan.stage_placement));
            }
            assert_eq!(plan(schedule, &["3"]).expect("a stage a worker").stages.len(), 2);
            plan(schedule, &["1", "3"]).expect_err("three stages on two workers");
        }
        plan(Some(ScheduleKind::OneFOneB), &["1", "3", "4"]).expect_err("1F1B has one a worker");
    }
}
