//! The desk at which workers ask for a place before a session. Survivors, spares, newcomers and
//! unfit workers come in any order and die at any time. A session begins in time with workers that
//! make one, and leaves out none that has state for one that has none.

use crate::join_player::{Begun, Caller, Happened, JoinPlayer};
use crate::recovering_run::Counts;
use crate::seeds::{each_seed, Log};
use pipeline::recovery::{Answer, JoinDesk, KeptPlaces, LastSession};
use std::collections::BTreeMap;
use testkit::Random;

/// The longest time from the last event of a worker to the beginning of a session, in milliseconds:
/// a wait for a survivor and one for a newcomer.
const LONGEST_WAIT: u64 = 21_000;
/// The time within which a worker that was asked to join again for another order of places counts
/// as present, in milliseconds.
const RETURN_TIMEOUT: u64 = 10_000;
/// The longest time that an unfit worker which goes on asking waits for a verdict, if twelve do, in
/// milliseconds: a period of verdicts, and two pauses between calls.
const LONGEST_UNJUDGED: u64 = 20_000;
/// The most turns in a wait.
const MOST_TURNS: usize = 2;

/// The numbers of processes. Workers of the last session count from 1.
const SPARES: u64 = 50;
const UNFIT: u64 = 70;
const NEWCOMERS: u64 = 90;
const LOCAL: u64 = 200;

/// This is rare.
const LEFT_OUT: &str = "a worker with state that was left out";

/// All that happens at some seed, if there are many.
const ALL: [&str; 13] = [
    "a turn",
    "a gap",
    "too few",
    "an unfit worker that was taken in",
    "a ghost",
    "a local worker that joined twice",
    "a lost worker that came again",
    "a newcomer that died at the desk",
    "an unfit worker that was sent away",
    "a fit worker that waited for its verdict",
    "a fit worker in a crowd of unfit ones that was taken in",
    "a spare that did not fit",
    "a spare that did not fit any more",
];

/// A wait after a session.
#[derive(Debug)]
struct Wait {
    places: usize,
    local: Vec<u64>,
    last: LastSession<Caller>,
    /// Whether the run can continue with 0, 1, 2, ... workers.
    usable: Vec<bool>,
    /// An unfit worker fits beside fewer others than these.
    crowd: usize,
    /// Whether spares are unfit in the same way, which nobody knows before they ask.
    has_unfit_spares: bool,
    /// A worker that counts as unfit and fits beside any others.
    fits_all: Option<u64>,
    /// When they ask first.
    comes: Vec<(u64, u64)>,
    dies: Vec<(u64, u64)>,
}

impl Wait {
    fn draw(random: &mut Random) -> Self {
        let places = 2 + random.below(4) as usize;
        let workers = 1 + random.below(places as u64) as usize;
        let local = if random.chance(25) { random.below(workers as u64 + 1) } else { 0 };
        let grows = random.chance(40) && workers < places;
        let lost = if grows { 0 } else { random.below(2) as usize };
        let most_new = if grows { 1 + random.below((places - workers) as u64) } else { 0 };
        let all = |first: u64, count: u64| (first..first + count).map(Caller).collect::<Vec<_>>();
        let is_crowded = random.chance(10);
        let kept =
            [KeptPlaces::None, KeptPlaces::Remaining, KeptPlaces::Remaining, KeptPlaces::All];
        let last = LastSession {
            workers,
            lost,
            newcomers: all(NEWCOMERS, most_new),
            kept: if grows { KeptPlaces::All } else { *random.pick(&kept) },
            known: all(1, workers as u64 - local),
            unfit: all(UNFIT, if is_crowded { 9 + random.below(4) } else { random.below(3) }),
        };
        let usable = (0..=places).map(|number| number == places || random.chance(60)).collect();
        let mut wait = Wait {
            places,
            local: (LOCAL..LOCAL + local).collect(),
            last,
            usable,
            crowd: if is_crowded { random.below(2) } else { 1 + random.below(3) } as usize,
            has_unfit_spares: random.chance(50),
            fits_all: is_crowded.then(|| UNFIT + random.below(9)),
            comes: Vec::new(),
            dies: Vec::new(),
        };
        wait.draw_comers(random);
        if random.chance(50) {
            wait.draw_deaths(random);
        }
        wait
    }

    fn draw_comers(&mut self, random: &mut Random) {
        for (number, Caller(process)) in self.last.known.iter().enumerate() {
            // A worker that counts as lost may come again.
            if number >= self.last.lost || random.chance(20) {
                let latest = *random.pick(&[1, 300, 3000, 14_000]);
                self.comes.push((random.below(latest), *process));
            }
        }
        for process in &self.local {
            self.comes.push((random.below(500), *process));
        }
        let spares: Vec<_> = (0..random.below(3)).map(|number| Caller(SPARES + number)).collect();
        for Caller(process) in spares.iter().chain(&self.last.unfit).chain(&self.last.newcomers) {
            let latest = if random.chance(50) { 1000 } else { 25_000 };
            self.comes.push((random.below(latest), *process));
        }
    }

    /// The exit of a local worker ends the run, so none dies.
    fn draw_deaths(&mut self, random: &mut Random) {
        let all = self.comes.iter().map(|(_, process)| *process);
        let mortal: Vec<u64> = all.filter(|process| *process < LOCAL).collect();
        if mortal.is_empty() {
            return;
        }
        for _ in 0..1 + random.below(4) {
            self.dies.push((random.below(30_000), *random.pick(&mortal)));
        }
    }

    fn player(&self, random: Random, log: Log) -> JoinPlayer {
        let (usable, crowd) = (self.usable.clone(), self.crowd);
        let fits = |workers: usize| usable[workers];
        let processes = self.comes.iter().map(|(_, process)| *process);
        let unfit: Vec<u64> = processes.filter(|process| self.is_unfit(*process)).collect();
        let fits_beside = Box::new(move |worker: &Caller, others: &[Caller]| {
            !unfit.contains(&worker.0) || others.len() < crowd
        });
        let (local, last) = (self.local.clone(), self.last.clone());
        let desk = JoinDesk::again(self.places, local.clone(), last, fits, fits_beside);
        let mut player = JoinPlayer::new(desk, local, random, log);
        for (at, process) in &self.comes {
            let is_spare = (SPARES..LOCAL).contains(process);
            player.comes(*at, *process, if is_spare { 1500 } else { 300 });
        }
        for (at, process) in &self.dies {
            player.dies(*at, *process);
        }
        player
    }

    fn has_state(&self, process: u64) -> bool {
        process >= LOCAL || self.last.known.contains(&Caller(process))
    }

    fn counts_as_unfit(&self, process: u64) -> bool {
        self.last.unfit.contains(&Caller(process))
    }

    /// Whether it fits beside few others only.
    fn is_unfit(&self, process: u64) -> bool {
        match is_spare(process) {
            true => self.has_unfit_spares,
            false => self.counts_as_unfit(process) && self.fits_all != Some(process),
        }
    }

    /// Whether nothing happens but that the workers of the session come again.
    fn is_plain(&self) -> bool {
        let is_expected = |(_, process): &(u64, u64)| self.has_state(*process);
        self.last.lost == 0 && self.dies.is_empty() && self.comes.iter().all(is_expected)
    }
}

fn is_spare(process: u64) -> bool {
    (SPARES..UNFIT).contains(&process)
}

/// How often those with state were let first.
fn turns(wait: &Wait, happened: &[Happened]) -> usize {
    let is_turn = |one: &&Happened| match one {
        Happened::AskedToRejoin { processes, is_everybody, .. } => {
            *is_everybody && processes.iter().any(|process| wait.has_state(*process))
        }
        _ => false,
    };
    happened.iter().filter(is_turn).count()
}

/// Only unfit workers are sent away, and none twice unless another worker came between. Returns how
/// often.
fn check_sent_away(wait: &Wait, happened: &[Happened]) -> usize {
    // Those that were sent away, and whether another one came since.
    let mut sent_away: BTreeMap<u64, bool> = BTreeMap::new();
    // When others were asked to join again.
    let mut returning: BTreeMap<u64, u64> = BTreeMap::new();
    let mut count = 0;
    for one in happened {
        match one {
            Happened::AskedToRejoin { at, processes, stale, in_order, .. } => {
                let is_turn = turns(wait, std::slice::from_ref(one)) > 0;
                let unfit = if is_turn { &[][..] } else { &in_order[..] };
                let is_unfit = |process: &u64| unfit.contains(process);
                let expected =
                    processes.iter().filter(|one| !is_unfit(one) && !stale.contains(one));
                returning.extend(expected.map(|process| (*process, *at)));
                for process in unfit {
                    count += 1;
                    assert!(wait.is_unfit(*process), "{process} is fit");
                    let before = sent_away.insert(*process, false);
                    assert!(before != Some(false), "{process} is sent away again");
                }
            }
            Happened::Asked { at, process, answer: Answer::Place(_), .. } => {
                let asked = returning.remove(process);
                let is_back = asked.is_some_and(|asked| at - asked < RETURN_TIMEOUT);
                let others = sent_away.iter_mut().filter(|(one, _)| *one != process && !is_back);
                others.for_each(|(_, came)| *came = true);
            }
            Happened::Asked { process, answer: Answer::Unfit, .. } => {
                returning.remove(process);
            }
            Happened::Asked { .. } | Happened::AskedForMore | Happened::Died { .. } => {}
        }
    }
    count
}

/// Places are kept from others only, and unfit workers come last.
fn check_answers(wait: &Wait, happened: &[Happened]) {
    for (place, one) in happened.iter().enumerate() {
        let before = &happened[..place];
        let has_asked = before.contains(&Happened::AskedForMore);
        match one {
            Happened::Asked { process, answer: Answer::Kept, .. } => {
                assert!(!has_asked, "places are kept for nobody");
                // If no places are kept for state, a spare is as good as a worker of the session.
                let waits_for_state = wait.last.kept != KeptPlaces::None;
                let is_awaited = *process >= LOCAL || waits_for_state && wait.has_state(*process);
                assert!(!is_awaited, "no place for {process}");
                let is_newcomer = wait.last.newcomers.contains(&Caller(*process));
                assert!(!is_newcomer || turns(wait, before) > 0, "no place for {process}");
            }
            Happened::Asked { process, answer: Answer::Place(_), .. } => {
                let is_early = wait.counts_as_unfit(*process) && !has_asked;
                assert!(!is_early, "{process} counts as unfit");
            }
            Happened::Asked { process, answer: Answer::Unfit, .. } => {
                let may_be_unfit = wait.counts_as_unfit(*process) || wait.is_unfit(*process);
                // In a crowd, a fit spare waits for its verdict.
                let is_crowded = wait.fits_all.is_some();
                assert!(may_be_unfit || is_crowded, "{process} is fit");
            }
            Happened::AskedForMore => assert!(!has_asked, "the user is told twice"),
            Happened::AskedToRejoin { .. } => assert!(!wait.is_plain(), "nobody is in the way"),
            Happened::Asked { .. } | Happened::Died { .. } => {}
        }
    }
    assert!(turns(wait, happened) <= MOST_TURNS);
}

/// The one that fits beside all others is judged in time. Returns how often it had to wait.
fn check_verdicts(wait: &Wait, happened: &[Happened]) -> usize {
    let mut since = None;
    let mut count = 0;
    let judged = happened.iter().skip_while(|one| **one != Happened::AskedForMore);
    for one in judged {
        match one {
            Happened::Asked { at, process, answer, .. } if wait.fits_all == Some(*process) => {
                if *answer != Answer::Unfit {
                    since = None;
                    continue;
                }
                count += 1;
                let waited = at - *since.get_or_insert(*at);
                assert!(waited <= LONGEST_UNJUDGED, "{process} is not judged for {waited} ms");
            }
            Happened::Died { process, .. } if wait.fits_all == Some(*process) => since = None,
            _ => {}
        }
    }
    count
}

/// The workers of a session make one. Returns whether one with state was left out all the same.
fn check_members(wait: &Wait, begun: &Begun, happened: &[Happened]) -> bool {
    let Begun { members, others } = begun;
    assert!(wait.usable[members.len()], "{members:?} make no run");
    let mut once = members.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), members.len(), "one of {members:?} has two places");
    let fits = |process: &u64| !wait.is_unfit(*process) || members.len() <= wait.crowd;
    assert!(members.iter().all(fits), "one of {members:?} is unfit");
    let is_new = |process: &u64| !wait.has_state(*process);
    let is_displaced = members.iter().any(is_new) && !others.iter().all(is_new);
    let any_is_as_good =
        wait.last.kept == KeptPlaces::None || happened.contains(&Happened::AskedForMore);
    if !is_displaced || any_is_as_good {
        return false;
    }
    // Workers that come and go use up the turns.
    assert!(!wait.dies.is_empty() && turns(wait, happened) == MOST_TURNS, "{others:?} have state");
    true
}

/// If enough workers are alive, the session begins, and in time. Else the user is asked for more.
fn check_end(wait: &Wait, player: &JoinPlayer, has_begun: bool) {
    if has_begun {
        let waited = player.now - player.last_change;
        return assert!(waited <= LONGEST_WAIT, "it began after {waited} ms");
    }
    let fit = player.alive().filter(|process| !wait.is_unfit(*process)).count();
    let suffices = (1..=fit.min(wait.places)).any(|workers| wait.usable[workers]);
    assert!(!suffices, "{fit} workers would do");
    assert!(player.happened.contains(&Happened::AskedForMore), "the user was not told");
}

/// The marks of a wait, in the order of [`ALL`].
fn marks(wait: &Wait, begun: Option<&Begun>, happened: &[Happened]) -> [bool; ALL.len()] {
    let placed = |of: u64| {
        let has_place = |one: &&Happened| match one {
            Happened::Asked { process, answer: Answer::Place(_), .. } => *process == of,
            _ => false,
        };
        happened.iter().filter(has_place).count()
    };
    let turn_count = turns(wait, happened);
    let rejoins = happened.iter().filter(|one| matches!(one, Happened::AskedToRejoin { .. }));
    let is_ghost = |one: &Happened| {
        matches!(one, Happened::Asked { answer: Answer::Place(_), has_ghost: true, .. })
    };
    let newcomer_died = |one: &Happened| match one {
        Happened::Died { process, had_place } => *had_place && (NEWCOMERS..LOCAL).contains(process),
        _ => false,
    };
    let is_unfit_spare = |one: &Happened| match one {
        Happened::Asked { process, answer: Answer::Unfit, .. } => is_spare(*process),
        _ => false,
    };
    let sends_away_spare = |one: &Happened| match one {
        Happened::AskedToRejoin { in_order, .. } => {
            let is_turn = turns(wait, std::slice::from_ref(one)) > 0;
            !is_turn && in_order.iter().any(|process| is_spare(*process))
        }
        _ => false,
    };
    let members = begun.map_or(&[][..], |begun| &begun.members);
    let lost = &wait.last.known[..wait.last.lost.min(wait.last.known.len())];
    [
        turn_count > 0,
        rejoins.count() > turn_count,
        happened.contains(&Happened::AskedForMore),
        members.iter().any(|process| wait.counts_as_unfit(*process)),
        happened.iter().any(is_ghost),
        wait.local.iter().any(|process| placed(*process) > 1),
        lost.iter().any(|one| placed(one.0) > 0),
        happened.iter().any(newcomer_died),
        check_sent_away(wait, happened) > 0,
        check_verdicts(wait, happened) > 0,
        members.iter().any(|process| wait.fits_all == Some(*process)),
        happened.iter().any(is_unfit_spare),
        happened.iter().any(sends_away_spare),
    ]
}

fn play(seed: u64, log: Log, counts: &mut Counts) {
    let mut random = Random::new(seed);
    let wait = Wait::draw(&mut random);
    log.note(|| format!("{wait:?}"));
    let mut player = wait.player(random, log);
    let begun = player.run();
    check_answers(&wait, &player.happened);
    check_end(&wait, &player, begun.is_some());
    let is_left_out =
        begun.as_ref().is_some_and(|begun| check_members(&wait, begun, &player.happened));
    let marks = marks(&wait, begun.as_ref(), &player.happened);
    let seen = ALL.into_iter().zip(marks).filter(|(_, seen)| *seen).map(|(what, _)| what);
    for what in seen.chain(is_left_out.then_some(LEFT_OUT)) {
        *counts.entry(what).or_default() += 1;
    }
}

#[test]
fn simulator_workers_ask_for_a_place_at_random() {
    let (mut counts, mut runs) = (Counts::new(), 0);
    each_seed(100_000, |seed, log| {
        play(seed, log, &mut counts);
        runs += 1;
    });
    let count = |what: &&str| counts.get(what).copied().unwrap_or(0);
    let never: Vec<_> = ALL.into_iter().filter(|what| count(what) == 0).collect();
    assert!(runs < 2000 || never.is_empty(), "{never:?} never happened: {counts:?}");
    assert!(runs < 2000 || 1000 * count(&LEFT_OUT) < runs, "{counts:?}");
}
