//! A wait for workers in progress.

use crate::events::{Event, Events, WaitReason};
use crate::workers::local_processes::LocalWorkers;
use crate::BossManError;
use link::admission::listener::Reservation;
use link::{Listener, ListenerEvent, WorkerInfo};
use pipeline::recovery::{FitsBeside, RejoinWait, Rejoined, Sufficiency};
use tokio::time::Instant;

/// How often those with state are let first. Each time makes an order that lasts, unless workers
/// come and go.
const MOST_TURNS: u32 = 2;
/// The most unfit workers that are judged at a time.
const MOST_JUDGED: usize = 8;

/// The workers of the last session, which are to join again.
pub(super) struct Returning {
    /// How many suffice, and when.
    pub(super) wait: RejoinWait,
    /// Those that may hold state, apart from the local ones. `None` if any worker is as good.
    pub(super) known: Option<Vec<WorkerInfo>>,
    /// Those that get no place as long as others may suffice.
    pub(super) unfit: Unfit,
}

/// Workers beside which no session of the run could start. That may be different beside others.
pub(super) struct Unfit {
    workers: Vec<WorkerInfo>,
    fits_beside: FitsBeside<WorkerInfo>,
    /// Whether they are judged beside those that are here, because too few others remain.
    is_judged: bool,
}

/// Those with state join again before others do.
struct KnownFirst {
    /// Their number.
    known: usize,
    /// The places that are kept once they are here.
    then: Option<Reservation>,
}

/// A wait in progress.
pub(super) struct JoinWait {
    pub(super) listener: Listener,
    pub(super) local: Option<LocalWorkers>,
    /// The workers of the run.
    places: usize,
    events: Events,
    /// Set after a loss.
    again: Option<Returning>,
    began: Instant,
    /// The time since which missing workers are waited for.
    counts_from: Instant,
    last_joined: Instant,
    known_first: Option<KnownFirst>,
    /// The number of times that those with state were let first.
    turns: u32,
    /// Whether the user was told that too few workers remain.
    asked_for_more: bool,
}

impl JoinWait {
    /// The wait of a listener whose places are all free.
    pub(super) fn new(
        listener: Listener,
        local: Option<LocalWorkers>,
        again: Option<Returning>,
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
            counts_from: now,
            last_joined: now,
            known_first: None,
            turns: 0,
            asked_for_more: false,
        }
    }

    /// Waits, and returns the number of workers.
    pub(super) async fn run(&mut self) -> Result<usize, BossManError> {
        // One whose connection is being closed has a place, and is about to leave it.
        while self.listener.connected().count() < self.places {
            let next_check = match self.sufficiency() {
                Some(Sufficiency::Enough(workers)) => match self.let_known_first(workers) {
                    true => None,
                    false => return Ok(workers),
                },
                Some(Sufficiency::OpenFor(time)) => Some(Instant::now() + time),
                Some(Sufficiency::TooFew) => {
                    self.count_on_anybody();
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
        // One may join twice: it is asked to, if a place before its own becomes free.
        let local_here = self.listener.connected().filter(|info| self.is_local(info)).count();
        let again = self.again.as_ref().filter(|_| local_here >= local)?;
        let workers = self.listener.connected().count();
        let is_leaving = workers < self.listener.joined().count();
        Some(again.wait.sufficiency(Rejoined {
            workers,
            known: self.known_here(),
            has_gap: is_leaving || !self.listener.is_contiguous(),
            since_begin: self.counts_from.elapsed(),
            since_last: self.last_joined.elapsed(),
        }))
    }

    /// Whether the boss started this worker.
    fn is_local(&self, info: &WorkerInfo) -> bool {
        self.local.as_ref().is_some_and(|local| local.contains(info))
    }

    /// Whether this worker may have state of the run, or is as good as one that has.
    fn has_state(&self, info: &WorkerInfo) -> bool {
        self.is_local(info) || self.again.as_ref().is_some_and(|again| again.is_known(info))
    }

    /// The number of those that have joined, and need not join again.
    fn known_here(&self) -> usize {
        self.listener.connected().filter(|info| self.has_state(info)).count()
    }

    /// A run with this number of workers takes those with the first places. If one with state would
    /// not be among them, but one without, all join again, those with state first. Returns whether
    /// they do.
    fn let_known_first(&mut self, workers: usize) -> bool {
        let have_state: Vec<_> = self.listener.joined().map(|info| self.has_state(info)).collect();
        let (first, others) = have_state.split_at(workers.min(have_state.len()));
        let is_in_order = first.iter().all(|has_state| *has_state) || !others.contains(&true);
        if is_in_order || self.turns >= MOST_TURNS {
            return false;
        }
        self.turns += 1;
        let again = self.again.as_ref();
        let known = again.and_then(|again| again.known.clone()).unwrap_or_default();
        let is_local = self.local.as_ref().map(LocalWorkers::recognizer);
        let for_known = Reservation::new(self.places, move |info| {
            known.iter().any(|one| one.is_same_process(info))
                || is_local.as_ref().is_some_and(|is_local| is_local(info))
        });
        let then = self.listener.replace_reservation(Some(for_known));
        // In a second turn, what was kept at first is still to be kept.
        let then = self.known_first.take().map_or(then, |before| before.then);
        self.known_first = Some(KnownFirst { known: self.known_here(), then });
        self.listener.ask_all_to_rejoin();
        (self.counts_from, self.last_joined) = (Instant::now(), Instant::now());
        true
    }

    /// Workers behind a free place join again. If some have state, the run waits for them as it did
    /// at first.
    fn close_gap(&mut self) {
        let before = self.known_here();
        self.listener.ask_to_rejoin();
        if self.known_here() < before {
            self.counts_from = Instant::now();
        }
    }

    /// Once those with state are here, others may join again, too.
    fn end_turn(&mut self) {
        let here = self.known_here();
        if let Some(turn) = self.known_first.take_if(|turn| here >= turn.known) {
            self.listener.replace_reservation(turn.then);
        }
    }

    /// Those for whom places are kept have had their time. A worker that does not fit beside all of
    /// them may fit beside those that are here.
    fn count_on_anybody(&mut self) {
        self.known_first = None;
        self.listener.lift_reservation();
        let Some(again) = &mut self.again else { return };
        again.known = None;
        if !std::mem::replace(&mut again.unfit.is_judged, true) {
            self.judge_unfit(None);
        }
    }

    /// Excludes the unfit workers that do not fit beside those that are here, and no others. Their
    /// verdict holds until a worker joins or leaves. If the one that joined is no unfit one, those
    /// that do not fit beside it leave.
    fn judge_unfit(&mut self, joined: Option<&WorkerInfo>) {
        let Some(again) = self.again.as_ref().filter(|again| again.unfit.is_judged) else { return };
        let here: Vec<_> = self.listener.connected().cloned().collect();
        let excluded = again.unfit.beside(&here);
        if joined.is_some_and(|joined| !again.unfit.has(joined)) {
            self.listener.send_away(is_one_of(excluded.clone()));
        }
        self.listener.replace_exclusion(is_one_of(excluded));
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
                self.end_turn();
                self.judge_unfit(Some(info));
            }
            ListenerEvent::Left { .. } if self.again.is_some() => {
                self.close_gap();
                self.judge_unfit(None);
            }
            ListenerEvent::Left { .. } | ListenerEvent::Rejected { .. } => {}
        }
        self.events.report(&described(event, self.listener.missing()));
    }
}

impl Returning {
    /// Whether this worker may hold state of the run, or nobody needs to.
    fn is_known(&self, info: &WorkerInfo) -> bool {
        let Some(known) = &self.known else { return true };
        known.iter().any(|one| one.is_same_process(info))
    }
}

impl Unfit {
    /// These workers, which `fits_beside` judges anew if too few others remain.
    pub(super) fn new(workers: Vec<WorkerInfo>, fits_beside: FitsBeside<WorkerInfo>) -> Self {
        Unfit { workers, fits_beside, is_judged: false }
    }

    /// Those that do not fit beside the workers `here`. Judges the last ones only: each takes a
    /// plan, and strangers may make many.
    fn beside(&self, here: &[WorkerInfo]) -> Vec<WorkerInfo> {
        let (others, judged) =
            self.workers.split_at(self.workers.len().saturating_sub(MOST_JUDGED));
        let unfit = judged.iter().filter(|one| !self.fits(one, here));
        others.iter().chain(unfit).cloned().collect()
    }

    fn has(&self, info: &WorkerInfo) -> bool {
        self.workers.iter().any(|one| one.is_same_process(info))
    }

    fn fits(&self, one: &WorkerInfo, here: &[WorkerInfo]) -> bool {
        let others = here.iter().filter(|info| !info.is_same_process(one));
        (self.fits_beside)(one, &others.cloned().collect::<Vec<_>>())
    }
}

/// A function that recognises these workers.
pub(super) fn is_one_of(workers: Vec<WorkerInfo>) -> impl Fn(&WorkerInfo) -> bool + Send + Sync {
    move |info| workers.iter().any(|one| one.is_same_process(info))
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

#[cfg(test)]
mod tests {
    use super::*;
    use link::quic::close_codes::DONE;
    use link::{Identity, JoinedRun, LinkError, Ticket};
    use pipeline::recovery::FailedSession;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    fn worker(process: u32) -> WorkerInfo {
        WorkerInfo { process, instance: process.into(), ..WorkerInfo::default() }
    }

    fn loopback(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// The identity of a boss, for as long as the test runs.
    fn identity() -> Identity {
        let keys = tempfile::tempdir().unwrap();
        Identity::load_or_create_in(keys.path()).unwrap()
    }

    const PLACES: usize = 4;

    /// Workers fit beside each other if their numbers differ by more than two.
    fn far_apart() -> FitsBeside<WorkerInfo> {
        Box::new(|one, others| others.iter().all(|info| info.process.abs_diff(one.process) > 2))
    }

    /// A wait after this session, whose workers with state are these.
    fn wait(identity: &Identity, failed: FailedSession, known: &[u32]) -> JoinWait {
        let listener = Listener::open(identity, loopback(0), PLACES).unwrap();
        let returning = Returning {
            wait: RejoinWait::new(failed, PLACES, |_| true),
            known: Some(known.iter().copied().map(worker).collect()),
            unfit: Unfit::new(Vec::new(), far_apart()),
        };
        JoinWait::new(listener, None, Some(returning), Events::unobserved())
    }

    async fn next(wait: &mut JoinWait) {
        let event = tokio::time::timeout(Duration::from_secs(60), wait.listener.next());
        let event = event.await.unwrap();
        wait.on_event(event);
    }

    /// The refusal of a worker that asks.
    async fn refused(wait: &mut JoinWait, ticket: &Ticket, process: u32) -> Option<LinkError> {
        let boss = [loopback(wait.listener.address().port())];
        let endpoint = link::worker_endpoint(ticket, &boss).unwrap();
        tokio::select! {
            joined = link::join(&endpoint, &boss, ticket, worker(process)) => joined.err(),
            event = wait.listener.next() => panic!("{event:?}"),
        }
    }

    async fn join(wait: &mut JoinWait, ticket: &Ticket, process: u32) -> JoinedRun {
        let boss = [loopback(wait.listener.address().port())];
        let endpoint = link::worker_endpoint(ticket, &boss).unwrap();
        let joining = link::join(&endpoint, &boss, ticket, worker(process));
        let (joined, ()) = tokio::join!(joining, next(wait));
        joined.unwrap()
    }

    /// A worker before the local one dies, so the local one joins twice.
    #[tokio::test]
    async fn a_local_worker_that_joins_twice_is_one() {
        let identity = identity();
        let failed = FailedSession { workers: 3, local: 1, lost: 1, newcomers: 0 };
        let mut wait = wait(&identity, failed, &[1, 2]);
        wait.local = Some(LocalWorkers::of_instances(vec![7]));
        let first = join(&mut wait, identity.ticket(), 1).await;
        assert_eq!(wait.sufficiency(), None, "the local worker is not there");
        let _before = join(&mut wait, identity.ticket(), 7).await;
        assert!(wait.sufficiency().is_some());
        first.boss.close(DONE, "it ends");
        // It leaves, and with it the local worker, which is behind a free place.
        next(&mut wait).await;
        next(&mut wait).await;
        assert_eq!((wait.listener.missing(), wait.sufficiency()), (PLACES, None));
        let _again = join(&mut wait, identity.ticket(), 7).await;
        assert!(wait.sufficiency().is_some());
    }

    /// A spare leaves late, and survivors behind it join again.
    #[tokio::test]
    async fn survivors_that_are_asked_to_join_again_have_time() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 0, newcomers: 0 };
        let mut wait = wait(&identity, failed, &[1, 2]);
        let spare = join(&mut wait, identity.ticket(), 9).await;
        let _before = join(&mut wait, identity.ticket(), 1).await;
        wait.counts_from -= Duration::from_secs(60);
        assert_eq!(wait.sufficiency(), Some(Sufficiency::Enough(2)));
        spare.boss.close(DONE, "it ends");
        next(&mut wait).await;
        next(&mut wait).await;
        let _again = join(&mut wait, identity.ticket(), 1).await;
        let decided = wait.sufficiency();
        assert!(matches!(decided, Some(Sufficiency::OpenFor(_))), "{decided:?}");
    }

    /// Their places are taken, until the boss notices that they are gone.
    #[tokio::test]
    async fn workers_whose_connections_are_being_closed_do_not_count() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 0, newcomers: 0 };
        let mut wait = wait(&identity, failed, &[1, 2]);
        let _first = join(&mut wait, identity.ticket(), 1).await;
        let _second = join(&mut wait, identity.ticket(), 2).await;
        wait.counts_from -= Duration::from_secs(60);
        assert_eq!(wait.sufficiency(), Some(Sufficiency::Enough(2)));
        wait.listener.ask_all_to_rejoin();
        assert_eq!(wait.listener.joined().count(), 2);
        assert_eq!(wait.sufficiency(), Some(Sufficiency::Gap));
    }

    /// Also if all places are taken.
    #[tokio::test]
    async fn a_session_does_not_begin_on_a_connection_that_is_being_closed() {
        let identity = identity();
        let listener = Listener::open(&identity, loopback(0), 1).unwrap();
        let mut wait = JoinWait::new(listener, None, None, Events::unobserved());
        let _before = join(&mut wait, identity.ticket(), 1).await;
        wait.listener.ask_all_to_rejoin();
        let boss = [loopback(wait.listener.address().port())];
        let endpoint = link::worker_endpoint(identity.ticket(), &boss).unwrap();
        let again = async {
            loop {
                match link::join(&endpoint, &boss, identity.ticket(), worker(1)).await {
                    Err(LinkError::Refused { retry: true, .. }) => {}
                    joined => return joined.unwrap(),
                }
            }
        };
        let both = async { tokio::join!(wait.run(), again) };
        let (count, _again) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        assert_eq!((count.unwrap(), wait.listener.connected().count()), (1, 1));
    }

    /// A stranger has the first place, and the run continues with two.
    #[tokio::test]
    async fn a_stranger_does_not_push_out_a_worker_with_state() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 0, newcomers: 0 };
        let mut wait = wait(&identity, failed, &[1, 2]);
        let mut members = Vec::new();
        for process in [9, 1, 2] {
            members.push(join(&mut wait, identity.ticket(), process).await);
        }
        assert!(!wait.let_known_first(3), "nobody is left out");
        assert!(wait.let_known_first(2));
        for _ in 0..3 {
            next(&mut wait).await;
        }
        assert_eq!(wait.listener.missing(), PLACES);
        members.push(join(&mut wait, identity.ticket(), 2).await);
        let refusal = refused(&mut wait, identity.ticket(), 9).await;
        assert!(matches!(refusal, Some(LinkError::Refused { retry: true, .. })), "{refusal:?}");
        for process in [1, 9] {
            members.push(join(&mut wait, identity.ticket(), process).await);
        }
        let joined: Vec<_> = wait.listener.joined().map(|info| info.process).collect();
        assert_eq!(joined, [2, 1, 9]);
        assert!(!wait.let_known_first(2));
    }

    /// Makes these workers unfit at first.
    fn exclude(mut wait: JoinWait, processes: &[u32]) -> JoinWait {
        let unfit: Vec<_> = processes.iter().copied().map(worker).collect();
        wait.listener = wait.listener.exclude(is_one_of(unfit.clone()));
        if let Some(again) = &mut wait.again {
            again.unfit = Unfit::new(unfit, far_apart());
        }
        wait
    }

    /// A worker was unfit beside two others, and both are lost.
    #[tokio::test]
    async fn an_unfit_worker_may_come_once_it_is_alone() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 2, newcomers: 0 };
        let mut wait = exclude(wait(&identity, failed, &[]), &[9]);
        let beside = join(&mut wait, identity.ticket(), 8).await;
        wait.count_on_anybody();
        let refusal = refused(&mut wait, identity.ticket(), 9).await;
        assert!(matches!(refusal, Some(LinkError::Refused { retry: true, .. })), "{refusal:?}");
        beside.boss.close(DONE, "it ends");
        next(&mut wait).await;
        let _alone = join(&mut wait, identity.ticket(), 9).await;
        assert_eq!(wait.listener.missing(), PLACES - 1);
    }

    /// Two workers were unfit beside one that is lost. They fit beside the one that remains, but
    /// not both of them.
    #[tokio::test]
    async fn unfit_workers_are_judged_beside_those_that_are_here() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 1, newcomers: 0 };
        let mut wait = exclude(wait(&identity, failed, &[1, 7]), &[8, 9]);
        let _survivor = join(&mut wait, identity.ticket(), 1).await;
        let refusal = refused(&mut wait, identity.ticket(), 9).await;
        assert!(matches!(refusal, Some(LinkError::Refused { retry: true, .. })), "{refusal:?}");
        wait.count_on_anybody();
        let first = join(&mut wait, identity.ticket(), 9).await;
        let refusal = refused(&mut wait, identity.ticket(), 8).await;
        assert!(matches!(refusal, Some(LinkError::Refused { retry: true, .. })), "{refusal:?}");
        first.boss.close(DONE, "it ends");
        next(&mut wait).await;
        let _other = join(&mut wait, identity.ticket(), 8).await;
        assert_eq!(wait.listener.missing(), PLACES - 2);
    }

    /// It was let in beside one survivor. Then another one comes, beside which it does not fit.
    #[tokio::test]
    async fn an_unfit_worker_leaves_a_survivor_its_place() {
        let identity = identity();
        let failed = FailedSession { workers: 2, local: 0, lost: 0, newcomers: 0 };
        let mut wait = exclude(wait(&identity, failed, &[1, 8]), &[9]);
        let _survivor = join(&mut wait, identity.ticket(), 1).await;
        wait.count_on_anybody();
        let unfit = join(&mut wait, identity.ticket(), 9).await;
        let _behind_it = join(&mut wait, identity.ticket(), 8).await;
        // It leaves, and the survivor behind its place joins again.
        next(&mut wait).await;
        next(&mut wait).await;
        assert!(unfit.boss.is_closed());
        let _late = join(&mut wait, identity.ticket(), 8).await;
        let refusal = refused(&mut wait, identity.ticket(), 9).await;
        assert!(matches!(refusal, Some(LinkError::Refused { retry: true, .. })), "{refusal:?}");
    }

    /// Two survivors and a spare: the spare is no survivor, however many workers are there.
    #[tokio::test]
    async fn a_spare_does_not_count_as_a_worker_with_state() {
        let identity = identity();
        let failed = FailedSession { workers: 3, local: 0, lost: 1, newcomers: 0 };
        let mut wait = wait(&identity, failed, &[1, 2, 3]);
        let _spare = join(&mut wait, identity.ticket(), 9).await;
        let _first = join(&mut wait, identity.ticket(), 1).await;
        let is_long = |decided: Option<Sufficiency>| {
            let long = Duration::from_secs(2);
            matches!(decided, Some(Sufficiency::OpenFor(time)) if time > long)
        };
        assert!(is_long(wait.sufficiency()), "{:?}", wait.sufficiency());
        wait.count_on_anybody();
        assert!(!is_long(wait.sufficiency()), "{:?}", wait.sufficiency());
    }
}
