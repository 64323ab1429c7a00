//! The end of a step: sums over replicas, the optimizer, and the exchange of parameters.

use crate::compute::failures::{engine_failure, tensor_failure};
use crate::compute::late_result::LateResult;
use crate::compute::stage_compute::StageCompute;
use crate::compute::task_args::{EmitPayload, StepArgs};
use crate::compute::task_location::TaskLocation;
use crate::compute::task_tensors::{
    decompressed_sums, nested, tied_outcome, to_task_output, to_tensors, to_tensors_by_stage,
};
use crate::engine::{Engine, TensorsByStage};
use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::task::{EarlyOutput, Outcome};
use runtime::TaskTensor;

impl StageCompute {
    pub(super) fn reduce(
        &mut self,
        stage: StageId,
        batch: u64,
        buckets: &[Vec<Vec<TaskTensor>>],
        statistics: &[Vec<TaskTensor>],
    ) -> Result<(), Failure> {
        let buckets = buckets
            .iter()
            .map(|shards| nested(shards, decompressed_sums))
            .collect::<Result<_, _>>()?;
        let statistics = nested(statistics, to_tensors)?;
        self.stage(stage)?.reduce(batch, buckets, statistics).map_err(engine_failure)
    }

    pub(super) fn all_reduce(
        &mut self,
        stage: StageId,
        batch: u64,
        statistics: &[Vec<TaskTensor>],
    ) -> Result<(), Failure> {
        self.check_losses()?;
        let statistics = nested(statistics, to_tensors)?;
        let mut replicas = self.communicators.for_stage(stage)?;
        let engine = self.stages.get_mut(&stage);
        let engine =
            engine.ok_or_else(|| Failure::new(format!("{stage} is not on this worker")))?;
        engine.all_reduce(batch, statistics, &mut replicas).map_err(engine_failure)
    }

    pub(super) fn tied_grads(&mut self, stage: StageId) -> Result<Outcome<TaskTensor>, Failure> {
        let location = self.location;
        tied_outcome(&self.stage(stage)?.tied_grads().map_err(engine_failure)?, location)
    }

    pub(super) fn grad_norm(
        &mut self,
        stage: StageId,
        tied: &[(StageId, Vec<TaskTensor>)],
    ) -> Result<Outcome<TaskTensor>, Failure> {
        let tied = to_tensors_by_stage(tied)?;
        let squares = self.stage(stage)?.grad_norm(tied).map_err(engine_failure)?;
        if squares.are_known() {
            return Ok(Outcome::Norms { squares: squares.read().map_err(tensor_failure)? });
        }
        self.late = Some(LateResult::Squares(squares));
        Ok(Outcome::Norms { squares: Vec::new() })
    }

    pub(super) fn optim_step(
        &mut self,
        stage: StageId,
        args: &StepArgs,
        emit: EmitPayload<'_>,
    ) -> Result<Outcome<TaskTensor>, Failure> {
        self.check_losses()?;
        let tied = to_tensors_by_stage(&args.tied)?;
        let location = self.location;
        let owned = step(self.stage(stage)?, stage, args, tied, location, emit)?;
        tied_outcome(&owned, location)
    }

    pub(super) fn all_gather(
        &mut self,
        stage: StageId,
        buckets: &[Vec<Vec<TaskTensor>>],
    ) -> Result<(), Failure> {
        let buckets =
            buckets.iter().map(|shards| nested(shards, to_tensors)).collect::<Result<_, _>>()?;
        self.stage(stage)?.all_gather(buckets).map_err(engine_failure)
    }

    pub(super) fn emit_shard(
        &mut self,
        stage: StageId,
        emit: EmitPayload<'_>,
    ) -> Result<(), Failure> {
        let location = self.location;
        emit_shard(self.stage(stage)?, stage, location, emit)
    }

    pub(super) fn update_tied(
        &mut self,
        stage: StageId,
        tied: &[(StageId, Vec<TaskTensor>)],
    ) -> Result<(), Failure> {
        let tied = to_tensors_by_stage(tied)?;
        self.stage(stage)?.update_tied(tied).map_err(engine_failure)
    }

    /// Cleans up after a failed step, whose gradients are void.
    pub(super) fn discard_step(&mut self, batch: u64) -> Result<(), Failure> {
        for engine in self.stages.values_mut() {
            engine.discard(batch);
            engine.undo_statistics(batch);
            engine.zero_grad();
        }
        self.reshard_all()
    }

    /// Drops the microbatches of a batch, whose gradients still count.
    pub(super) fn discard_microbatches(&mut self, batch: u64) -> Result<(), Failure> {
        self.stages.values_mut().for_each(|engine| engine.discard(batch));
        self.reshard_all()
    }

    /// A round that failed may have gathered parameters.
    fn reshard_all(&mut self) -> Result<(), Failure> {
        self.stages.values_mut().try_for_each(Engine::reshard).map_err(engine_failure)
    }
}

/// Runs an optimizer step, and emits the results that others wait for. Returns the new values of
/// the tied parameters that other stages copy.
fn step(
    engine: &mut Engine,
    stage: StageId,
    args: &StepArgs,
    tied: TensorsByStage,
    location: TaskLocation,
    emit: EmitPayload<'_>,
) -> Result<TensorsByStage, Failure> {
    let result = engine.optim_step(&args.update, tied, args.check).map_err(engine_failure)?;
    if !result.health.is_empty() {
        emit(EarlyOutput::Health(result.health));
    }
    if !engine.stage().shards_parameters {
        emit_shard(engine, stage, location, emit)?;
    }
    Ok(result.owned_tied_values)
}

/// Emits this replica's shard of the parameters for the others.
fn emit_shard(
    engine: &Engine,
    stage: StageId,
    location: TaskLocation,
    emit: EmitPayload<'_>,
) -> Result<(), Failure> {
    let parts = engine.emit_shard(|bucket, slices| {
        emit(to_task_output(EarlyOutput::Updated { stage, bucket, slices }, location)?);
        Ok(())
    });
    parts.map_err(engine_failure)
}
