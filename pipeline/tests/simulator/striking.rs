//! What strikes a world: workers that are lost, fall silent, come and go, links that break.

use super::*;

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
