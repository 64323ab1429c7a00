//! The settings that exclude each other, and why: one table for the run file, the builder, pools
//! and the reference page.

use crate::BossManError;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::{Plan, ScheduleKind};
use std::fmt::{self, Write as _};

/// The settings that the table checks, and the known facts of the run.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) replicas: Option<Replicas>,
    pub(crate) compress: Option<Compress>,
    pub(crate) sharding: Option<Sharding>,
    pub(crate) collective: Collective,
    pub(crate) reduction: ReductionOrder,
    pub(crate) schedule: Option<ScheduleKind>,
    pub(crate) chunks: Option<u64>,
    pub(crate) accumulate: u32,
    pub(crate) run: RunFacts,
    pub(crate) pool: PoolFacts,
}

/// The order in which replicas sum gradients, as the user asks for it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReductionOrder {
    /// The user does not set it.
    #[default]
    Unsaid,
    Exact,
    Fast,
}

/// Facts that only a run file has.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct RunFacts {
    pub(crate) groups_by_length: bool,
    pub(crate) shuffles: bool,
    pub(crate) translates: bool,
    pub(crate) trains_on_pairs: bool,
    pub(crate) audits_checkpoints: bool,
    pub(crate) has_checkpoints: bool,
    pub(crate) recovers_from_checkpoint: bool,
    /// Whether workers store peer snapshots, and how many workers there are, once known.
    pub(crate) peer_snapshots: bool,
    pub(crate) workers: Option<usize>,
    pub(crate) has_local_workers: bool,
}

/// Whether the run is a pool, and what its plan holds.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct PoolFacts {
    pub(crate) is_pool: bool,
    /// A parameter is shared by several stages.
    pub(crate) ties_stages: bool,
}

impl PoolFacts {
    /// The facts about a pool with this plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        PoolFacts {
            is_pool: true,
            ties_stages: plan.stages.iter().any(|stage| !stage.tied_copies.is_empty()),
        }
    }
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            replicas: None,
            compress: None,
            sharding: None,
            collective: Collective::default(),
            reduction: ReductionOrder::default(),
            schedule: None,
            chunks: None,
            accumulate: 1,
            run: RunFacts::default(),
            pool: PoolFacts::default(),
        }
    }
}

impl Facts {
    fn uses_nccl(&self) -> bool {
        self.collective == Collective::Nccl
    }

    fn shards_gradients(&self) -> bool {
        self.sharding.is_some_and(Sharding::shards_gradients)
    }

    fn shards_parameters(&self) -> bool {
        self.sharding.is_some_and(Sharding::shards_parameters)
    }

    fn is_replicated(&self) -> bool {
        match &self.replicas {
            None => false,
            Some(Replicas::Each(replicas)) => *replicas > 1,
            Some(Replicas::Of(of)) => of.iter().any(|replicas| *replicas > 1),
            Some(Replicas::Auto) => true,
        }
    }

    fn can_have_chunks(&self) -> bool {
        match self.schedule {
            Some(ScheduleKind::Interleaved | ScheduleKind::GPipe) => true,
            None => self.shards_parameters(),
            Some(_) => false,
        }
    }

    /// The setting as the run file writes it.
    fn written(&self, key: &str) -> Option<String> {
        let value = match key {
            "compress" => self.compress?.to_string(),
            "shard" => self.sharding?.to_string(),
            "collective" => self.collective.to_string(),
            "accumulate" => self.accumulate.to_string(),
            "chunks" => self.chunks?.to_string(),
            _ => return None,
        };
        Some(format!("`{key}: {value}`"))
    }
}

/// How two settings relate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Relation {
    Requires,
    Excludes,
}

/// A row of the table.
struct Conflict {
    /// The key of the run file to which the error points.
    key: &'static str,
    setting: &'static str,
    relation: Relation,
    other: &'static str,
    reason: &'static str,
    /// The alternative, if it is not obvious.
    instead: &'static str,
    applies: fn(&Facts) -> bool,
}

use Relation::{Excludes, Requires};

#[rustfmt::skip]
const CONFLICTS: &[Conflict] = &[
    Conflict {
        key: "compress", setting: "`compress`", relation: Requires, other: "`replicas`",
        reason: "without replicas no gradients are exchanged", instead: "",
        applies: |f| f.compress.is_some() && f.replicas.is_none(),
    },
    Conflict {
        key: "reduction", setting: "`reduction: fast`", relation: Requires, other: "`replicas`",
        reason: "without replicas no gradients are exchanged", instead: "",
        applies: |f| f.reduction == ReductionOrder::Fast && f.replicas.is_none(),
    },
    Conflict {
        key: "shard", setting: "`shard`", relation: Requires, other: "`replicas`",
        reason: "without replicas there is nothing to shard", instead: "",
        applies: |f| f.sharding.is_some() && f.replicas.is_none(),
    },
    Conflict {
        key: "shard", setting: "`shard: gradients` or `parameters`", relation: Excludes,
        other: "`compress`", reason: "a replica sums its gradients before it compresses them",
        instead: "use `shard: optimizer`",
        applies: |f| f.shards_gradients() && f.compress.is_some(),
    },
    Conflict {
        key: "shard", setting: "`shard: gradients` or `parameters`", relation: Excludes,
        other: "`reduction: fast`", reason: "a replica would sum its gradients before it sends any",
        instead: "use `shard: optimizer`",
        applies: |f| f.shards_gradients() && f.reduction == ReductionOrder::Fast,
    },
    Conflict {
        key: "shard", setting: "`shard: parameters`", relation: Excludes,
        other: "`replicas: auto`", reason: "the worker groups decide the shards",
        instead: "give `replicas` a number",
        applies: |f| f.shards_parameters() && f.replicas == Some(Replicas::Auto),
    },
    Conflict {
        key: "shard", setting: "`shard: parameters`", relation: Excludes,
        other: "`schedule: interleaved`, `zb-v` or `ready`",
        reason: "replicas must run their stages in the same order",
        instead: "use `schedule: gpipe`",
        applies: |f| {
            f.shards_parameters() && f.schedule.is_some_and(|kind| !kind.takes_stages_in_order())
        },
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Requires, other: "`replicas`",
        reason: "without replicas no gradients are exchanged", instead: "",
        applies: |f| f.uses_nccl() && f.replicas.is_none(),
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Requires,
        other: "two replicas of a stage", reason: "one replica exchanges no gradients",
        instead: "", applies: |f| f.uses_nccl() && !f.is_replicated(),
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Excludes, other: "`compress`",
        reason: "NCCL sums float32", instead: "",
        applies: |f| f.uses_nccl() && f.compress.is_some(),
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Excludes, other: "`shard`",
        reason: "with NCCL each replica gets all sums", instead: "",
        applies: |f| f.uses_nccl() && f.sharding.is_some(),
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Excludes,
        other: "`reduction: exact`", reason: "NCCL sums in an order of its own", instead: "",
        applies: |f| f.uses_nccl() && f.reduction == ReductionOrder::Exact,
    },
    Conflict {
        key: "chunks", setting: "`chunks`", relation: Requires,
        other: "`schedule: interleaved`, `schedule: gpipe`, or `shard: parameters` without a \
                schedule",
        reason: "other schedules fix the stages of a worker", instead: "",
        applies: |f| f.chunks.is_some() && !f.can_have_chunks(),
    },
    Conflict {
        key: "group_by_length", setting: "`group_by_length`", relation: Requires,
        other: "`pairs` to train on", reason: "only pairs have lengths of their own", instead: "",
        applies: |f| f.run.groups_by_length && !f.run.trains_on_pairs,
    },
    Conflict {
        key: "group_by_length", setting: "`group_by_length`", relation: Requires,
        other: "`shuffle`", reason: "it shuffles groups of samples", instead: "",
        applies: |f| f.run.groups_by_length && !f.run.shuffles,
    },
    Conflict {
        key: "translate", setting: "`translate`", relation: Requires,
        other: "`pairs` to train on", reason: "only pairs can be translated", instead: "",
        applies: |f| f.run.translates && !f.run.trains_on_pairs,
    },
    Conflict {
        key: "receipt", setting: "`receipt: {audit: N}`", relation: Requires,
        other: "`checkpoint`", reason: "it keeps checkpoints, and the run has none", instead: "",
        applies: |f| f.run.audits_checkpoints && !f.run.has_checkpoints,
    },
    Conflict {
        key: "redundancy", setting: "`redundancy: checkpoint`", relation: Requires,
        other: "`checkpoint`", reason: "the run has no checkpoints", instead: "",
        applies: |f| f.run.recovers_from_checkpoint && !f.run.has_checkpoints,
    },
    Conflict {
        key: "redundancy", setting: "`redundancy: neighbour`", relation: Excludes,
        other: "a pool (`serve`)", reason: "its replicas have each other's state", instead: "",
        applies: |f| f.run.peer_snapshots && f.pool.is_pool,
    },
    Conflict {
        key: "redundancy", setting: "`redundancy: neighbour`", relation: Requires,
        other: "two workers", reason: "one worker has no neighbour", instead: "use `checkpoint`",
        applies: |f| f.run.peer_snapshots && f.run.workers.is_some_and(|workers| workers < 2),
    },
    Conflict {
        key: "redundancy", setting: "`redundancy: neighbour`", relation: Excludes,
        other: "local workers",
        reason: "they are started again after a loss, and their memory is lost",
        instead: "start `worker` programs, or use `checkpoint`",
        applies: |f| f.run.peer_snapshots && f.run.has_local_workers,
    },
    Conflict {
        key: "replicas", setting: "a pool (`serve`)", relation: Requires, other: "`replicas`",
        reason: "a worker that joins copies the state of a replica", instead: "",
        applies: |f| f.pool.is_pool && f.replicas.is_none(),
    },
    Conflict {
        key: "shard", setting: "`shard`", relation: Excludes, other: "a pool (`serve`)",
        reason: "the shard of a worker would be lost when it leaves", instead: "",
        applies: |f| f.pool.is_pool && f.sharding.is_some(),
    },
    Conflict {
        key: "collective", setting: "`collective: nccl`", relation: Excludes,
        other: "a pool (`serve`)", reason: "NCCL's communicators fail when a worker leaves",
        instead: "", applies: |f| f.pool.is_pool && f.uses_nccl(),
    },
    Conflict {
        key: "accumulate", setting: "`accumulate` above 1", relation: Excludes,
        other: "a pool (`serve`)",
        reason: "accumulated gradients would be lost with a worker that leaves",
        instead: "use larger batches of more microbatches",
        applies: |f| f.pool.is_pool && f.accumulate > 1,
    },
    Conflict {
        key: "cuts", setting: "a parameter that several stages share", relation: Excludes,
        other: "a pool (`serve`)", reason: "its copies would differ when a worker leaves",
        instead: "set `cuts` so that one stage holds it, or `replicas` so that there is one stage",
        applies: |f| f.pool.is_pool && f.pool.ties_stages,
    },
];

/// Two settings of a run that exclude each other.
pub(crate) struct Violation {
    /// The key of the run file at fault.
    pub(crate) key: &'static str,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Checks settings against the table.
///
/// # Errors
/// The first row that they violate.
pub(crate) fn check(facts: &Facts) -> Result<(), Violation> {
    let Some(conflict) = CONFLICTS.iter().find(|conflict| (conflict.applies)(facts)) else {
        return Ok(());
    };
    let setting = facts.written(conflict.key).unwrap_or_else(|| conflict.setting.into());
    let mut message = conflict.text(&setting);
    write!(message, ": {}", conflict.reason).ok();
    if !conflict.instead.is_empty() {
        write!(message, "; {}", conflict.instead).ok();
    }
    Err(Violation { key: conflict.key, message })
}

impl Conflict {
    fn text(&self, setting: &str) -> String {
        let relation = match self.relation {
            Requires => "requires",
            Excludes => "cannot be combined with",
        };
        format!("{setting} {relation} {}", self.other)
    }
}

impl From<Violation> for BossManError {
    fn from(violation: Violation) -> Self {
        BossManError::Usage(violation.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use testkit::golden::assert_golden;

    fn table() -> String {
        let mut rows =
            String::from("| setting | | reason | instead |\n| --- | --- | --- | --- |\n");
        for conflict in CONFLICTS {
            let Conflict { setting, reason, instead, .. } = conflict;
            let rest = conflict.text("");
            writeln!(rows, "| {setting} | {} | {reason} | {instead} |", rest.trim()).unwrap();
        }
        rows
    }

    /// The reference page shows the table.
    #[test]
    fn the_page_shows_the_table() {
        const BEGIN: &str =
            "<!-- conflicts: begin, written by `UPDATE_GOLDEN=1 cargo test -p bossman` -->\n";
        const END: &str = "<!-- conflicts: end -->";
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/run-file.md"));
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the mark before the table");
        let (_, after) = rest.split_once(END).expect("the mark after the table");
        assert_golden(path, &format!("{before}{BEGIN}\n{}\n{END}{after}", table()));
    }

    #[test]
    fn settings_without_a_conflict_pass() {
        let replicas = Some(Replicas::Each(2));
        let passes = |facts: &Facts| check(facts).is_ok();
        assert!(passes(&Facts::default()));
        let nccl = Facts { replicas, collective: Collective::Nccl, ..Facts::default() };
        assert!(passes(&nccl));
        let replicas = Some(Replicas::Auto);
        assert!(passes(&Facts { replicas: replicas.clone(), ..nccl.clone() }));
        assert!(!passes(&Facts { replicas: Some(Replicas::Of(vec![1, 1])), ..nccl }));
        let sharded = Facts { replicas, sharding: Some(Sharding::Optimizer), ..Facts::default() };
        assert!(passes(&sharded));
        let pool = PoolFacts { is_pool: true, ..PoolFacts::default() };
        let error = check(&Facts { pool, ..sharded }).unwrap_err();
        assert_eq!(
            (error.key, error.to_string().as_str()),
            (
                "shard",
                "`shard: optimizer` cannot be combined with a pool (`serve`): the shard of a \
                 worker would be lost when it leaves"
            )
        );
    }

    /// The row of sharded parameters names the schedules that it excludes.
    #[test]
    fn excluded_schedules_are_named() {
        for (name, kind) in ScheduleKind::NAMES {
            let facts = Facts {
                replicas: Some(Replicas::Each(2)),
                sharding: Some(Sharding::Parameters),
                schedule: Some(kind),
                ..Facts::default()
            };
            let named = check(&facts).map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(named.contains(name), !kind.takes_stages_in_order());
        }
    }
}
