//! Builds the stages of a run.

use crate::compute::failures::{engine_failure, tensor_failure};
use crate::compute::stage_compute::StageCompute;
use crate::engine::{Engine, StageConfig, StageInput};
use layerspec::Precision;
use link::PoolSize;
use pipeline::message::Failure;
use pipeline::plan::StageSpec;
use pipeline::replicas::Sharding;
use pipeline::task::BuildSettings;
use pipeline::{Determinism, Initialization};
use tch::Device;
use tensor::determinism::Kernels;
use tracing::debug;

impl StageCompute {
    /// Frees the old stages, and builds new ones.
    pub(super) fn build(
        &mut self,
        stages: Vec<StageSpec>,
        run: &BuildSettings,
    ) -> Result<(), Failure> {
        self.release(run.sharding);
        self.choose_kernels(run.determinism)?;
        // The cached blocks of the old stages would leave gaps between those of the new ones.
        tensor::device::empty_cache(self.device).map_err(tensor_failure)?;
        stages.into_iter().try_for_each(|spec| self.build_stage(spec, run))
    }

    /// Other devices have no choice.
    fn choose_kernels(&self, determinism: Determinism) -> Result<(), Failure> {
        if !matches!(self.device, Device::Cuda(_)) {
            return Ok(());
        }
        let kernels = match determinism {
            Determinism::Strict => Kernels::Deterministic,
            Determinism::Fast => Kernels::Fastest,
        };
        tensor::determinism::choose_kernels(kernels).map_err(tensor_failure)
    }

    /// libtorch has some kernels for float16 on CPUs, but they are not faster.
    fn check_precision(&self, spec: &StageSpec) -> Result<(), Failure> {
        let halves = spec.layers.iter().any(|layer| layer.precision == Precision::Fp16);
        if !halves || matches!(self.device, Device::Cuda(_)) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "`precision: fp16` needs a CUDA GPU, and this worker computes on {}; take `precision: \
             bf16`, or start the worker with --device cuda:0",
            tensor::device::name(self.device)
        )))
    }

    /// Frees the old stages before new ones are built.
    fn release(&mut self, sharding: Option<Sharding>) {
        self.stages.clear();
        self.communicators.clear();
        // A run that shards state is short of memory. In other runs time counts more.
        match sharding {
            Some(_) => {
                tensor::memory::return_freed_memory();
                link::set_pool_size(PoolSize::Small);
            }
            None => {
                tensor::memory::keep_freed_memory();
                link::set_pool_size(PoolSize::Usual);
            }
        }
    }

    fn build_stage(&mut self, spec: StageSpec, run: &BuildSettings) -> Result<(), Failure> {
        let shard_id = run.shard_ids.get(&spec.stage).copied();
        // A stage without replicas is not sharded.
        let sharding = run.sharding.filter(|_| shard_id.is_some());
        let stage = spec.stage;
        self.check_precision(&spec)?;
        let model = StageConfig {
            buckets: pipeline::replicas::buckets(&spec, run.buckets, sharding),
            shard_id,
            shards_gradients: sharding.is_some_and(Sharding::shards_gradients),
            shards_parameters: sharding.is_some_and(Sharding::shards_parameters),
            ..stage_config(spec, run.seed, self.device)
        };
        let engine = match run.initialization {
            Initialization::AtOnce => Engine::build(model, &self.custom_layers),
            Initialization::Deferred => Engine::build_undrawn(model, &self.custom_layers),
        };
        let engine = engine.map_err(engine_failure)?;
        self.stages.insert(stage, engine);
        debug!(stage = stage.0, "stage built");
        Ok(())
    }
}

fn stage_config(spec: StageSpec, seed: u64, device: Device) -> StageConfig {
    let inputs = spec.inputs.iter().map(|input| StageInput {
        value: input.value,
        needs_grad: input.needs_grad,
        sum_here: input.sum_here,
    });
    StageConfig {
        buckets: Vec::new(),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        inputs: inputs.collect(),
        outputs: spec.outputs.iter().map(|output| output.value).collect(),
        tied_copies: spec.tied_copies,
        tied_owners: spec.tied_owners,
        layers: spec.layers,
        seed,
        device,
    }
}
