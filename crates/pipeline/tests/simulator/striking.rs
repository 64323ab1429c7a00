//! What strikes a world: workers that are lost, fall silent, come and go, links that break.

use super::*;
use crate::strikes::Strikes;

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
    pub(super) fn imperil(&mut self) {
        if self.perils.left == 0 || self.network.random.below(self.perils.one_in) > 0 {
            return;
        }
        self.perils.left -= 1;
        let mut loss = Loss { at: self.now(), workers: 0, silent: 0, updates: self.trouble.updates };
        for _ in 0..1 + u64::from(self.network.random.chance(25)) {
            let awake = (0..).map(WorkerId).zip(&self.workers).filter(|(_, w)| w.alive && w.asleep == 0);
            let awake: Vec<WorkerId> = awake.map(|(worker, _)| worker).collect();
            if awake.is_empty() {
                break;
            }
            let (worker, silent) = (*self.network.random.pick(&awake), self.network.random.chance(40));
            match silent {
                true => self.fall_silent(worker),
                false => self.vanish(worker),
            }
            (loss.workers, loss.silent) = (loss.workers + 1, loss.silent + usize::from(silent));
        }
        if loss.workers > 0 {
            self.perils.losses.push(loss);
        }
    }

    pub(super) fn fall_silent(&mut self, worker: WorkerId) {
        let until = self.network.silence(worker);
        self.workers[worker.0 as usize].asleep = until;
        self.log.note(|| format!("{:>9} {worker} falls silent until {until}", self.now()));
    }

    /// Has this strike from now on.
    pub fn strike_with(&mut self, strikes: Strikes) {
        (self.strikes, self.network.mishaps) = (strikes.events, strikes.frames);
    }

    /// How many frames were sent.
    pub fn frames(&self) -> u64 {
        self.network.frames
    }

    /// What is to strike at this event.
    pub(super) fn strike(&mut self) {
        self.struck.mishaps.append(&mut self.network.befell);
        let Some(strike) = self.strikes.remove(&self.events) else { return };
        let (now, workers) = (self.now(), self.workers.len() as u16);
        let strike = strike.among(workers);
        let there =
            |worker: &WorkerId| self.workers.get(usize::from(worker.0)).is_some_and(|w| w.alive && w.asleep <= now);
        let strikes = match &strike {
            Strike::Kill(worker) | Strike::Pause(worker, _) | Strike::Silence(worker) => there(worker),
            Strike::Hold(far, _) | Strike::Split(far) => far.iter().any(there),
            Strike::KillBoss => true,
        };
        if !strikes || self.struck.boss_killed {
            return;
        }
        self.log.note(|| format!("{now:>9} strikes: {strike:?}"));
        match strike.clone() {
            Strike::Kill(worker) => {
                self.workers[worker.0 as usize].asleep = 0;
                self.vanish(worker);
            }
            Strike::Pause(worker, time) => {
                self.network.pause(worker, now + time);
                self.workers[worker.0 as usize].asleep = now + time;
            }
            Strike::Silence(worker) => self.fall_silent(worker),
            Strike::Hold(far, time) => self.network.hold(far, now + time),
            Strike::Split(far) => {
                self.network.split(&far, workers);
                far.iter().for_each(|worker| self.workers[worker.0 as usize].far = true);
            }
            Strike::KillBoss => {
                self.struck.boss_killed = true;
                let alive = (0..).map(WorkerId).zip(&self.workers).filter(|(_, worker)| worker.alive);
                self.network.lose_boss(alive.map(|(worker, _)| worker).collect::<Vec<_>>().into_iter());
            }
        }
        self.struck.strikes.push(strike);
    }

    /// A worker's driver ends, and not its process.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        let here = &mut self.workers[worker.0 as usize];
        if here.alive {
            here.rejoins = true;
            self.vanish(worker);
        }
    }

    /// A worker closes a connection to one that broke the protocol. Here that comes of a frame that was sent twice, or of one
    /// that was given up and goes on.
    pub(super) fn hang_up(&mut self, id: WorkerId, peer: Peer, reason: &str) {
        self.struck.mishaps.append(&mut self.network.befell);
        let given_up = |peer| matches!(peer, Peer::Worker(worker) if self.struck.given_up.contains(&worker));
        let is_due = self.struck.repeats() || given_up(peer) || given_up(Peer::Worker(id));
        assert!(is_due, "{id} hangs up on {peer}: {reason}");
        self.log.note(|| format!("{:>9} {id} hangs up on {peer}: {reason}", self.now()));
        match peer {
            Peer::Boss => self.leave(id),
            Peer::Worker(peer) => drop(self.network.hang_up(id, peer)),
        }
    }

    pub(super) fn boss_hangs_up(&mut self, peer: Peer, reason: &str) {
        self.struck.mishaps.append(&mut self.network.befell);
        assert!(self.struck.repeats(), "the boss hangs up on {peer}: {reason}");
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

    pub(super) fn come_and_go(&mut self) {
        let Some(churn) = &mut self.churn else { return };
        let alive = |worker: WorkerId| self.workers[worker.0 as usize].alive;
        match churn.at(self.events, alive) {
            Some(Change::Come) => self.arrive(),
            Some(Change::Go(worker)) => self.vanish(worker),
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
