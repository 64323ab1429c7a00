//! Chooses how replicas sum their gradients: with NCCL or over QUIC, as requested and as far as
//! their machines allow.

use crate::settings::user_settings::ParallelSettings;
use crate::{output, BossManError};
use link::{Nccl, NcclInfo, WorkerInfo};
use pipeline::ids::WorkerId;
use pipeline::replicas::Collective;
use pipeline::Plan;

/// The most characters of the reason why a worker has no NCCL.
const MAX_REASON: usize = 300;

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveChoice {
    /// NCCL of this version; whether its connections can be reached from other machines.
    Nccl { version: u32, leaves_machine: bool },
    /// Frames, and the reason.
    Quic { why: String },
}

impl std::fmt::Display for CollectiveChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CollectiveChoice::Nccl { version, leaves_machine } => {
                write!(
                    f,
                    "replicas sum their gradients with NCCL {}",
                    tensor::nccl::version_name(*version)
                )?;
                match leaves_machine {
                    true => f.write_str(
                        ", over connections that are neither encrypted nor authenticated",
                    ),
                    false => Ok(()),
                }
            }
            CollectiveChoice::Quic { why } => {
                write!(f, "replicas sum their gradients over QUIC: {why}")
            }
        }
    }
}

/// The workers that sum gradients together, for each stage that several have.
fn groups(plan: &Plan) -> Vec<Vec<WorkerId>> {
    plan.summing().map(|stage| plan.stage_placement.of(stage).to_vec()).collect()
}

/// Chooses for these groups of workers.
///
/// # Errors
/// NCCL was requested, and these workers cannot use it.
fn choose(
    requested: Collective,
    groups: &[Vec<WorkerId>],
    workers: &[WorkerInfo],
) -> Result<CollectiveChoice, String> {
    if requested == Collective::Quic {
        return Ok(CollectiveChoice::Quic { why: "as asked for".into() });
    }
    let found = groups
        .iter()
        .map(|group| of_group(requested, group, workers))
        .collect::<Result<Vec<_>, String>>();
    let found = found.and_then(|found| {
        found.into_iter().reduce(less_private).ok_or_else(|| "there are no replicas".into())
    });
    match found {
        Ok(CollectiveChoice::Quic { why }) | Err(why) if requested == Collective::Auto => {
            Ok(CollectiveChoice::Quic { why })
        }
        other => other,
    }
}

/// Combines the choices for two groups into one for both.
fn less_private(one: CollectiveChoice, other: CollectiveChoice) -> CollectiveChoice {
    match (&one, &other) {
        (CollectiveChoice::Nccl { leaves_machine: true, .. }, _) => one,
        _ => other,
    }
}

/// Chooses for one group of replicas. The error states why it cannot sum with NCCL.
fn of_group(
    requested: Collective,
    group: &[WorkerId],
    workers: &[WorkerInfo],
) -> Result<CollectiveChoice, String> {
    let mut here: Vec<(WorkerId, &NcclInfo)> = Vec::new();
    for worker in group {
        match workers.get(usize::from(worker.0)).map(|info| &info.nccl) {
            Some(Nccl::Here(info)) => here.push((*worker, info)),
            Some(Nccl::Missing(why)) => {
                return Err(format!("{worker} has no NCCL: {}", output::printable(why, MAX_REASON)))
            }
            None => return Err(format!("nothing is known of {worker}'s NCCL")),
        }
    }
    let Some((first, like)) = here.first().copied() else {
        return Err("there are no replicas".into());
    };
    let version = like.version;
    if let Some((other, info)) = here.iter().find(|(_, info)| info.version != version) {
        let [one, two] = [version, info.version].map(tensor::nccl::version_name);
        return Err(format!("{first} has NCCL {one}, and {other} {two}; they must have the same"));
    }
    for (number, (worker, info)) in here.iter().enumerate() {
        if info.gpu.is_empty() {
            return Err(format!("it is not known which GPU {worker} has"));
        }
        let same = |(_, other): &&(WorkerId, &NcclInfo)| {
            (&other.machine, &other.gpu) == (&info.machine, &info.gpu)
        };
        if let Some((other, _)) = here[..number].iter().find(same) {
            return Err(format!("{other} and {worker} share a GPU, which NCCL does not allow"));
        }
    }
    let between_machines =
        like.machine.is_empty() || here.iter().any(|(_, info)| info.machine != like.machine);
    let open = here.iter().find(|(_, info)| info.beyond_machine);
    match open {
        Some((worker, _)) if !between_machines && requested == Collective::Auto => {
            return Err(format!(
                "{worker}'s NCCL_SOCKET_IFNAME opens NCCL to more than its machine, and its \
                 connections are neither encrypted nor authenticated; `collective: nccl` takes it \
                 where the network is trusted"
            ));
        }
        open if !between_machines => {
            return Ok(CollectiveChoice::Nccl { version, leaves_machine: open.is_some() })
        }
        _ => {}
    }
    if requested == Collective::Auto {
        return Err(format!(
            "the replicas of a stage are not all on {first}'s machine, and NCCL's connections are \
             neither encrypted nor authenticated; `collective: nccl` takes it where the network \
             is trusted"
        ));
    }
    match here.iter().find(|(_, info)| !info.beyond_machine) {
        Some((worker, _)) => Err(format!(
            "the replicas of a stage are not all on one machine, and {worker} keeps NCCL to its \
             own; start every worker with NCCL_SOCKET_IFNAME, which names the interfaces of a \
             network that is trusted"
        )),
        None => Ok(CollectiveChoice::Nccl { version, leaves_machine: true }),
    }
}

/// The way in which the replicas of a session sum their gradients.
#[derive(Debug, Default)]
pub(crate) struct CollectiveDecision {
    pub(crate) uses_nccl: bool,
    /// The choice and its reason, if there was a choice.
    pub(crate) description: Option<String>,
}

/// Decides how replicas sum their gradients in this plan.
///
/// # Errors
/// NCCL was requested, and these workers cannot use it.
pub(crate) fn decide(
    settings: &ParallelSettings,
    plan: &Plan,
    workers: &[WorkerInfo],
) -> Result<CollectiveDecision, BossManError> {
    let groups = groups(plan);
    // Combinations that NCCL excludes were refused before. The groups of workers may not be chosen
    // yet.
    let must = settings.collective == Collective::Nccl && !settings.chooses_replicas();
    let excludes_nccl = settings.compress.is_some() || settings.sharding.is_some();
    if excludes_nccl || (groups.is_empty() && !must) {
        return Ok(CollectiveDecision::default());
    }
    let usage = |why| BossManError::Usage(format!("collective(nccl): {why}"));
    let choice = choose(settings.collective, &groups, workers).map_err(usage)?;
    let has_nccl = |worker: &WorkerId| {
        workers.get(usize::from(worker.0)).is_some_and(|info| matches!(info.nccl, Nccl::Here(_)))
    };
    let could = settings.collective != Collective::Quic && groups.iter().flatten().any(has_nccl);
    Ok(CollectiveDecision {
        uses_nccl: matches!(choice, CollectiveChoice::Nccl { .. }),
        description: could.then(|| choice.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nccl(version: u32, machine: &str, gpu: &str) -> NcclInfo {
        NcclInfo { version, machine: machine.into(), gpu: gpu.into(), beyond_machine: false }
    }

    fn worker(nccl: Nccl) -> WorkerInfo {
        WorkerInfo { device: "cuda:0".into(), nccl, ..WorkerInfo::default() }
    }

    fn fleet(infos: &[NcclInfo]) -> Vec<WorkerInfo> {
        infos.iter().map(|info| worker(Nccl::Here(info.clone()))).collect()
    }

    const TWO: [WorkerId; 2] = [WorkerId(0), WorkerId(1)];

    /// The choices of `auto` and `nccl` for two replicas.
    fn both(workers: &[WorkerInfo]) -> [Result<CollectiveChoice, String>; 2] {
        [Collective::Auto, Collective::Nccl]
            .map(|requested| choose(requested, &[TWO.to_vec()], workers))
    }

    #[test]
    fn replicas_on_gpus_of_one_machine_sum_with_nccl() {
        let workers = fleet(&[nccl(22703, "a", "0"), nccl(22703, "a", "1")]);
        let taken = CollectiveChoice::Nccl { version: 22703, leaves_machine: false };
        assert_eq!(both(&workers), [Ok(taken.clone()), Ok(taken.clone())]);
        assert_eq!(taken.to_string(), "replicas sum their gradients with NCCL 2.27.3");
        let requested = choose(Collective::Quic, &[TWO.to_vec()], &workers).unwrap();
        assert_eq!(requested.to_string(), "replicas sum their gradients over QUIC: as asked for");
    }

    #[test]
    fn where_that_cannot_be_auto_takes_frames_and_nccl_is_an_error_that_says_why() {
        let gpu = |version, machine, gpu| Nccl::Here(nccl(version, machine, gpu));
        let cases = [
            (Nccl::Missing("no\nlibrary".into()), "worker 1 has no NCCL: no library"),
            (gpu(22800, "a", "1"), "worker 0 has NCCL 2.27.3, and worker 1 2.28.0"),
            (gpu(22703, "a", "0"), "worker 0 and worker 1 share a GPU"),
            (gpu(22703, "b", "0"), "not all on"),
            (gpu(22703, "", "1"), "not all on"),
            (gpu(22703, "a", ""), "not known which GPU worker 1 has"),
        ];
        for (second, why) in cases {
            let workers = [worker(gpu(22703, "a", "0")), worker(second)];
            let [auto, requested] = both(&workers);
            assert!(
                matches!(&auto, Ok(CollectiveChoice::Quic { why: found }) if found.contains(why)),
                "{auto:?}"
            );
            assert!(requested.as_ref().unwrap_err().contains(why), "{requested:?}");
        }
        let [auto, requested] = both(&fleet(&[nccl(22703, "a", "0")]));
        assert!(auto.unwrap().to_string().contains("worker 1's NCCL") && requested.is_err());
        let unknown = fleet(&[nccl(22703, "", "0"), nccl(22703, "", "1")]);
        assert!(
            matches!(both(&unknown), [Ok(CollectiveChoice::Quic { .. }), Err(_)]),
            "machines that nobody knows are not one"
        );
    }

    #[test]
    fn between_machines_nccl_is_taken_where_boss_and_workers_say_so() {
        let trusted = |info| NcclInfo { beyond_machine: true, ..info };
        let (one, other) = (nccl(22703, "a", "0"), nccl(22703, "b", "0"));
        let [auto, requested] = both(&fleet(&[trusted(one.clone()), trusted(other.clone())]));
        assert!(matches!(
            &auto,
            Ok(CollectiveChoice::Quic { why })
                if why.contains("neither encrypted nor authenticated")
        ));
        let taken = requested.unwrap();
        assert_eq!(taken, CollectiveChoice::Nccl { version: 22703, leaves_machine: true });
        assert!(taken.to_string().ends_with("neither encrypted nor authenticated"));
        // One machine, which others can reach.
        let beside = nccl(22703, "a", "1");
        let [auto, requested] = both(&fleet(&[trusted(one.clone()), beside]));
        assert!(
            matches!(
                &auto,
                Ok(CollectiveChoice::Quic { why }) if why.contains("worker 0's NCCL_SOCKET_IFNAME")
            ),
            "{auto:?}"
        );
        assert_eq!(
            requested.unwrap(),
            CollectiveChoice::Nccl { version: 22703, leaves_machine: true }
        );
        let [_, requested] = both(&fleet(&[trusted(one), other]));
        assert!(requested.unwrap_err().contains("worker 1 keeps NCCL to its own"));
    }

    #[test]
    fn every_group_counts_and_who_is_in_none_does_not() {
        let missing = worker(Nccl::Missing("it computes on cpu".into()));
        let gpu = |number: &str| worker(Nccl::Here(nccl(22703, "a", number)));
        let workers = [gpu("0"), missing, gpu("1"), gpu("2")];
        let of = |pairs: &[[u16; 2]]| -> Vec<Vec<WorkerId>> {
            pairs.iter().map(|p| p.map(WorkerId).to_vec()).collect()
        };
        let taken = |groups: &[[u16; 2]]| choose(Collective::Auto, &of(groups), &workers).unwrap();
        assert!(
            matches!(taken(&[[0, 2]]), CollectiveChoice::Nccl { .. }),
            "worker 1 is no replica"
        );
        assert!(matches!(taken(&[[0, 2], [1, 3]]), CollectiveChoice::Quic { .. }));
        assert!(matches!(taken(&[]), CollectiveChoice::Quic { .. }));
    }
}
