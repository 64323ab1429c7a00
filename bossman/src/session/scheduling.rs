//! Measures the workers, and moves stages to the chosen plan.

use super::trainer::Trainer;
use crate::data::batch_inputs::Inputs;
use crate::events::{Event, PlannedStage};
use crate::tuning::batch_shape::{BatchShape, MicrobatchSizes};
use crate::tuning::choose_schedule::Measurement;
use crate::tuning::layer_probes::{first_target_bytes, probes};
use crate::tuning::measured_fleet::MeasuredFleet;
use crate::tuning::observed_times::ObservedTimes;
use crate::tuning::schedule_state::{Candidates, ScheduleContext};
use crate::{Batch, BossManError};
use pipeline::boss::{Instruction, Measure, ReportLinks};
use pipeline::plan::StageSpec;
use pipeline::schedule::{Ending, Schedule};
use pipeline::task::LayerTimes;
use pipeline::{OptimizerSpec, Plan};
use std::sync::Arc;
use tracing::debug;

impl Trainer {
    /// The values on which schedules depend.
    pub(crate) fn schedule_context(&self) -> ScheduleContext<'_> {
        ScheduleContext {
            graph: self.model.graph(),
            plan: &self.plan,
            settings: &self.settings.parallel,
            requested: self.strategy.schedule,
            reduction: self.reduction(),
            optimizer: self.optimizer.unwrap_or(OptimizerSpec::adam(1e-3)),
        }
    }

    /// The shape of a batch's microbatches.
    ///
    /// # Errors
    /// The batch does not fit the model.
    pub(crate) fn batch_shape(&self, batch: &Batch) -> Result<BatchShape, BossManError> {
        let inputs = Inputs::of(self.model.graph(), batch)?;
        let ranges = inputs.microbatches(self.strategy.microbatches)?;
        let targets = inputs.targets(batch, &ranges)?;
        let microbatch = MicrobatchSizes {
            sizes: inputs.sizes_of(&ranges[0]),
            target_bytes: first_target_bytes(&inputs, &targets),
        };
        Ok(BatchShape { microbatch, microbatches: ranges.len() as u32 })
    }

    /// Measures the layers, and predicts a step of this shape for every schedule.
    pub(crate) async fn candidates(
        &mut self,
        shape: &BatchShape,
    ) -> Result<Candidates, BossManError> {
        self.measure_layers(&shape.microbatch).await?;
        let links = self.call(ReportLinks).await?;
        let cuts = self.settings.parallel.cuts.clone();
        let ending = self.strategy.update_ending();
        let choice = self.schedules.predict(&self.schedule_context(), shape, ending, cuts)?;
        Ok(Candidates { choice, links, collective: self.nccl.description().cloned() })
    }

    /// Chooses the schedule at the first step, unless the user chose it. In a pool, times are only
    /// observed. Returns the new plan for [`Trainer::report`]: a run reports it after its
    /// beginning.
    pub(crate) async fn choose_schedule(
        &mut self,
        shape: &BatchShape,
    ) -> Result<Option<Event>, BossManError> {
        if self.strategy.is_pool {
            return Ok(None);
        }
        match self.schedules.required_measurement(&self.schedule_context()) {
            Measurement::Nothing => return Ok(None),
            Measurement::Links => {
                self.call(Measure(Vec::new())).await?;
                self.store_measurements(Vec::new(), &shape.microbatch).await?;
                return Ok(Some(self.planned("it was asked for".into())));
            }
            Measurement::Layers => self.find_or_measure_layers(&shape.microbatch).await?,
        }
        let counters = &self.position.counters;
        let is_settled = counters.step > 0 || counters.updates > 0 || self.has_loaded;
        let ending = self.strategy.update_ending();
        let decision =
            self.schedules.choose(&self.schedule_context(), shape, ending, is_settled)?;
        if let Some(plan) = decision.plan {
            self.move_stages(plan).await?;
        }
        self.schedules.chosen = Some(decision.kind);
        Ok(Some(self.planned(decision.why)))
    }

    /// Reports a plan, if there is a new one.
    pub(crate) fn report(&self, plan: Option<Event>) {
        plan.into_iter().for_each(|plan| self.events.report(&plan));
    }

    /// The schedule and the stages.
    fn planned(&self, why: String) -> Event {
        let kind = self.strategy.schedule.or(self.schedules.chosen).unwrap_or_default();
        let stage = |spec: &StageSpec| PlannedStage {
            first_layer: spec.layers.first().map(|layer| layer.name.clone()).unwrap_or_default(),
            workers: self.plan.stage_placement.of(spec.stage).to_vec(),
        };
        let stages = self.plan.stages.iter().map(stage).collect();
        Event::Planned { schedule: kind.to_string(), stages, why }
    }

    /// Places the stages anew. Trained parameters are lost.
    async fn move_stages(&mut self, plan: Plan) -> Result<(), BossManError> {
        self.schedules.redistributing = true;
        self.call(Instruction::Use(Box::new(plan.clone()))).await?;
        self.plan = plan;
        self.schedules.observed = ObservedTimes::default();
        self.data.reset_opened();
        self.choose_collective()?;
        self.call(Instruction::Distribute).await?;
        if let Some(optimizer) = self.optimizer {
            self.call(Instruction::SetOptimizer(optimizer)).await?;
        }
        self.schedules.redistributing = false;
        Ok(())
    }

    /// The schedule of a step with this ending.
    pub(crate) fn schedule_of_step(
        &mut self,
        microbatches: u32,
        ending: Ending,
    ) -> Result<Arc<Schedule>, BossManError> {
        let mut schedules = std::mem::take(&mut self.schedules);
        let schedule = schedules.schedule_of_step(&self.schedule_context(), microbatches, ending);
        self.schedules = schedules;
        schedule
    }

    /// Takes the times of layers that an earlier session of the run measured, and measures links.
    /// If the times of a worker are not known, all are measured.
    async fn find_or_measure_layers(
        &mut self,
        microbatch: &MicrobatchSizes,
    ) -> Result<(), BossManError> {
        let (probes, of_layer) = probes(self.model.graph(), &microbatch.sizes);
        let Some(times) = self.schedules.known_times.find(&probes, self.handle.workers()) else {
            return self.measure_layers(microbatch).await;
        };
        debug!(layers = probes.len(), "the times of layers are known");
        self.call(Measure(Vec::new())).await?;
        self.store_measurements(by_layer(&times, &of_layer), microbatch).await
    }

    /// Has every worker measure every layer. Equal layers are measured once.
    async fn measure_layers(&mut self, microbatch: &MicrobatchSizes) -> Result<(), BossManError> {
        let (probes, of_layer) = probes(self.model.graph(), &microbatch.sizes);
        let measured = self.call(Measure(probes.clone())).await?;
        let times: Vec<_> = measured.into_iter().map(|(_, times)| times).collect();
        self.store_measurements(by_layer(&times, &of_layer), microbatch).await?;
        let workers = self.handle.workers().iter().cloned();
        self.schedules.known_times.store(probes, workers.zip(times));
        Ok(())
    }

    async fn store_measurements(
        &mut self,
        times: Vec<Vec<LayerTimes>>,
        microbatch: &MicrobatchSizes,
    ) -> Result<(), BossManError> {
        let links = self.call(ReportLinks).await?;
        let workers = self.handle.workers();
        let settings = &self.settings.parallel;
        let measured = MeasuredFleet::new(times, microbatch.clone(), workers, &links, settings);
        self.schedules.measured = Some(measured);
        self.schedules.cache.clear();
        Ok(())
    }
}

/// The times of each worker's layers, from those of its probes and the probe of each layer.
fn by_layer(times: &[Vec<LayerTimes>], of_layer: &[usize]) -> Vec<Vec<LayerTimes>> {
    let of_worker = |times: &Vec<LayerTimes>| {
        of_layer.iter().map(|probe| times.get(*probe).copied().unwrap_or_default()).collect()
    };
    times.iter().map(of_worker).collect()
}
