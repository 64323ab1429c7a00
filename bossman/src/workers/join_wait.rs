//! A wait for workers in progress.

use crate::events::{Event, Events, WaitReason};
use crate::workers::local_processes::LocalWorkers;
use crate::BossManError;
use link::{Listener, ListenerEvent};
use pipeline::recovery::{RejoinWait, Rejoined, Sufficiency};
use tokio::time::Instant;

/// A wait in progress.
pub(super) struct JoinWait {
    pub(super) listener: Listener,
    pub(super) local: Option<LocalWorkers>,
    /// The workers of the run.
    places: usize,
    events: Events,
    /// Set after a loss.
    again: Option<RejoinWait>,
    began: Instant,
    last_joined: Instant,
    /// The local workers that have joined.
    local_joined: usize,
    /// Whether the user was told that too few workers remain.
    asked_for_more: bool,
}

impl JoinWait {
    /// The wait of a listener whose places are all free.
    pub(super) fn new(
        listener: Listener,
        local: Option<LocalWorkers>,
        again: Option<RejoinWait>,
        events: Events,
    ) -> Self {
        let now = Instant::now();
        JoinWait {
            places: listener.missing(),
            listener,
            local,
            events,
            again,
            began: now,
            last_joined: now,
            local_joined: 0,
            asked_for_more: false,
        }
    }

    /// Waits, and returns the number of workers.
    pub(super) async fn run(&mut self) -> Result<usize, BossManError> {
        while self.listener.missing() > 0 {
            let next_check = match self.sufficiency() {
                Some(Sufficiency::Enough(workers)) => return Ok(workers),
                Some(Sufficiency::OpenFor(time)) => Some(Instant::now() + time),
                Some(Sufficiency::TooFew) => {
                    // Those for whom places are kept have had their time.
                    self.listener.lift_reservation();
                    self.ask_for_more();
                    None
                }
                Some(Sufficiency::Gap) | None => None,
            };
            let event = tokio::select! {
                event = self.listener.next() => event,
                () = wait_until(next_check) => continue,
                how = wait_for_exit(&mut self.local) => {
                    let message = format!("a local worker never joined; {how}");
                    return Err(BossManError::LocalWorkers(message));
                }
            };
            self.on_event(event);
        }
        Ok(self.places)
    }

    /// Whether the run can continue after a loss. `None` at first, and until all local workers have
    /// joined: one that does not join ends, which [`JoinWait::run`] notices.
    fn sufficiency(&self) -> Option<Sufficiency> {
        let local = self.local.as_ref().map_or(0, LocalWorkers::count);
        let again = self.again.as_ref().filter(|_| self.local_joined == local)?;
        Some(again.sufficiency(Rejoined {
            workers: self.places - self.listener.missing(),
            has_gap: !self.listener.is_contiguous(),
            since_begin: self.began.elapsed(),
            since_last: self.last_joined.elapsed(),
        }))
    }

    /// Tells the user once that too few workers remain.
    fn ask_for_more(&mut self) {
        if !std::mem::replace(&mut self.asked_for_more, true) {
            let (missing, workers) = (self.listener.missing(), self.places);
            let (reason, waited_s) = (WaitReason::TooFewRemain, self.began.elapsed().as_secs());
            let invitation = None;
            self.events.report(&Event::Waiting { missing, workers, reason, waited_s, invitation });
        }
    }

    fn on_event(&mut self, event: ListenerEvent) {
        match &event {
            ListenerEvent::Joined { info, .. } => {
                self.last_joined = Instant::now();
                let is_local = self.local.as_ref().is_some_and(|local| local.contains(info));
                self.local_joined += usize::from(is_local);
            }
            ListenerEvent::Left { .. } if self.again.is_some() => self.listener.ask_to_rejoin(),
            ListenerEvent::Left { .. } | ListenerEvent::Rejected { .. } => {}
        }
        self.events.report(&described(event, self.listener.missing()));
    }
}

async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn wait_for_exit(local: &mut Option<LocalWorkers>) -> String {
    match local {
        Some(local) => local.wait_for_exit().await,
        None => std::future::pending().await,
    }
}

fn described(event: ListenerEvent, missing: usize) -> Event {
    match event {
        ListenerEvent::Joined { worker, info, address } => Event::Joined {
            worker,
            address: address.ip(),
            host: info.host,
            device: info.device,
            processor: info.processor,
            threads: info.threads,
            missing: Some(missing),
        },
        ListenerEvent::Left { worker, reason } => {
            Event::Left { worker, why: reason, while_waiting: true }
        }
        ListenerEvent::Rejected { address, reason } => {
            Event::TurnedAway { address: address.ip(), why: reason }
        }
    }
}
