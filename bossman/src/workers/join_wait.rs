//! A wait for workers in progress. The desk of the listener decides, and this reports.

use crate::events::{Event, Events, WaitReason};
use crate::workers::local_processes::LocalWorkers;
use crate::BossManError;
use link::admission::listener::NextStep;
use link::{Listener, ListenerEvent};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// The most callers whose refusal is reported. A caller needs no ticket to be refused, and each
/// event takes place on a disk.
const MAX_REPORTED_REFUSALS: usize = 100;

/// A wait in progress.
pub(super) struct JoinWait {
    pub(super) listener: Listener,
    pub(super) local: Option<LocalWorkers>,
    /// The workers of the run.
    places: usize,
    refusals: usize,
    /// The random numbers of the workers that have joined, also of those that left.
    seen: BTreeSet<u64>,
    events: Events,
    began: Instant,
}

impl JoinWait {
    /// The wait of a listener whose places are all free.
    pub(super) fn new(listener: Listener, local: Option<LocalWorkers>, events: Events) -> Self {
        JoinWait {
            places: listener.missing(),
            refusals: 0,
            seen: BTreeSet::new(),
            listener,
            local,
            events,
            began: Instant::now(),
        }
    }

    /// Waits, and returns the number of workers.
    pub(super) async fn run(&mut self) -> Result<usize, BossManError> {
        loop {
            let until = match self.listener.poll() {
                NextStep::Begin(workers) => return Ok(workers),
                NextStep::Wait(until) => until,
                NextStep::AskForMore => {
                    self.ask_for_more();
                    continue;
                }
            };
            let event = tokio::select! {
                event = self.listener.next() => event,
                () = wait_until(until) => continue,
                (instance, how) = wait_for_exit(&mut self.local) => {
                    let event = match self.seen.contains(&instance) {
                        true => "ended before the run began",
                        false => "never joined",
                    };
                    let message = format!("a local worker {event}; {how}");
                    return Err(BossManError::LocalWorkers(message));
                }
            };
            if let ListenerEvent::Joined { info, .. } = &event {
                self.seen.insert(info.instance);
            }
            if matches!(event, ListenerEvent::Rejected { .. }) {
                self.refusals += 1;
                if self.refusals > MAX_REPORTED_REFUSALS {
                    continue;
                }
            }
            self.events.report(&described(event, self.listener.missing()));
        }
    }

    /// Tells the user that too few workers remain.
    fn ask_for_more(&self) {
        let (missing, workers) = (self.listener.missing(), self.places);
        let (reason, waited_s) = (WaitReason::TooFewRemain, self.began.elapsed().as_secs());
        let invitation = None;
        self.events.report(&Event::Waiting { missing, workers, reason, waited_s, invitation });
    }
}

async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn wait_for_exit(local: &mut Option<LocalWorkers>) -> (u64, String) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use link::{Identity, JoinedRun, LinkError, Ticket, WorkerInfo};
    use pipeline::recovery::{JoinDesk, KeptPlaces, LastSession};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    fn worker(process: u32) -> WorkerInfo {
        WorkerInfo { process, instance: process.into(), ..WorkerInfo::default() }
    }

    fn loopback(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// A worker asks until it gets a place.
    async fn join(port: u16, ticket: &Ticket, process: u32) -> JoinedRun {
        let boss = [loopback(port)];
        let endpoint = link::worker_endpoint(ticket, &boss).unwrap();
        loop {
            match link::join(&endpoint, &boss, ticket, worker(process)).await {
                Err(LinkError::Refused { retry: true, .. }) => {}
                joined => return joined.unwrap(),
            }
        }
    }

    /// The first worker has both places, because the boss has not noticed that its connection
    /// broke. It leaves them, and comes again beside the second one.
    #[tokio::test]
    async fn workers_join_again_after_they_were_asked_to() {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let last = LastSession {
            workers: 2,
            lost: 0,
            newcomers: Vec::new(),
            kept: KeptPlaces::Remaining,
            known: vec![worker(1), worker(2)],
            unfit: Vec::new(),
        };
        let desk = JoinDesk::again(2, Vec::new(), last, |_| true, Box::new(|_, _| true));
        let listener = Listener::open(&identity, loopback(0), 2).unwrap().desk(desk);
        let (port, ticket) = (listener.address().port(), identity.ticket());
        let mut wait = JoinWait::new(listener, None, Events::unobserved());
        let mut before = Vec::new();
        while before.len() < 2 {
            let (joined, event) = tokio::join!(join(port, ticket, 1), wait.listener.next());
            assert!(matches!(event, ListenerEvent::Joined { .. }), "{event:?}");
            before.push(joined);
        }
        assert_eq!(wait.listener.missing(), 0);
        let all = async {
            let again = async { tokio::join!(join(port, ticket, 1), join(port, ticket, 2)) };
            tokio::join!(wait.run(), again)
        };
        let (count, _members) = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        assert_eq!(count.unwrap(), 2);
        let mut members: Vec<_> = wait.listener.joined().map(|info| info.process).collect();
        members.sort_unstable();
        assert_eq!(members, [1, 2]);
    }
}
