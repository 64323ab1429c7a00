//! Plays processes at a desk. They ask again if they are refused, leave if they are asked to, and
//! die at any time. Times are milliseconds.

use crate::seeds::Log;
use pipeline::recovery::{Answer, Applicant, JoinDesk, Next};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::Random;

/// A wait is over by then, or too few workers are alive.
const END: u64 = 120_000;
/// More answers of a desk than follow one event.
const MOST_ANSWERS: usize = 8;

/// A process that asks for a place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Caller(pub u64);

impl Applicant for Caller {
    fn is_same_process(&self, other: &Self) -> bool {
        self == other
    }

    fn instance(&self) -> u64 {
        self.0
    }
}

/// One connection of a process, or its calls for one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Call {
    process: u64,
    number: u64,
}

#[derive(Copy, Clone, Debug)]
enum Event {
    Ask(Call),
    /// The boss notices that the connection of a place has ended.
    Left(usize, Call),
    Die(u64),
    /// The time has come until which the desk wanted to wait.
    Check,
}

struct Process {
    is_alive: bool,
    /// The number of its latest call.
    call: u64,
    /// The longest time until it asks again after it was asked to.
    pause: u64,
}

struct Seat {
    call: Call,
    /// Whether it was asked to join again.
    leaves: bool,
}

/// An event of a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    /// A process asked for a place.
    Asked {
        at: u64,
        process: u64,
        answer: Answer,
        /// Whether the boss has not noticed that an earlier connection of it has ended.
        has_ghost: bool,
    },
    /// These processes were asked to join again.
    AskedToRejoin {
        at: u64,
        processes: Vec<u64>,
        /// Those of them that have a newer place.
        stale: Vec<u64>,
        /// Those of them that have none, and no place before theirs is free.
        in_order: Vec<u64>,
        /// Whether they are all that have a place, and no place before them is free.
        is_everybody: bool,
    },
    AskedForMore,
    Died {
        process: u64,
        had_place: bool,
    },
}

/// The beginning of a session.
pub struct Begun {
    /// Its workers, by number.
    pub members: Vec<u64>,
    /// The workers with the other places.
    pub others: Vec<u64>,
}

/// A wait in progress.
pub struct JoinPlayer {
    desk: JoinDesk<Caller>,
    local: Vec<u64>,
    random: Random,
    log: Log,
    queue: BTreeMap<(u64, u64), Event>,
    /// The number of events so far, which orders those of one time.
    events: u64,
    processes: BTreeMap<u64, Process>,
    seats: Vec<Option<Seat>>,
    check_at: Option<u64>,
    pub now: u64,
    /// The time at which the last worker joined, left or died.
    pub last_change: u64,
    pub happened: Vec<Happened>,
}

impl JoinPlayer {
    /// Plays a wait after a session, with local workers of these numbers.
    pub fn new(desk: JoinDesk<Caller>, local: Vec<u64>, random: Random, log: Log) -> Self {
        let seats = (0..desk.places()).map(|_| None).collect();
        JoinPlayer {
            desk,
            local,
            random,
            log,
            queue: BTreeMap::new(),
            events: 0,
            processes: BTreeMap::new(),
            seats,
            check_at: None,
            now: 0,
            last_change: 0,
            happened: Vec::new(),
        }
    }

    /// A process asks for the first time. If it is to join again, it asks within this pause.
    pub fn comes(&mut self, at: u64, process: u64, pause: u64) {
        self.processes.insert(process, Process { is_alive: true, call: 0, pause });
        self.plan(at, Event::Ask(Call { process, number: 0 }));
    }

    /// A process dies, or loses its connection and asks again.
    pub fn dies(&mut self, at: u64, process: u64) {
        self.plan(at, Event::Die(process));
    }

    /// The processes that are alive.
    pub fn alive(&self) -> impl Iterator<Item = u64> + '_ {
        self.processes.iter().filter(|(_, one)| one.is_alive).map(|(process, _)| *process)
    }

    /// Plays until the session begins. `None` if it does not.
    pub fn run(&mut self) -> Option<Begun> {
        loop {
            if let Some(workers) = self.poll() {
                return Some(self.begun(workers));
            }
            let event = self.next_event()?;
            self.log.note(|| format!("{} {event:?}", self.now));
            match event {
                Event::Ask(call) => self.ask(call),
                Event::Left(place, call) => self.left(place, call),
                Event::Die(process) => self.die(process),
                Event::Check => {}
            }
        }
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    /// Goes on to the next event.
    fn next_event(&mut self) -> Option<Event> {
        let first = self.queue.keys().next().map(|(at, _)| *at);
        let check = self.check_at.filter(|check| first.is_none_or(|first| *check <= first));
        let (at, event) = match check {
            Some(check) => (check, Event::Check),
            None => self.queue.pop_first().map(|((at, _), event)| (at, event))?,
        };
        self.now = at;
        (at < END).then_some(event)
    }

    fn ask(&mut self, call: Call) {
        let process = call.process;
        let is_current = |one: &&Process| one.is_alive && one.call == call.number;
        if self.processes.get(&process).filter(is_current).is_none() {
            return;
        }
        let answer = self.desk.ask(Duration::from_millis(self.now), &Caller(process));
        self.log.note(|| format!("  {answer:?}"));
        let mut seats = self.seats.iter().flatten();
        let has_ghost = seats.any(|seat| seat.call.process == process && !seat.leaves);
        match answer {
            Answer::Place(place) => {
                assert!(self.seats[place].is_none(), "place {place} is taken");
                self.seats[place] = Some(Seat { call, leaves: false });
                self.last_change = self.now;
            }
            Answer::Full | Answer::Unfit | Answer::Kept => {
                let pause = if self.random.chance(90) { 1000 } else { 5000 };
                self.plan(self.now + pause, Event::Ask(call));
            }
        }
        self.happened.push(Happened::Asked { at: self.now, process, answer, has_ghost });
    }

    fn left(&mut self, place: usize, call: Call) {
        if self.seats[place].take_if(|seat| seat.call == call).is_some() {
            self.desk.left(place);
            self.last_change = self.now;
        }
    }

    /// The boss notices a death later. Half of them are lost connections: the process asks again,
    /// maybe before that.
    fn die(&mut self, process: u64) {
        let comes_again = self.random.chance(50);
        let Some(one) = self.processes.get_mut(&process).filter(|one| one.is_alive) else { return };
        let before = Call { process, number: one.call };
        (one.is_alive, one.call) = (comes_again, one.call + 1);
        let call = Call { process, number: one.call };
        let place = self
            .seats
            .iter()
            .position(|seat| seat.as_ref().is_some_and(|seat| seat.call == before && !seat.leaves));
        if let Some(place) = place {
            let noticed = self.now + self.random.below(3000);
            self.plan(noticed, Event::Left(place, before));
        }
        if comes_again {
            let again = self.now + self.random.below(5000);
            self.plan(again, Event::Ask(call));
        }
        self.last_change = self.now;
        self.happened.push(Happened::Died { process, had_place: place.is_some() });
    }

    /// Does what the desk wants. Returns the number of workers if the session begins.
    fn poll(&mut self) -> Option<usize> {
        for _ in 0..MOST_ANSWERS {
            let next = self.desk.poll(Duration::from_millis(self.now));
            self.log.note(|| format!("  {next:?}"));
            match next {
                Next::AskToRejoin(places) => self.rejoin(&places),
                Next::AskForMore => self.happened.push(Happened::AskedForMore),
                Next::Wait(until) => {
                    self.wait(until);
                    return None;
                }
                Next::Begin(workers) => return Some(workers),
            }
        }
        panic!("the desk does not come to an end");
    }

    /// Nobody waits without a reason.
    fn wait(&mut self, until: Option<Duration>) {
        self.check_at = until.map(|time| time.as_millis() as u64);
        assert!(self.check_at.is_none_or(|time| time > self.now), "a wait until {until:?}");
        let is_local = |seat: &&Seat| self.local.contains(&seat.call.process) && !seat.leaves;
        let local_here = self.seats.iter().flatten().filter(is_local).count();
        let is_awaited = local_here < self.local.len()
            || self.seats.iter().flatten().any(|seat| seat.leaves)
            || self.happened.contains(&Happened::AskedForMore);
        assert!(until.is_some() || is_awaited, "the desk waits for nothing");
    }

    fn rejoin(&mut self, places: &[usize]) {
        let taken = self.seats.iter().flatten().count();
        let first_free = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        let (mut processes, mut stale, mut in_order) = (Vec::new(), Vec::new(), Vec::new());
        for place in places {
            if let Some(process) = self.process_with_newer_place(*place) {
                stale.push(process);
            } else if *place < first_free {
                in_order.extend(self.seats[*place].as_ref().map(|seat| seat.call.process));
            }
            let seat = self.seats[*place].as_mut().expect("a worker");
            assert!(!seat.leaves, "place {place} was asked twice");
            seat.leaves = true;
            let call = seat.call;
            processes.push(call.process);
            let left = self.now + 1 + self.random.below(50);
            self.plan(left, Event::Left(*place, call));
            let one = self.processes.get_mut(&call.process).expect("a process");
            // A ghost hears nothing.
            if one.is_alive && one.call == call.number {
                one.call += 1;
                let again = self.now + self.random.below(one.pause);
                let call = Call { number: one.call, ..call };
                self.plan(again, Event::Ask(call));
            }
        }
        let is_everybody = places.len() == taken && places.iter().copied().eq(0..taken);
        assert!(!processes.is_empty());
        let at = self.now;
        let asked = Happened::AskedToRejoin { at, processes, stale, in_order, is_everybody };
        self.happened.push(asked);
    }

    /// The process with this place, if it has a newer one.
    fn process_with_newer_place(&self, place: usize) -> Option<u64> {
        let call = self.seats[place].as_ref()?.call;
        let is_newer =
            |seat: &Seat| seat.call.process == call.process && seat.call.number > call.number;
        self.seats.iter().flatten().any(is_newer).then_some(call.process)
    }

    fn begun(&self, workers: usize) -> Begun {
        let (first, others) = self.seats.split_at(workers);
        let member = |seat: &Option<Seat>| {
            let seat = seat.as_ref().expect("a worker");
            assert!(!seat.leaves, "a member leaves");
            seat.call.process
        };
        let members = first.iter().map(member).collect();
        let others = others.iter().flatten().map(|seat| seat.call.process).collect();
        Begun { members, others }
    }
}
