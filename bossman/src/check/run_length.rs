//! Settings that need more samples, steps or microbatches than the run has.

use crate::run_file::{Length, RunFile};
use crate::BossManError;
use pipeline::lr_schedule::{LrDecay, LrSchedule};
use pipeline::replicas::Replicas;

impl RunFile {
    /// The training steps of a run on `samples` samples.
    ///
    /// # Errors
    /// The file has neither `steps` nor `epochs`.
    pub(crate) fn training_steps(&self, samples: u64) -> Result<u64, BossManError> {
        Ok(match self.length()? {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => epochs.saturating_mul(samples.div_ceil(self.batch_size)),
        })
    }

    /// Warns of settings that do not have their effect in a run on `samples` samples.
    ///
    /// # Errors
    /// The file has neither `steps` nor `epochs`.
    pub fn length_warnings(&self, samples: u64) -> Result<Vec<String>, BossManError> {
        let (steps, accumulate, batch_size) =
            (self.training_steps(samples)?, self.accumulate, self.batch_size);
        let mut warnings = Vec::new();
        if batch_size > samples {
            warnings.push(format!(
                "batch_size: {batch_size}, but there are only {samples} samples to train on; every \
                 step takes them all"
            ));
        }
        // 0 stands for one for each worker.
        let wanted = (self.microbatches > 0).then_some(self.microbatches.into());
        let microbatches = wanted.unwrap_or(u64::MAX).min(batch_size);
        let replicas = self.replicas_of_a_stage();
        if u64::from(replicas) > microbatches {
            warnings.push(format!(
                "replicas: {replicas}, but a step has only {microbatches} microbatches; the other \
                 replicas have none to compute"
            ));
        }
        let left = steps % u64::from(accumulate);
        if left > 0 {
            warnings.push(format!(
                "{steps} steps are no multiple of accumulate: {accumulate}; the last {left} \
                 change nothing"
            ));
        }
        warnings.extend(schedule_warnings(&self.lr_schedule, steps / u64::from(accumulate)));
        Ok(warnings)
    }

    /// The most replicas that the file asks for.
    fn replicas_of_a_stage(&self) -> u32 {
        match &self.replicas {
            Some(Replicas::Each(each)) => u32::from(*each),
            Some(Replicas::Of(of)) => of.iter().copied().max().map_or(1, u32::from),
            Some(Replicas::Auto) | None => 1,
        }
    }
}

/// Warns of a schedule of another length than the run's, in optimizer steps.
fn schedule_warnings(schedule: &LrSchedule, updates: u64) -> impl Iterator<Item = String> {
    let LrSchedule { warmup, decay } = schedule;
    let early = match decay {
        LrDecay::Linear { total_steps } | LrDecay::Cosine { total_steps }
            if *total_steps < updates =>
        {
            Some(format!(
                "total_steps: {total_steps}, but the run has {updates} optimizer steps; the \
                 learning rate is 0 in the last {}",
                updates - total_steps
            ))
        }
        _ => None,
    };
    let late = (warmup.steps >= updates).then(|| {
        format!(
            "warmup: {}, but the run has only {updates} optimizer steps; the learning rate never \
             reaches its full value",
            warmup.steps
        )
    });
    let late = late.filter(|_| warmup.steps > 0);
    early.into_iter().chain(late).map(|text| format!("lr_schedule: {text}"))
}
