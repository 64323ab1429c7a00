//! A run that workers join and leave at any moment, as a mining pool.
//!
//! A new worker is prepared while the others train (`joining`), follows them until it has nearly
//! caught up, and takes part from the next step on. A leaving worker is removed. The others repeat
//! the step in which it left, unless all had its part already. The result is that of a quiet run,
//! to the bit: a step's sums depend on its microbatches alone. A worker that would slow the others
//! down takes no part (`straggler`).

mod member;
mod membership;
mod prepare_member;
mod status;
mod straggler;

use crate::output::{self, printable};
use crate::session::boss::BossMan;
use crate::BossManError;
use member::{Member, MemberState};
use pipeline::boss::Request;
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, LinkReport};
use pipeline::replicas::{keeps_statistics, Collective};
use pipeline::schedule::ScheduleKind;
use runtime::MembershipEvent;
pub use status::{Status, WorkerStatus};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Workers are told how the run stands this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Characters of what is said at once: a status of a hundred workers is less than a greeting may be.
const MAX_TEXT: usize = 200;

/// The members of the pool, and their states.
pub(crate) struct Pool {
    events: mpsc::UnboundedReceiver<MembershipEvent>,
    /// Workers that are ready to follow, or cannot be.
    prepared: mpsc::UnboundedReceiver<(WorkerId, Result<(), Failure>)>,
    prepared_sender: mpsc::UnboundedSender<(WorkerId, Result<(), Failure>)>,
    members: BTreeMap<WorkerId, Member>,
    /// The followers, and the number of commands that each has still to run.
    commands_behind: BTreeMap<WorkerId, usize>,
    /// Processes that were sent away, and why: the same may come again.
    removed_processes: BTreeMap<(String, u32), String>,
    /// The known figures of the workers' links.
    links: Vec<(WorkerId, Option<WorkerId>, LinkReport)>,
    /// The workers are to be told anew who is here, whether or not that has changed.
    must_confirm_members: bool,
    /// The workers that failed in the current step.
    failed_in_step: Vec<WorkerId>,
    last_status: Instant,
    started: Instant,
    samples: u64,
    quiet: bool,
}

impl BossMan {
    /// From now on workers may join and leave (`bossman serve`). The model is distributed, and replicas are asked for; loss
    /// and optimizer are set.
    ///
    /// # Errors
    /// The run has what cannot be done again when a worker leaves, or no replicas.
    pub async fn open_pool(&mut self) -> Result<(), BossManError> {
        let refused = |text: &str| Err(BossManError::Usage(text.into()));
        if self.replay.is_some() {
            return refused("a pool mends itself: leave enable_recovery() out");
        }
        if self.settings.replicas.is_none() {
            return refused("a pool needs replicas: Builder::replicas");
        }
        if self.settings.sharding.is_some() {
            return refused("a pool cannot have `shard`: what one worker alone keeps would be lost when it leaves");
        }
        if self.settings.collective == Collective::Nccl {
            return refused(
                "a pool cannot have collective(nccl): its communicators do not outlive a worker that leaves",
            );
        }
        // What was chosen goes for workers that stay.
        (self.settings.collective, self.settings.uses_nccl) = (Collective::Quic, false);
        self.scheduling.collective = None;
        if self.settings.accumulate > 1 {
            return refused(
                "a pool cannot have `accumulate`: gradients of earlier steps would be lost with whoever leaves; take larger \
                 batches of more microbatches",
            );
        }
        if self.plan.stages.iter().any(|stage| !stage.tied_copies.is_empty()) {
            return refused(
                "a pool cannot have parameters that several stages share; set `cuts` so that the layers that share them are in \
                 one stage, or `replicas` so that there is one stage",
            );
        }
        if self.optimizer.is_none() {
            return refused("a pool needs an optimizer first: BossMan::send_optimizer");
        }
        if self.plan.stages.iter().any(|stage| !stage.is_trained() && keeps_statistics(stage)) {
            return refused(
                "a pool cannot have batch norms in a stage where nothing is trained: what they see would be counted twice where a \
                 step is done again; set `cuts` so that something of each stage is trained",
            );
        }
        // What the links are like; those of newcomers are measured when they come.
        self.call(Request::Measure(Vec::new())).await?;
        // Layers are not measured: that would have to be done again with everyone who comes.
        self.scheduling.requested.get_or_insert(ScheduleKind::OneFOneB);
        let (prepared_sender, prepared) = mpsc::unbounded_channel();
        let mut pool = Pool {
            events: self.handle.admit_workers(),
            prepared,
            prepared_sender,
            members: BTreeMap::new(),
            commands_behind: BTreeMap::new(),
            removed_processes: BTreeMap::new(),
            links: Vec::new(),
            must_confirm_members: false,
            failed_in_step: Vec::new(),
            last_status: Instant::now(),
            started: Instant::now(),
            samples: 0,
            quiet: self.quiet,
        };
        for (worker, info) in (0..).map(WorkerId).zip(self.handle.workers()) {
            pool.members.insert(worker, Member::new(info.clone(), MemberState::Active));
        }
        self.pool = Some(pool);
        self.refresh_links().await;
        self.handle.set_status(self.status(f32::NAN).json());
        Ok(())
    }
}

impl Pool {
    /// Tells the user. Some of it are words of workers, which must not draw on the terminal.
    fn say(&self, text: &str) {
        if !self.quiet {
            output::warn(&printable(text, MAX_TEXT));
        }
    }

    /// Remembers a worker that is sent away, by its process.
    fn remember_removal(&mut self, worker: WorkerId, reason: &str) {
        if let Some(member) = self.members.get(&worker) {
            self.removed_processes.insert(member.process_key(), reason.to_string());
        }
    }

    fn set(&mut self, worker: WorkerId, state: MemberState) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.state = state;
        }
    }
}
