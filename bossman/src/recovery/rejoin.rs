//! Waits for the workers of a run's next session, and checks whether a session can start on certain
//! workers.

use crate::workers::host::{Host, Workers};
use crate::{BossManError, Builder};
use link::WorkerInfo;
use pipeline::recovery::{Check, LastSession};

/// Waits for the workers of a session with the settings of `builder`, at least for this number.
/// `last` is the session before it, which failed or ended for more workers.
///
/// # Errors
/// The port is in use, or a local worker ended before it joined.
pub(crate) async fn wait(
    host: Host,
    builder: &Builder,
    least: usize,
    last: LastSession<WorkerInfo>,
) -> Result<Workers, BossManError> {
    let fits = |workers| workers >= least && builder.check(workers).is_ok();
    let settings = builder.clone();
    let check = move |members: &[WorkerInfo]| check(&settings, members);
    host.wait_for_rejoin(last, fits, check).await
}

/// Checks whether a session with these settings can start on these workers.
pub(crate) fn check(builder: &Builder, members: &[WorkerInfo]) -> Check {
    if builder.check(members.len()).is_err() {
        return Check::NoPlan;
    }
    let checked = builder.check_on(members);
    checked.map_or_else(|problem| Check::Unfit(problem.to_string()), |()| Check::Fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BossMan, Model, Replicas};
    use std::slice::from_ref;

    #[test]
    fn workers_are_fit_if_their_number_has_a_plan_and_replicas_are_alike() {
        let model = Model::from_yaml("{inputs: {x: [batch, 2]}, layers: [ReLU]}").unwrap();
        let builder = BossMan::builder(model);
        let worker = |device: &str| WorkerInfo { device: device.into(), ..WorkerInfo::default() };
        let (cpu, gpu) = (worker("cpu"), worker("cuda:0"));
        let alike = [cpu.clone(), cpu.clone()];
        assert_eq!(check(&builder, from_ref(&cpu)), Check::Fits);
        // One layer cannot be cut.
        assert_eq!(check(&builder, &alike), Check::NoPlan);
        let builder = builder.replicas(Replicas::Each(2));
        assert_eq!(check(&builder, &alike), Check::Fits);
        let Check::Unfit(reason) = check(&builder, &[cpu, gpu]) else { panic!("they are unlike") };
        assert!(reason.contains("compute on unlike devices"), "{reason}");
    }
}
