//! Checks whether a plan's parameters fit into the workers' memory.

use crate::ids::WorkerId;
use crate::plan::{Plan, PlanError};
use crate::replicas::Sharding;
use crate::room::bytes;
use crate::stage_spec::StageSpec;

impl Plan {
    /// Checks that each worker can store the values of its parameters. `memory` has the bytes of
    /// every worker, or `None` if unknown.
    ///
    /// # Errors
    /// A worker has less memory.
    pub fn check_memory(&self, memory: &[Option<u64>]) -> Result<(), PlanError> {
        for (number, available) in memory.iter().enumerate() {
            let Some(available) = *available else { continue };
            let worker = WorkerId(u16::try_from(number).unwrap_or(u16::MAX));
            let stages = self.stages.iter().filter(|s| self.stage_placement.has(s.stage, worker));
            let needed = stages.map(|stage| self.values(stage)).fold(0, u64::saturating_add);
            if needed > available {
                return Err(PlanError::TooLittleMemory { worker, needed, available });
            }
        }
        Ok(())
    }

    /// The bytes of a stage's parameters on a worker. Shared ones count at their owner.
    fn values(&self, stage: &StageSpec) -> u64 {
        let own = stage.layers.iter().filter(|layer| layer.share.is_none());
        let bytes = own.map(|layer| bytes(layer, 1)).fold(0, u64::saturating_add);
        match self.sharding.is_some_and(Sharding::shards_parameters) {
            true => bytes / (self.stage_placement.of(stage.stage).len().max(1) as u64),
            false => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Plan, PlanError};
    use crate::room::CutMemory;
    use crate::{Cuts, Placement};
    use layerspec::LayerGraph;

    /// Eight equal layers of 4 KiB and a bias.
    const MODEL: &str = "
inputs: {x: [batch, 32]}
layers:
  - {name: block, repeat: 8, layers: [Linear: {in_features: 32, out_features: 32}]}
";
    const LAYER: u64 = (32 * 32 + 32) * 4;

    fn sizes(memory: [Option<u64>; 2], placement: Placement) -> Vec<usize> {
        cut(&CutMemory { all: memory.to_vec(), ..CutMemory::default() }, placement)
    }

    fn cut(memory: &CutMemory, placement: Placement) -> Vec<usize> {
        let graph = LayerGraph::from_yaml(MODEL, "model.yaml").unwrap();
        let plan = Plan::within(&graph, &Cuts::Auto, 2, placement, memory).unwrap();
        plan.stages.iter().map(|stage| stage.layers.len()).collect()
    }

    #[test]
    fn a_worker_with_less_memory_gets_fewer_layers() {
        assert_eq!(sizes([None; 2], Placement::Plain), [4, 4]);
        assert_eq!(sizes([Some(2 * 4 * LAYER), None], Placement::Plain), [2, 6]);
        // Nothing leaves room for training, so for the values alone.
        assert_eq!(sizes([Some(7 * LAYER), Some(LAYER)], Placement::Plain), [7, 1]);
        // Nothing fits at all.
        assert_eq!(sizes([Some(LAYER); 2], Placement::Plain), [4, 4]);
        // The second and the third of four stages are on the second worker.
        assert_eq!(sizes([None, Some(2 * 4 * LAYER)], Placement::V), [3, 1, 1, 3]);
    }

    #[test]
    fn less_memory_is_used_where_that_is_enough_for_training() {
        let all = vec![Some(4 * 4 * LAYER), None];
        let cut = |spared| {
            let memory = CutMemory { all: all.clone(), spared, ..CutMemory::default() };
            cut(&memory, Placement::Plain)
        };
        assert_eq!(cut(Vec::new()), [4, 4]);
        assert_eq!(cut(vec![Some(3 * 4 * LAYER), None]), [3, 5]);
        // A cut that fits without training alone would need more memory, not less.
        assert_eq!(cut(vec![Some(2 * LAYER), Some(7 * LAYER)]), [4, 4]);
    }

    #[test]
    fn what_the_optimizer_and_activations_need_is_left() {
        let all = vec![Some(4 * 4 * LAYER), Some(8 * 4 * LAYER)];
        let cut = |copies, activations: [u64; 2]| {
            let activations = activations.map(|bytes| vec![bytes; 8]).to_vec();
            let memory =
                CutMemory { all: all.clone(), copies, activations, ..CutMemory::default() };
            cut(&memory, Placement::Plain)
        };
        assert_eq!(cut(None, [0, 0]), [4, 4]);
        assert_eq!(cut(Some(2), [2 * LAYER, 0]), [4, 4]);
        assert_eq!(cut(Some(4), [2 * LAYER, 0]), [2, 6]);
        assert_eq!(cut(None, [4 * LAYER, 0]), [2, 6]);
    }

    #[test]
    fn a_worker_that_cannot_store_its_parameters_is_named() {
        let graph = LayerGraph::from_yaml(MODEL, "model.yaml").unwrap();
        let plan = Plan::new(&graph, &Cuts::Auto, 2, Placement::Plain).unwrap();
        plan.check_memory(&[Some(4 * LAYER), None]).unwrap();
        let error = plan.check_memory(&[None, Some(4 * LAYER - 1)]).unwrap_err();
        assert!(matches!(error, PlanError::TooLittleMemory { needed, .. } if needed == 4 * LAYER));
        assert!(error.to_string().starts_with("worker 1 needs 16.5 KiB"), "{error}");
    }
}
