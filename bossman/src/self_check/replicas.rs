//! Checks that replicas train to the losses of one worker.

use crate::run_file::RunFile;
use crate::self_check::compare::Difference;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::Scene;
use crate::self_check::trial::train;
use crate::{BossManError, Collective, Replicas, ScheduleKind, StepReport};

/// The largest relative difference of losses with NCCL, which sums in another order.
const MOST_WITH_NCCL: f64 = 1e-5;
/// The beginning of the error of workers that cannot use NCCL.
const NO_NCCL: &str = "collective(nccl): ";

/// Trains on two replicas: on two GPUs with NCCL if there are two, else on one device.
///
/// # Errors
/// A run fails, or a loss differs.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    let alone = train(&run_of(scene, 1, Collective::Quic), scene.fleet(1)).await;
    let alone = alone.map_err(|error| Problem::of("one replica", &error))?;
    let Some(gpus) = scene.devices.two_gpus() else {
        let why = "fewer than two GPUs are to be used";
        return over_quic(scene, [scene.devices.first.clone()].into(), &alone, why).await;
    };
    let file = run_of(scene, 2, Collective::Nccl);
    match train(&file, scene.fleet_on(gpus.to_vec(), 2)).await {
        Ok(steps) => with_nccl(&steps, &alone),
        Err(BossManError::Usage(why)) if why.starts_with(NO_NCCL) => {
            over_quic(scene, gpus.to_vec(), &alone, &why).await
        }
        Err(error) => Err(Problem::of("two replicas with NCCL", &error)),
    }
}

fn run_of(scene: &Scene, replicas: u16, collective: Collective) -> RunFile {
    RunFile {
        schedule: Some(ScheduleKind::OneFOneB),
        replicas: Some(Replicas::Each(replicas)),
        collective,
        ..scene.run_file()
    }
}

fn with_nccl(steps: &[StepReport], alone: &[StepReport]) -> Result<Findings, Problem> {
    let difference = Difference::between(steps, alone);
    let largest = difference.largest;
    let findings = Findings::default().figure("collective", "nccl").figure("difference", largest);
    if largest > MOST_WITH_NCCL {
        let text = format!(
            "two replicas with NCCL: {}, more than {MOST_WITH_NCCL:.0e}; train with `collective: \
             quic`, and report this",
            difference.described()
        );
        return Err(Problem::new(text).with(findings));
    }
    Ok(findings.text(format!(
        "two replicas with NCCL: {} losses within {largest:.1e} of one worker's",
        steps.len()
    )))
}

/// Replicas sum in the same order as one replica.
async fn over_quic(
    scene: &Scene,
    devices: Vec<String>,
    alone: &[StepReport],
    why: &str,
) -> Result<Findings, Problem> {
    let file = run_of(scene, 2, Collective::Quic);
    let steps = train(&file, scene.fleet_on(devices, 2)).await;
    let steps = steps.map_err(|error| Problem::of("two replicas", &error))?;
    let difference = Difference::between(&steps, alone);
    let findings = Findings::default()
        .figure("collective", "quic")
        .figure("not_nccl", why)
        .figure("difference", difference.largest);
    match difference.is_none {
        true => Ok(findings.text(format!(
            "{} losses equal to the bit on one replica and on two (not with NCCL: {why})",
            steps.len()
        ))),
        false => {
            let text = format!("two replicas: {}; report this", difference.described());
            Err(Problem::new(text).with(findings))
        }
    }
}
