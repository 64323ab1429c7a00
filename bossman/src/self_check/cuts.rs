//! Checks that the cut does not show: one worker, and two with every kind of schedule.

use crate::fleet::FleetSettings;
use crate::run_file::Length;
use crate::self_check::compare::Difference;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::Scene;
use crate::self_check::trial::train;
use crate::{ScheduleKind, StepReport};

const KINDS: [ScheduleKind; 3] =
    [ScheduleKind::OneFOneB, ScheduleKind::ZbV, ScheduleKind::Interleaved];

/// The largest relative difference to the losses of the CPU. Above it, the device computes wrongly.
const MOST_FROM_CPU: f64 = 1e-3;
/// The steps that the CPU repeats.
const CPU_STEPS: usize = 3;

/// Trains on one worker and on two, all on one device, and compares every loss.
///
/// # Errors
/// A run fails, a loss differs, or the device computes otherwise than the CPU.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    let mut file = scene.run_file();
    file.schedule = Some(ScheduleKind::OneFOneB);
    let alone = train(&file, scene.fleet(1)).await;
    let alone = alone.map_err(|error| Problem::of("one worker", &error))?;
    let mut findings = Findings::default().figure("steps", alone.len());
    let (mut wrong, mut largest) = (Vec::new(), 0.0_f64);
    for kind in KINDS {
        file.schedule = Some(kind);
        let run = format!("two workers with {kind}");
        let cut = train(&file, scene.fleet(2)).await.map_err(|e| Problem::of(&run, &e))?;
        let difference = Difference::between(&cut, &alone);
        largest = largest.max(difference.largest);
        findings = findings.figure(format!("difference_{kind}"), difference.largest);
        if !difference.is_none {
            wrong.push(format!("{run}: {}", difference.described()));
        }
    }
    findings = findings.figure("largest_difference", largest);
    let from_cpu = match scene.devices.is_cpu() {
        true => None,
        false => Some(from_cpu(scene, &alone).await?),
    };
    findings = findings.figure("difference_from_cpu", from_cpu);
    if let Some(from_cpu) = from_cpu.filter(|from_cpu| *from_cpu > MOST_FROM_CPU) {
        wrong.push(format!(
            "the losses differ from those of the CPU by up to {from_cpu:.1e}, more than \
             {MOST_FROM_CPU:.0e}"
        ));
    }
    if !wrong.is_empty() {
        let text = format!(
            "{}; run `worker --self-check`, and report this with both outputs",
            wrong.join("; ")
        );
        return Err(Problem::new(text).with(findings));
    }
    let cpu = from_cpu.map(|from_cpu| format!(", within {from_cpu:.1e} of the CPU"));
    Ok(findings.text(format!(
        "{} losses equal to the bit on one worker and on two with 1f1b, zb-v and interleaved{}",
        alone.len(),
        cpu.unwrap_or_default()
    )))
}

/// The largest relative difference of the first losses to those of the CPU.
async fn from_cpu(scene: &Scene, alone: &[StepReport]) -> Result<f64, Problem> {
    let mut file = scene.run_file();
    let steps = alone.len().min(CPU_STEPS);
    file.schedule = Some(ScheduleKind::OneFOneB);
    file.length = Some(Length::Steps(steps as u64));
    let fleet = FleetSettings { threads: None, ..scene.fleet_on(vec!["cpu".into()], 1) };
    let expected = train(&file, fleet).await;
    let expected = expected.map_err(|error| Problem::of("one worker on the CPU", &error))?;
    let found: Vec<StepReport> = alone.iter().take(steps).copied().collect();
    Ok(Difference::between(&found, &expected).largest)
}
