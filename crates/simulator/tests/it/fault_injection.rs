//! Injects faults into a world: workers that are lost, fall silent, join and leave, and links that
//! break. Ends all faults at the last one.

use super::*;
use crate::planned_faults::PlannedFaults;

impl World {
    pub(super) fn inject_faults(&mut self) {
        if let Some(worker) = self.trouble.lose_at(self.events) {
            let others = (0..self.workers.len() as u16).map(WorkerId).filter(|w| *w != worker);
            self.network.lose(worker, others);
            self.workers[worker.0 as usize].alive = false;
            self.trouble.lost = Some(worker);
            self.log.note(|| format!("{:>9} {worker} vanishes", self.now()));
        }
        if self.trouble.break_due(self.events) {
            self.trouble.broken = self.network.break_link();
            if let Some((a, b)) = self.trouble.broken {
                self.log.note(|| format!("{:>9} the link of {a} and {b} breaks", self.now()));
            }
        }
    }

    /// Loses a worker or two, if it is their time.
    pub(super) fn draw_faults(&mut self) {
        if self.random_faults.left == 0 || self.network.random.below(self.random_faults.one_in) > 0
        {
            return;
        }
        self.random_faults.left -= 1;
        let mut loss =
            Loss { at: self.now(), workers: 0, silent: 0, updates: self.trouble.updates };
        for _ in 0..1 + u64::from(self.network.random.chance(25)) {
            let awake =
                (0..).map(WorkerId).zip(&self.workers).filter(|(_, w)| w.alive && w.asleep == 0);
            let awake: Vec<WorkerId> = awake.map(|(worker, _)| worker).collect();
            if awake.is_empty() {
                break;
            }
            let (worker, silent) =
                (*self.network.random.pick(&awake), self.network.random.chance(40));
            match silent {
                true => self.fall_silent(worker),
                false => self.vanish(worker),
            }
            (loss.workers, loss.silent) = (loss.workers + 1, loss.silent + usize::from(silent));
        }
        if loss.workers > 0 {
            self.random_faults.losses.push(loss);
        }
    }

    pub(super) fn fall_silent(&mut self, worker: WorkerId) {
        let until = self.network.silence(worker);
        let here = &mut self.workers[worker.0 as usize];
        (here.asleep, here.silenced) = (until, true);
        self.log.note(|| format!("{:>9} {worker} falls silent until {until}", self.now()));
    }

    /// Plans these faults from now on.
    pub fn plan_faults(&mut self, faults: PlannedFaults) {
        (self.planned_faults, self.network.frame_faults) = (faults.events, faults.frames);
    }

    /// The number of frames sent.
    pub fn frames(&self) -> u64 {
        self.network.frames
    }

    /// Injects the faults of this event.
    pub(super) fn inject_planned_faults(&mut self) {
        self.injected.frame_faults.append(&mut self.network.injected_frame_faults);
        let Some(fault) = self.planned_faults.remove(&self.events) else { return };
        let (now, workers) = (self.now(), self.workers.len() as u16);
        let fault = fault.among(workers);
        let there = |worker: &WorkerId| {
            self.workers.get(usize::from(worker.0)).is_some_and(|w| w.alive && w.asleep <= now)
        };
        let faults = match &fault {
            PlannedFault::Kill(worker) | PlannedFault::Silence(worker) => {
                there(worker) && self.can_go(*worker)
            }
            PlannedFault::Pause(worker, _) => there(worker),
            PlannedFault::ShortPartition(far, _) | PlannedFault::Partition(far) => {
                far.iter().any(there)
            }
            PlannedFault::Gone => !self.injected.waiting.is_empty(),
            PlannedFault::KillBoss | PlannedFault::BreakLink | PlannedFault::Come => true,
        };
        if !faults || self.injected.boss_killed {
            return;
        }
        self.log.note(|| format!("{now:>9} faults: {fault:?}"));
        match fault.clone() {
            PlannedFault::Kill(worker) => return self.kill(worker),
            PlannedFault::Pause(worker, time) => {
                self.network.pause(worker, now + time);
                self.workers[worker.0 as usize].asleep = now + time;
            }
            PlannedFault::Silence(worker) => self.fall_silent(worker),
            PlannedFault::ShortPartition(far, time) => self.network.hold(far, now + time),
            PlannedFault::Partition(far) => {
                self.network.split(&far, workers);
                far.iter().for_each(|worker| self.workers[worker.0 as usize].far = true);
            }
            PlannedFault::KillBoss => {
                self.injected.boss_killed = true;
                let alive =
                    (0..).map(WorkerId).zip(&self.workers).filter(|(_, worker)| worker.alive);
                self.network
                    .lose_boss(alive.map(|(worker, _)| worker).collect::<Vec<_>>().into_iter());
            }
            PlannedFault::BreakLink => {
                if self.network.break_link().is_none() {
                    return;
                }
            }
            PlannedFault::Come => {
                let late = self.injected.late.pop_front();
                self.injected.waiting.extend(late);
            }
            PlannedFault::Gone => drop(self.injected.waiting.pop()),
        }
        self.injected.planned.push(fault);
    }

    /// Kills a worker's process.
    pub fn kill(&mut self, worker: WorkerId) {
        self.workers[worker.0 as usize].asleep = 0;
        self.vanish(worker);
        self.injected.planned.push(PlannedFault::Kill(worker));
    }

    /// Whether enough workers of each stage stay in a pool if this one goes.
    fn can_go(&self, worker: WorkerId) -> bool {
        let lasts = |worker: WorkerId| self.workers[worker.0 as usize].lasts();
        self.churn.as_ref().is_none_or(|churn| churn.spares(worker, lasts))
    }

    /// Comes one event nearer to the last fault, if there is one. With it, all faults end.
    pub(super) fn approach_last_fault(&mut self) {
        let Some(last) = self.last_fault.as_mut().filter(|last| !last.is_over()) else { return };
        last.ahead -= 1;
        if !last.is_over() {
            return;
        }
        let core = last.only_core.then_some(last.core);
        self.log.note(|| format!("{:>9} the last fault", self.now()));
        self.random_faults.left = 0;
        self.planned_faults.clear();
        self.network.frame_faults.clear();
        self.trouble.end_faults();
        self.churn.iter_mut().for_each(Churn::end);
        match core {
            Some(core) if !self.injected.boss_killed => self.leave_core(core),
            _ => {}
        }
    }

    /// Kills workers until only a core is left: `core` workers, and in a pool what its members
    /// need.
    fn leave_core(&mut self, core: usize) {
        let all = (0..self.workers.len() as u16).map(WorkerId);
        let mut lasting: Vec<WorkerId> =
            all.filter(|worker| self.workers[worker.0 as usize].lasts()).collect();
        let turn = self.network.random.below(lasting.len().max(1) as u64);
        lasting.rotate_left(turn as usize);
        let mut left = lasting.len();
        for worker in lasting {
            let goes = if self.churn.is_some() { self.can_go(worker) } else { left > core };
            if goes {
                self.kill(worker);
                left -= 1;
            }
        }
    }

    /// A worker's driver ends, but its process continues.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        let here = &mut self.workers[worker.0 as usize];
        if here.alive {
            here.rejoins = true;
            self.vanish(worker);
        }
    }

    /// The boss closes the connection to a worker.
    pub fn disconnect(&mut self, worker: WorkerId) {
        self.leave(worker);
        self.churn.iter_mut().for_each(|churn| churn.gone.push(worker));
        self.boss.on_lost(self.network.time(), worker, "it was disconnected");
        self.drain_boss();
    }

    /// A worker disconnects a peer that violated the protocol. Here the cause is a frame that was
    /// sent twice, or a worker that was given up and continues.
    pub(super) fn hang_up(&mut self, id: WorkerId, peer: Peer, reason: &str) {
        self.injected.frame_faults.append(&mut self.network.injected_frame_faults);
        let given_up =
            |peer| matches!(peer, Peer::Worker(worker) if self.injected.given_up.contains(&worker));
        let is_due = self.injected.has_duplicates() || given_up(peer) || given_up(Peer::Worker(id));
        assert!(is_due, "{id} hangs up on {peer}: {reason}");
        self.log.note(|| format!("{:>9} {id} hangs up on {peer}: {reason}", self.now()));
        match peer {
            Peer::Boss => self.leave(id),
            Peer::Worker(peer) => drop(self.network.hang_up(id, peer)),
        }
    }

    pub(super) fn boss_hangs_up(&mut self, peer: Peer, reason: &str) {
        self.injected.frame_faults.append(&mut self.network.injected_frame_faults);
        assert!(self.injected.has_duplicates(), "the boss hangs up on {peer}: {reason}");
        let Peer::Worker(worker) = peer else { panic!("the boss hangs up on itself: {reason}") };
        self.log.note(|| format!("{:>9} the boss hangs up on {peer}: {reason}", self.now()));
        self.leave(worker);
        match &mut self.churn {
            Some(churn) => churn.gone.push(worker),
            None => {
                self.trouble.known_lost = Some(self.network.now);
                self.lost.insert(worker);
            }
        }
        self.boss.on_lost(self.network.time(), worker, reason);
    }

    pub(super) fn apply_changes(&mut self) {
        let Some(churn) = &mut self.churn else { return };
        let lasts = |worker: WorkerId| self.workers[worker.0 as usize].lasts();
        match churn.at(self.events, lasts) {
            Some(Change::Come) => self.arrive(),
            Some(Change::Go(worker)) => self.vanish(worker),
            Some(Change::Told(worker)) => {
                self.log.note(|| format!("{:>9} {worker} is told to go", self.now()));
                let told = &mut self.workers[worker.0 as usize];
                told.told = true;
                told.session.on_leave();
                self.drain_worker(worker);
            }
            None => {}
        }
    }

    pub(super) fn arrive(&mut self) {
        let number = self.workers.len() as u16;
        self.workers.push(Worker::new(self.network.random.below(10_000_000_000)));
        let deaf = self.network.conditions.refused > 0 && self.network.random.chance(20);
        let address = SocketAddr::from(([127, 0, 0, 1], 1024 + number));
        let worker = self.boss.on_joined((!deaf).then_some(address));
        assert_eq!(worker, WorkerId(number));
        self.log.note(|| format!("{:>9} {worker} comes", self.now()));
        self.churn.iter_mut().for_each(|churn| churn.arrived.push(worker));
    }

    pub(super) fn vanish(&mut self, worker: WorkerId) {
        let others = (0..self.workers.len() as u16).map(WorkerId).filter(|w| *w != worker);
        self.network.lose(worker, others);
        self.workers[worker.0 as usize].alive = false;
        self.log.note(|| format!("{:>9} {worker} goes", self.now()));
    }
}
