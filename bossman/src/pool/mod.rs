//! A pool: a run that workers join and leave at any moment.
//!
//! ```text
//! membership (between two steps) -> status (for `bossman status`)
//!   |     ^
//!   v     | decisions
//! pipeline::membership
//! ```
//!
//! A new worker is prepared while the others train, follows them until it has nearly caught up, and
//! takes part from the next step on. A leaving worker is removed; the last one of a stage stays
//! until another one has it. The others repeat the step in which a worker was lost, unless all
//! already have its part. If all are lost that had some stage, the pool begins again from its last
//! checkpoint (`crate::train`). The result is that of a quiet run, to the bit, because a step's
//! sums depend only on its microbatches. A worker that would slow the others down takes no part.
//! [`pipeline::membership`] decides all this, and this folder carries it out.

mod membership;
mod status;

use crate::events::Events;
use crate::session::trainer::Trainer;
use crate::settings::conflicts::{self, PoolFacts};
use crate::status::StatusBoard;
use crate::BossManError;
use link::WorkerInfo;
use pipeline::boss::Measure;
use pipeline::ids::WorkerId;
use pipeline::membership::{Membership, Process};
use pipeline::message::Failure;
use runtime::MembershipEvent;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The interval at which workers receive the progress of the run.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// A run that workers join and leave.
pub(crate) struct Pool {
    events: mpsc::UnboundedReceiver<MembershipEvent>,
    /// The results of preparing workers.
    prepared: mpsc::UnboundedReceiver<(WorkerId, Result<(), Failure>)>,
    prepared_sender: mpsc::UnboundedSender<(WorkerId, Result<(), Failure>)>,
    /// Decides which workers take part.
    membership: Membership,
    /// All workers that ever joined.
    workers: BTreeMap<WorkerId, Seen>,
    last_status: Instant,
    started: Instant,
    samples: u64,
    notices: Events,
    /// The status of the run, for callers that ask.
    board: StatusBoard,
}

/// A worker, the time at which it joined, and that of its last sign of life.
struct Seen {
    info: WorkerInfo,
    joined: Instant,
    last: Instant,
}

impl Seen {
    fn new(info: WorkerInfo) -> Self {
        let now = Instant::now();
        Seen { info, joined: now, last: now }
    }

    fn process(&self) -> Process {
        let WorkerInfo { host, process, instance, .. } = &self.info;
        Process { host: host.clone(), id: *process, instance: *instance }
    }
}

impl Pool {
    /// Lets workers join and leave this session. `board` shows them to callers that ask.
    ///
    /// # Errors
    /// The run has no replicas, or has state that would be lost with a worker that leaves.
    pub(crate) async fn open(
        trainer: &mut Trainer,
        board: StatusBoard,
    ) -> Result<Self, BossManError> {
        let mut facts = trainer.settings.facts();
        facts.pool = PoolFacts::of(&trainer.plan);
        conflicts::check(&facts)?;
        if trainer.optimizer.is_none() {
            let problem = "open_pool: call send_optimizer() before";
            return Err(BossManError::Usage(problem.into()));
        }
        // The links between the first workers. The links of later workers are measured when they
        // join.
        trainer.call(Measure(Vec::new())).await?;
        trainer.open_pool();
        let (prepared_sender, prepared) = mpsc::unbounded_channel();
        let infos = trainer.handle.workers().iter().cloned();
        let workers: BTreeMap<_, _> = (0..).map(WorkerId).zip(infos.map(Seen::new)).collect();
        let processes = workers.iter().map(|(worker, seen)| (*worker, seen.process()));
        let placement = trainer.plan.stage_placement.clone();
        let mut pool = Pool {
            events: trainer.handle.admit_workers(),
            prepared,
            prepared_sender,
            membership: Membership::new(placement, processes.collect()),
            workers,
            last_status: Instant::now(),
            started: Instant::now(),
            samples: 0,
            notices: trainer.events.clone(),
            board,
        };
        pool.refresh_links(trainer).await;
        pool.board.set_pool(pool.status(trainer, f32::NAN));
        Ok(pool)
    }
}
