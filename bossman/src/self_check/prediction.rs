//! Compares the step that `schedule: auto` predicts with measured ones.

use crate::data::{Order, Part};
use crate::self_check::preset::Preset;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::Scene;
use crate::self_check::trial::median_seconds;
use crate::{BossManError, Model, StepReport};

/// The most by which the prediction may be off, if the preset gives the device real work.
const MOST_OFF: f64 = 0.2;
/// The first steps, which are slower.
const FIRST: usize = 3;
const MEASURED: usize = 10;
/// The predicted times are in nanoseconds.
const NANOSECONDS: f64 = 1e9;

/// What was predicted and what followed.
struct Prediction {
    schedule: String,
    seconds: f64,
    steps: Vec<StepReport>,
}

/// Predicts a step on two workers, and trains.
///
/// # Errors
/// The run fails, or a preset that gives the device real work takes another time.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    let Prediction { schedule, seconds, steps } = predict_and_train(scene).await?;
    let measured = median_seconds(&steps, FIRST);
    let off = seconds / measured.max(f64::MIN_POSITIVE) - 1.0;
    let findings = Findings::default()
        .figure("schedule", schedule.as_str())
        .figure("predicted_ms", seconds * 1e3)
        .figure("measured_ms", measured * 1e3)
        .figure("off", off);
    let text = format!(
        "a step with {schedule} on two workers: predicted {:.2} ms, measured {:.2} ms ({:+.0} %)",
        seconds * 1e3,
        measured * 1e3,
        off * 100.0
    );
    match is_too_far_off(scene.preset, off) {
        true => Err(Problem::new(format!(
            "{text}, off by more than {:.0} %; check again while nothing else runs on the machine",
            MOST_OFF * 100.0
        ))
        .with(findings)),
        false => Ok(findings.text(text)),
    }
}

/// Whether the prediction is wrong. The steps of the smallest preset are all overhead.
fn is_too_far_off(preset: Preset, off: f64) -> bool {
    preset != Preset::Tiny && off.abs() > MOST_OFF
}

async fn predict_and_train(scene: &Scene) -> Result<Prediction, BossManError> {
    const WORKERS: usize = 2;
    let file = scene.run_file();
    let model = Model::from_file(&file.model)?;
    let data = file.checked_part(Part::Train, &model)?;
    let builder = file.builder(model);
    builder.check(WORKERS)?;
    let host = scene.fleet(WORKERS).host(WORKERS).quiet();
    let mut boss = builder.build(host.wait().await?)?;
    boss.distribute_model().await?;
    boss.send_optimizer(file.optimizer).await?;
    let numbers = Order::new(data.samples(), None, 0).at(0..file.batch_size);
    let batch = data.batch(&numbers)?;
    let candidates = boss.candidates(&batch).await?;
    let best = candidates.choice.best(|_| true).ok_or_else(|| {
        BossManError::Usage("no schedule fits the memory of the device; free it first".into())
    })?;
    let (schedule, seconds) = (best.kind.to_string(), best.step_time as f64 / NANOSECONDS);
    let mut steps = Vec::new();
    for _ in 0..FIRST + MEASURED {
        steps.push(boss.train_step(&batch).await?);
    }
    boss.shutdown().await;
    Ok(Prediction { schedule, seconds, steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_smallest_preset_may_be_far_off() {
        for preset in [Preset::Small, Preset::Large] {
            assert!(is_too_far_off(preset, -0.33) && is_too_far_off(preset, 0.21), "{preset:?}");
            assert!(!is_too_far_off(preset, -0.19) && !is_too_far_off(preset, 0.19), "{preset:?}");
        }
        assert!(!is_too_far_off(Preset::Tiny, -0.9));
    }
}
