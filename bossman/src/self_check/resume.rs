//! Checks that a run whose workers are killed goes on from its checkpoint as if nothing was.

use crate::checkpoint::{Every, Policy};
use crate::events::{CheckpointOutcome, Event, Events, Observer};
use crate::run_file::{Length, RunFile};
use crate::self_check::compare::Difference;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::Scene;
use crate::self_check::trial::{options, train, train_with};
use crate::train::TrainOptions;
use crate::{BossManError, ScheduleKind, StepReport};
use tokio::sync::mpsc;

/// The steps between checkpoints.
const EVERY: u64 = 2;
/// The step whose checkpoint must be written before the workers are killed.
const KILL_AFTER: u64 = 4;
/// The steps of the whole run. They leave some, even if one more checkpoint is written.
const STEPS: u64 = 8;
/// A run with so many steps ends by being killed.
const ENDLESS: u64 = 1_000_000_000;

/// Trains without a break, and with one, and compares the losses after it.
///
/// # Errors
/// A run fails, or a loss differs.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    let unbroken = run_of(scene, STEPS);
    let expected = train(&unbroken, scene.fleet(2)).await;
    let expected = expected.map_err(|error| Problem::of("the unbroken run", &error))?;
    let dir = scene.file("checkpoints").to_string_lossy().into_owned();
    let every = Every::Steps(EVERY);
    let policy = Policy { dir: Some(dir), every, keep: 3, keep_best: None, audit: 0 };
    let broken = RunFile { checkpoint: Some(policy.clone()), ..run_of(scene, ENDLESS) };
    train_until_written(scene, &broken).await?;
    let rest = RunFile { checkpoint: Some(policy), ..unbroken };
    let resumes = TrainOptions { resume: Some(None), ..options(scene.fleet(2)) };
    let steps = train_with(&rest, &resumes).await;
    let steps = steps.map_err(|error| Problem::of("the run that goes on", &error))?;
    compare(&steps, &expected)
}

fn run_of(scene: &Scene, steps: u64) -> RunFile {
    RunFile {
        schedule: Some(ScheduleKind::OneFOneB),
        length: Some(Length::Steps(steps)),
        ..scene.run_file()
    }
}

/// Trains until the checkpoint is written, and kills the workers.
async fn train_until_written(scene: &Scene, file: &RunFile) -> Result<(), Problem> {
    let (sender, mut written) = mpsc::unbounded_channel();
    let events = Events::unobserved().with(Watcher(sender));
    let options = TrainOptions { events, ..options(scene.fleet(2)) };
    tokio::select! {
        biased;
        // Dropping the run kills its workers.
        Some(written) = written.recv() => written.map_err(Problem::new),
        ended = train_with(file, &options) => Err(match ended {
            Ok(_) => Problem::new("the run ended before its workers were killed; report this"),
            Err(error) => Problem::of("the run with checkpoints", &error),
        }),
    }
}

/// Tells when the checkpoint is written, or why one is not.
struct Watcher(mpsc::UnboundedSender<Result<(), String>>);

impl Observer for Watcher {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        if let Event::Checkpoint { step, outcome } = event {
            match outcome {
                CheckpointOutcome::Written if *step >= KILL_AFTER => self.0.send(Ok(())).ok(),
                CheckpointOutcome::Failed { why } => {
                    self.0.send(Err(format!("the checkpoint of step {step}: {why}"))).ok()
                }
                _ => None,
            };
        }
        Ok(())
    }
}

/// Compares the steps after the break.
fn compare(steps: &[StepReport], expected: &[StepReport]) -> Result<Findings, Problem> {
    let from = steps.first().map_or(STEPS, |report| report.step.saturating_sub(1));
    let same: Vec<StepReport> =
        expected.iter().filter(|report| report.step > from).copied().collect();
    let difference = Difference::between(steps, &same);
    let findings = Findings::default()
        .figure("resumed_after_step", from)
        .figure("difference", difference.largest);
    if from < KILL_AFTER || !difference.is_none {
        let text = format!(
            "the run went on after step {from} (the checkpoint of step {KILL_AFTER} was written): \
             {}; report this",
            difference.described()
        );
        return Err(Problem::new(text).with(findings));
    }
    Ok(findings.text(format!(
        "killed, and went on after step {from}: {} losses equal to the bit to those of the \
         unbroken run",
        steps.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn steps(numbers: std::ops::RangeInclusive<u64>, loss: f32) -> Vec<StepReport> {
        let step = |step| StepReport {
            step,
            loss,
            samples: 1,
            tokens: None,
            time: Duration::ZERO,
            lr: None,
            grad_norm: None,
        };
        numbers.map(step).collect()
    }

    #[test]
    fn only_the_steps_after_the_break_are_compared() {
        let expected = steps(1..=STEPS, 2.0);
        assert!(compare(&steps(5..=STEPS, 2.0), &expected).is_ok());
        for wrong in [steps(5..=STEPS, 1.0), steps(3..=STEPS, 2.0), steps(5..=6, 2.0), Vec::new()] {
            assert!(compare(&wrong, &expected).is_err(), "{wrong:?}");
        }
    }
}
