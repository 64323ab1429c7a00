//! A run that workers join and leave at any moment, as a mining pool.
//!
//! Who comes is made ready while the others train (`joining`), follows them until it has as good as caught up, and takes
//! part from the next step on. Who leaves is left out, and the step that it left in is done again by the others or, where
//! all had its part already, goes on. The result is that of a quiet run, to the bit: a step's sums depend on its
//! microbatches alone. Who would slow the others down takes no part (`worth`).

mod contributor;
mod joining;
mod status;
mod tending;
mod worth;

use crate::boss::BossMan;
use crate::{output, BossManError};
use contributor::{Contributor, State};
use link::PoolEvent;
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, LinkReport};
use pipeline::schedule::ScheduleKind;
pub use status::{Status, WorkerStatus};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Workers are told how the run stands this often.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Who is here, and what becomes of them.
pub(crate) struct Pool {
    events: mpsc::UnboundedReceiver<PoolEvent>,
    /// Workers that are ready to follow, or cannot be.
    ready: mpsc::UnboundedReceiver<(WorkerId, Result<(), Failure>)>,
    readying: mpsc::UnboundedSender<(WorkerId, Result<(), Failure>)>,
    contributors: BTreeMap<WorkerId, Contributor>,
    /// Who follows, and how many commands each has still to carry out.
    behind: BTreeMap<WorkerId, usize>,
    /// Processes that fell behind while they caught up.
    too_slow: Vec<(String, u32)>,
    /// What is known of the workers' links.
    links: Vec<(WorkerId, Option<WorkerId>, LinkReport)>,
    /// The workers are to be told anew who is here, whether or not that has changed.
    unsure: bool,
    /// Who failed in the step at work.
    failed: Vec<WorkerId>,
    told: Instant,
    started: Instant,
    samples: u64,
    quiet: bool,
}

impl BossMan {
    /// From now on workers may join and leave ([`crate::serve`]). The model is distributed, and replicas are asked for; loss
    /// and optimizer are set.
    ///
    /// # Errors
    /// The run has what cannot be done again when a worker leaves, or no replicas.
    pub async fn open_pool(&mut self) -> Result<(), BossManError> {
        let refused = |text: &str| Err(BossManError::Usage(text.into()));
        if self.settings.replicas.is_none() {
            return refused("a pool needs replicas: Builder::replicas");
        }
        if self.settings.accumulate > 1 {
            return refused(
                "a pool cannot have `accumulate`: gradients of earlier steps would be lost with whoever leaves; take larger \
                 batches of more microbatches",
            );
        }
        if self.plan.stages.iter().any(|stage| !stage.borrowed.is_empty()) {
            return refused(
                "a pool cannot have parameters that several stages share; set `cuts` so that the layers that share them are in \
                 one stage, or `replicas` so that there is one stage",
            );
        }
        if self.optimizer.is_none() {
            return refused("a pool needs an optimizer first: BossMan::send_optimizer");
        }
        // Layers are not measured: that would have to be done again with everyone who comes.
        self.scheduling.asked.get_or_insert(ScheduleKind::OneFOneB);
        let (readying, ready) = mpsc::unbounded_channel();
        let mut pool = Pool {
            events: self.handle.open(),
            ready,
            readying,
            contributors: BTreeMap::new(),
            behind: BTreeMap::new(),
            too_slow: Vec::new(),
            links: Vec::new(),
            unsure: false,
            failed: Vec::new(),
            told: Instant::now(),
            started: Instant::now(),
            samples: 0,
            quiet: self.quiet,
        };
        for (worker, info) in (0..).map(WorkerId).zip(self.handle.workers()) {
            pool.contributors.insert(worker, Contributor::new(info.clone(), State::Working));
        }
        self.pool = Some(pool);
        Ok(())
    }
}

impl Pool {
    fn say(&self, text: &str) {
        if !self.quiet {
            output::warn(text);
        }
    }

    fn set(&mut self, worker: WorkerId, state: State) {
        if let Some(contributor) = self.contributors.get_mut(&worker) {
            contributor.state = state;
        }
    }
}
