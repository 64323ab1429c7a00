//! Chooses the schedule: the one asked for, or the fastest of those predicted from what the workers measured.

use crate::data::batch_inputs::Inputs;
use crate::session::boss::BossMan;
use crate::tuning::layer_probes::{first_target_bytes, machines, probes};
use crate::tuning::observed_times::ObservedTimes;
use crate::tuning::schedule_state::{Candidates, LastStep, MeasuredFleet, MicrobatchSizes, Timelines};
use crate::Batch;
use crate::BossManError;
use pipeline::auto::{choose, Choice, SearchSpace};
use pipeline::boss::Request;
use pipeline::fleet::Fleet;
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::Replicas;
use pipeline::schedule::{timeline, Ending, Interval, Link, Schedule, Terms, Timeline};
use pipeline::task::LayerTimes;
use pipeline::{Cuts, OptimizerSpec, ScheduleKind};
use std::sync::Arc;

/// The overhead of an action: the session and the ways to and from the compute thread.
const PER_ACTION_NANOS: u64 = 30_000;

impl BossMan {
    /// Measures the model's layers on the workers, with the sizes of this batch's microbatches, and predicts a step for
    /// every schedule. Nothing is trained.
    ///
    /// # Errors
    /// The batch does not fit the model, or a worker failed.
    pub async fn candidates(&mut self, batch: &Batch) -> Result<Candidates, BossManError> {
        let inputs = Inputs::of(self.model.graph(), batch)?;
        let ranges = inputs.microbatches(self.settings.microbatches)?;
        let targets = inputs.targets(batch, &ranges)?;
        let work =
            MicrobatchSizes { sizes: inputs.sizes_of(&ranges[0]), target_bytes: first_target_bytes(&inputs, &targets) };
        let (cuts, microbatches) = (self.scheduling.cuts.clone(), ranges.len() as u32);
        self.measure(&work).await?;
        let links = self.call(Request::Links).await?.links;
        let (choice, collective) = (self.predict(&work, microbatches, cuts)?, self.scheduling.collective.clone());
        Ok(Candidates { choice, links, collective })
    }

    /// The schedule of the next [`BossMan::train_step`]; nothing where it is yet to be chosen.
    pub fn schedule(&self) -> Option<ScheduleKind> {
        self.scheduling.requested.or(self.scheduling.chosen)
    }

    /// The timelines of the last [`BossMan::train_step`].
    pub fn timelines(&self) -> Option<Timelines> {
        let LastStep { schedule, spans } = self.last_step.as_ref()?;
        let begin = spans.iter().map(|span| span.start.0).min()?;
        let mut workers = vec![Vec::new(); self.plan.workers()];
        for span in spans {
            let (start, end) = (span.start.0 - begin, span.end.0.max(span.start.0) - begin);
            if let Some(list) = workers.get_mut(span.worker.0 as usize) {
                list.push(Interval { action: span.action, start, end });
            }
        }
        workers.iter_mut().for_each(|list| list.sort_by_key(|interval| interval.start));
        let mut measured = Timeline { workers, step_time: 0 };
        measured.step_time = measured.end();
        let costs = self.scheduling.observed.replace_costs(self.costs()?, &self.plan.stage_placement);
        let overhead = self.scheduling.observed.step_overhead();
        let predicted = timeline(schedule, &costs).ok().map(|predicted| {
            let span = predicted.end() - predicted.begin();
            let step_time = overhead.map_or(predicted.step_time, |overhead| span + overhead);
            Timeline { step_time, ..predicted.from_begin() }.in_units(1000)
        });
        Some(Timelines { measured, predicted })
    }

    /// Chooses the schedule at the first step, unless the user chose it.
    pub(crate) async fn choose_schedule(
        &mut self,
        work: &MicrobatchSizes,
        microbatches: u32,
    ) -> Result<(), BossManError> {
        // In a pool, times are only observed.
        if self.pool.is_some() {
            return Ok(());
        }
        // With replicas, who has which stage is to be found too.
        let to_find = self.scheduling.requested.is_none() || self.settings.replicas == Some(Replicas::Auto);
        if !to_find && self.scheduling.measured.is_none() {
            // Layers need not be measured: what the steps take is observed, for the timelines. Links are.
            self.call(Request::Measure(Vec::new())).await?;
            return self.store_measurements(Vec::new(), work).await;
        }
        if !to_find || self.scheduling.chosen.is_some() {
            return Ok(());
        }
        self.measure(work).await?;
        // Once anything was trained or loaded the stages stay where they are: moving them would lose it, gradients that
        // were gathered by hand among it.
        let settled = self.step > 0 || self.updates > 0 || self.loaded;
        if settled && self.settings.replicas == Some(Replicas::Auto) {
            return Err(BossManError::Usage(
                "`replicas: auto` groups the workers before anything is trained or loaded; give `replicas` a number"
                    .into(),
            ));
        }
        let cuts = if settled { self.current_cuts() } else { self.scheduling.cuts.clone() };
        let choice = self.predict(work, microbatches, cuts)?;
        let Some(best) = choice.best(|c| !settled || c.plan == self.plan) else {
            let why = choice.candidates.into_iter().find_map(|c| c.refused).map(|e| e.to_string()).unwrap_or_default();
            return Err(BossManError::Usage(format!(
                "no schedule fits the workers' memory ({why}); use more workers, more microbatches or `recompute`"
            )));
        };
        let kind = best.kind;
        // A choice that failed is repeated.
        if best.plan != self.plan || self.scheduling.redistributing {
            let plan = best.plan.clone();
            self.scheduling.redistributing = true;
            self.call(Request::Use(Box::new(plan.clone()))).await?;
            self.plan = plan;
            self.scheduling.observed = ObservedTimes::default();
            self.open_data.reset_opened();
            self.choose_collective()?;
            self.call(Request::Distribute).await?;
            if let Some(optimizer) = self.optimizer {
                self.call(Request::SetOptimizer(optimizer)).await?;
            }
        }
        self.scheduling.redistributing = false;
        self.scheduling.chosen = Some(kind);
        Ok(())
    }

    /// The schedule of a step that updates parameters or only gathers gradients.
    pub(crate) fn schedule_of_step(&mut self, microbatches: u32, updates: bool) -> Result<Arc<Schedule>, BossManError> {
        let ending = match (updates, self.settings.max_norm) {
            (false, _) => Ending::Gather,
            // A worker that leaves then leaves the others with all they need, or with nothing
            // changed.
            (true, _) if self.pool.is_some() => Ending::CommittedStep,
            (true, None) => Ending::Step,
            (true, Some(_)) => Ending::ClippedStep,
        };
        let made = self.scheduling.schedule_cache.get(&(microbatches, ending));
        let microbatch_assignment =
            self.microbatch_assignment(microbatches, made.map(|schedule| &schedule.microbatch_assignment));
        if let Some(made) = made.filter(|made| {
            microbatch_assignment
                .as_ref()
                .is_none_or(|microbatch_assignment| *microbatch_assignment == made.microbatch_assignment)
        }) {
            return Ok(made.clone());
        }
        let (costs, room) = match &self.scheduling.measured {
            Some(MeasuredFleet { fleet, .. }) if !fleet.times.is_empty() => {
                (self.costs(), fleet.room(&self.plan, &fleet.bytes(&self.plan, &self.spec())))
            }
            _ => (None, None),
        };
        let kind = self.scheduling.kind();
        let schedule = Arc::new(self.plan.schedule_for(&Terms {
            kind,
            microbatches,
            ending,
            reduction: self.settings.reduction(),
            microbatch_assignment,
            costs,
            room,
        })?);
        self.scheduling.schedule_cache.insert((microbatches, ending), schedule.clone());
        Ok(schedule)
    }

    fn current_cuts(&self) -> Cuts {
        let starts = self.plan.stages.iter().skip(1).filter_map(|stage| stage.layers.first());
        Cuts::At(starts.map(|layer| layer.name.clone()).collect())
    }

    fn spec(&self) -> OptimizerSpec {
        self.optimizer.unwrap_or(OptimizerSpec::adam(1e-3))
    }

    fn costs(&self) -> Option<pipeline::schedule::Costs> {
        let MeasuredFleet { fleet, work } = self.scheduling.measured.as_ref()?;
        Some(fleet.costs(self.model.graph(), &self.plan, &work.sizes, work.target_bytes))
    }

    fn predict(&self, work: &MicrobatchSizes, microbatches: u32, cuts: Cuts) -> Result<Choice, BossManError> {
        let missing = || BossManError::Usage("the workers were not measured; please report it".into());
        let MeasuredFleet { fleet, .. } = self.scheduling.measured.as_ref().ok_or_else(missing)?;
        let ending = if self.settings.max_norm.is_some() { Ending::ClippedStep } else { Ending::Step };
        let MicrobatchSizes { sizes, target_bytes } = work.clone();
        let first = self.plan.stage_placement.of(StageId(0));
        let of_first = self.plan.stage_placement.iter().filter(|(_, workers)| *workers == first).count();
        let space = SearchSpace {
            chunks: u16::try_from(of_first).ok().filter(|_| self.scheduling.requested == Some(ScheduleKind::GPipe)),
            cuts,
            microbatches,
            sizes,
            target_bytes,
            worker_groups: self.settings.worker_groups(fleet.workers())?,
            ending,
            reduction: self.settings.reduction(),
            optimizer: self.spec(),
            kinds: self.scheduling.requested.into_iter().collect(),
        };
        Ok(choose(self.model.graph(), fleet, &space)?)
    }

    /// Has every worker measure every layer, those that are alike once.
    async fn measure(&mut self, work: &MicrobatchSizes) -> Result<(), BossManError> {
        let (probes, of_layer) = probes(self.model.graph(), &work.sizes);
        let answer = self.call(Request::Measure(probes)).await?;
        let times = answer
            .measured
            .iter()
            .map(|(_, times)| of_layer.iter().map(|probe| times.get(*probe).copied().unwrap_or_default()).collect());
        let times = times.collect();
        self.store_measurements(times, work).await?;
        self.scheduling.schedule_cache.clear();
        Ok(())
    }

    /// The known figures of the fleet: layers, if they were measured, memory, and the links between
    /// workers.
    async fn store_measurements(
        &mut self,
        times: Vec<Vec<LayerTimes>>,
        work: &MicrobatchSizes,
    ) -> Result<(), BossManError> {
        let links = self.call(Request::Links).await?.links;
        let (compress, sharding) = (self.settings.compress, self.settings.sharding);
        let (per_action, memory) = (PER_ACTION_NANOS, self.memory());
        let mut fleet = Fleet { times, per_action, memory, compress, sharding, ..Fleet::default() };
        for (from, to, report) in &links {
            if report.bytes_per_second == 0 {
                continue;
            }
            let link = Link::measured(report.rtt.0.saturating_mul(1000), report.bytes_per_second);
            match to {
                Some(to) => {
                    fleet.links.insert((*from, *to), link);
                    fleet.links.entry((*to, *from)).or_insert(link);
                }
                None => drop(fleet.boss_links.insert(*from, link)),
            }
        }
        self.estimate_links(&mut fleet);
        fleet.machines = machines(self.plan.workers(), &links);
        self.scheduling.measured = Some(MeasuredFleet { fleet, work: work.clone() });
        Ok(())
    }

    /// A pair of workers that no plan has connected yet, or that the boss relays for: as if by way of the boss.
    fn estimate_links(&self, fleet: &mut Fleet) {
        let workers = || (0..self.plan.workers() as u16).map(WorkerId);
        for (from, to) in workers().flat_map(|from| workers().map(move |to| (from, to))).filter(|(a, b)| a != b) {
            if let (Some(there), Some(back)) = (fleet.boss_links.get(&from), fleet.boss_links.get(&to)) {
                fleet.links.entry((from, to)).or_insert(there.then(*back));
            }
        }
    }

    /// For each worker its memory; workers of one machine share it.
    fn memory(&self) -> Vec<Option<u64>> {
        let workers = self.handle.workers();
        let sharing = |worker: &link::WorkerInfo| {
            let same = |other: &&link::WorkerInfo| other.host == worker.host && other.device == worker.device;
            workers.iter().filter(same).count().max(1) as u64
        };
        workers.iter().map(|worker| Some(worker.memory_bytes? / sharing(worker))).collect()
    }
}
