//! The desk at which workers ask for a place before a session.
//!
//! It decides who gets which place, who joins again for another order of places, and when the
//! session begins with how many workers. Its owner tells it who asks and who leaves. It carries out
//! what [`JoinDesk::poll`] returns. Times count from the beginning of the wait.

mod away;
mod verdicts;

use super::{Applicant, FitsBeside, KeptPlaces, LastSession, RejoinWait, Rejoined, Sufficiency};
use away::Away;
use core::time::Duration;
use verdicts::Verdicts;

/// How often those with state are let first. Each time makes an order that lasts, unless workers
/// come and go.
const MOST_TURNS: u32 = 2;

/// The answer to a worker that asks for a place. Only `Place` takes one; the others may ask again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It gets this place, which is its number.
    Place(usize),
    /// All places are taken.
    Full,
    /// No session could start beside it.
    Unfit,
    /// The free places are kept for other workers.
    Kept,
}

/// The next action of a desk's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Close the connections of these places. Their workers join again and take the first ones that
    /// are free.
    AskToRejoin(Vec<usize>),
    /// Tell the user that too few workers remain. Comes once.
    AskForMore,
    /// Wait for a worker, and not beyond this time.
    Wait(Option<Duration>),
    /// Begin the session with the workers of the first places.
    Begin(usize),
}

/// The places of a run until its session begins.
pub struct JoinDesk<W> {
    seats: Vec<Option<Seat<W>>>,
    /// The number of workers that got a place so far.
    admitted: u64,
    /// The random numbers of the local workers.
    local: Vec<u64>,
    /// Set after a session. At first every place must be taken, by anybody.
    again: Option<Again<W>>,
}

struct Seat<W> {
    worker: W,
    /// The number of workers that got a place before it.
    number: u64,
    /// It was asked to join again, and has not left yet.
    leaves: bool,
}

/// A wait after a session.
struct Again<W> {
    wait: RejoinWait,
    last: LastSession<W>,
    /// The places that only expected workers get. None once these have had their time.
    kept: usize,
    /// Whether only known workers may hold state. Else any worker is as good.
    needs_known: bool,
    /// Whether the workers that are listed as unfit are judged beside the present ones.
    judges: bool,
    /// The unfit workers that ask, and those of them that do not fit beside the present ones.
    verdicts: Verdicts<W>,
    /// The workers that are to join again, and are expected back.
    away: Away<W>,
    /// Whether a worker has joined or left since the present ones were judged.
    has_changed: bool,
    fits_beside: FitsBeside<W>,
    /// The time since which missing workers are waited for.
    counts_from: Duration,
    last_joined: Duration,
    /// Those with state join again before others do, until the first places are this number of
    /// theirs.
    turn: Option<usize>,
    turns: u32,
    asked_for_more: bool,
}

impl<W: Applicant> JoinDesk<W> {
    /// The desk of a run's first session, which needs all these workers.
    pub fn new(places: usize) -> Self {
        let seats = (0..places).map(|_| None).collect();
        JoinDesk { seats, admitted: 0, local: Vec::new(), again: None }
    }

    /// The same after a session. `fits` tells whether the run can continue with a number of
    /// workers, and `fits_beside` judges strangers, and unfit workers if too few others remain.
    pub fn again(
        places: usize,
        local: Vec<u64>,
        last: LastSession<W>,
        fits: impl Fn(usize) -> bool,
        fits_beside: FitsBeside<W>,
    ) -> Self {
        let kept = last.kept_places(places, local.len());
        let again = Again {
            wait: RejoinWait::new(last.failed(local.len()), places, fits),
            needs_known: last.kept != KeptPlaces::None,
            last,
            kept,
            judges: false,
            verdicts: Verdicts::new(),
            away: Away::new(),
            has_changed: false,
            fits_beside,
            counts_from: Duration::ZERO,
            last_joined: Duration::ZERO,
            turn: None,
            turns: 0,
            asked_for_more: false,
        };
        JoinDesk { local, again: Some(again), ..JoinDesk::new(places) }
    }

    /// The number of places.
    pub fn places(&self) -> usize {
        self.seats.len()
    }

    /// The number of free places.
    pub fn free(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is_none()).count()
    }

    /// The workers that have a place, by number.
    pub fn joined(&self) -> impl Iterator<Item = &W> {
        self.seats.iter().flatten().map(|seat| &seat.worker)
    }

    /// The present workers: the same without those that are to join again.
    pub fn here(&self) -> impl Iterator<Item = &W> {
        self.seats.iter().flatten().filter(|seat| !seat.leaves).map(|seat| &seat.worker)
    }

    /// A worker asks for a place.
    pub fn ask(&mut self, now: Duration, worker: &W) -> Answer {
        self.forget_late(now);
        let Some(place) = self.seats.iter().position(Option::is_none) else { return Answer::Full };
        if self.is_listed_as_unfit(worker) && !self.is_judged(worker) {
            return Answer::Unfit;
        }
        // A verdict takes a plan, so only those that would get a place are judged.
        if self.is_kept_from(worker) {
            return Answer::Kept;
        }
        if self.is_judged(worker) && self.is_unfit(worker, now) {
            return Answer::Unfit;
        }
        let is_back = self.again.as_mut().is_some_and(|again| again.away.remove(worker));
        let number = self.admitted;
        self.seats[place] = Some(Seat { worker: worker.clone(), number, leaves: false });
        self.admitted += 1;
        let known_first = self.known_first();
        if let Some(again) = &mut self.again {
            again.last_joined = now;
            again.verdicts.remove(worker);
            again.turn.take_if(|known| known_first >= *known);
        }
        if !is_back {
            self.company_changed(worker);
        }
        Answer::Place(place)
    }

    /// The connection of a place is being closed. Until it has ended, the place is taken, and its
    /// worker is not here.
    pub fn leaving(&mut self, place: usize) {
        if let Some(worker) = self.leave(place) {
            self.company_changed(&worker);
        }
    }

    /// The connection of a place has ended.
    pub fn left(&mut self, place: usize) {
        self.leaving(place);
        if let Some(seat) = self.seats.get_mut(place) {
            *seat = None;
        }
    }

    /// Returns the next action. Call it after every event, until it says to wait or to begin.
    pub fn poll(&mut self, now: Duration) -> Next {
        self.forget_late(now);
        let unfit = self.no_longer_fit();
        let misplaced = self.misplaced(&unfit);
        if !misplaced.is_empty() {
            return self.move_up(now, misplaced, &unfit);
        }
        let here = self.here().count();
        if here == self.seats.len() {
            return Next::Begin(here);
        }
        let local_here = self.here().filter(|worker| self.is_local(worker)).count();
        // A local worker joins, or its process ends, which its owner notices.
        let Some(again) = self.again.as_ref().filter(|_| local_here >= self.local.len()) else {
            return Next::Wait(None);
        };
        let sufficiency = again.wait.sufficiency(Rejoined {
            workers: here,
            known: self.known_here(),
            has_gap: self.joined().count() > here,
            since_begin: now.saturating_sub(again.counts_from),
            since_last: now.saturating_sub(again.last_joined),
        });
        match sufficiency {
            Sufficiency::Enough(workers) => match self.let_known_first(now, workers) {
                Next::Begin(workers) => self.begin(now, workers),
                next => next,
            },
            Sufficiency::OpenFor(time) => Next::Wait(Some(now.saturating_add(time))),
            Sufficiency::Gap => Next::Wait(None),
            Sufficiency::TooFew => self.count_on_anybody(),
        }
    }

    fn is_local(&self, worker: &W) -> bool {
        self.local.contains(&worker.instance())
    }

    /// Whether this worker may have state of the run, or is as good as one that has.
    fn has_state(&self, worker: &W) -> bool {
        let again = self.again.as_ref().filter(|again| again.needs_known);
        self.is_local(worker) || again.is_none_or(|again| is_among(worker, &again.last.known))
    }

    /// Whether places are kept for this worker.
    fn is_expected(&self, worker: &W) -> bool {
        match &self.again {
            Some(again) if again.needs_known => {
                self.has_state(worker) || is_among(worker, &again.last.newcomers)
            }
            _ => self.is_local(worker),
        }
    }

    /// The number of present workers that may have state.
    fn known_here(&self) -> usize {
        self.here().filter(|worker| self.has_state(worker)).count()
    }

    /// The number of first places that those with state have and keep.
    fn known_first(&self) -> usize {
        let keeps = |seat: &Seat<W>| !seat.leaves && self.has_state(&seat.worker);
        self.seats.iter().take_while(|seat| seat.as_ref().is_some_and(keeps)).count()
    }

    /// Whether no session could start beside this worker, as far as is known.
    fn is_listed_as_unfit(&self, worker: &W) -> bool {
        self.again.as_ref().is_some_and(|again| is_among(worker, &again.last.unfit))
    }

    /// Whether this worker gets a place only if a session could start beside it: a stranger, or,
    /// once too few others remain, one that is listed as unfit.
    fn is_judged(&self, worker: &W) -> bool {
        let Some(again) = &self.again else { return false };
        let LastSession { known, newcomers, unfit, .. } = &again.last;
        match is_among(worker, unfit) {
            true => again.judges,
            false => {
                !self.is_local(worker) && !is_among(worker, known) && !is_among(worker, newcomers)
            }
        }
    }

    /// Judges a worker. It gets no place if it does not fit, or if others are to be judged first.
    /// A verdict holds until another worker joins or leaves.
    fn is_unfit(&mut self, worker: &W, now: Duration) -> bool {
        let Some(again) = &mut self.again else { return false };
        // One that was asked to join again had a place, so its turn was before.
        let is_its_turn = again.away.contains(worker) || again.verdicts.is_turn_of(worker, now);
        if is_its_turn && self.fits_beside_others(worker, &[]) {
            return false;
        }
        if is_its_turn {
            self.deny(worker, now);
        }
        true
    }

    /// Whether a session could start on this worker and the others that are here or expected back.
    /// These places do not count.
    fn fits_beside_others(&self, worker: &W, without: &[usize]) -> bool {
        let Some(again) = &self.again else { return true };
        let is_other = |one: &&W| !one.is_same_process(worker);
        let seats = (0..).zip(&self.seats).filter(|(place, _)| !without.contains(place));
        let here = seats.filter_map(|(_, seat)| seat.as_ref().filter(|seat| !seat.leaves));
        let here = here.map(|seat| &seat.worker).filter(is_other);
        // No more come back than find a place.
        let open = self.seats.len().saturating_sub(self.here().count());
        let back = again.away.iter().filter(is_other).take(open);
        let others: Vec<W> = here.chain(back).cloned().collect();
        (again.fits_beside)(worker, &others)
    }

    /// A worker does not fit beside the others that are here or expected back. It is none of them
    /// any more.
    fn deny(&mut self, worker: &W, now: Duration) {
        let Some(again) = &mut self.again else { return };
        if again.away.remove(worker) {
            self.company_changed(worker);
        }
        if let Some(again) = &mut self.again {
            again.verdicts.deny(worker, now);
        }
    }

    /// This worker came or went, so all others have other company.
    fn company_changed(&mut self, by: &W) {
        if let Some(again) = &mut self.again {
            again.has_changed = true;
            again.verdicts.company_changed(by);
        }
    }

    /// Those that were asked to join again and did not come back count as gone.
    fn forget_late(&mut self, now: Duration) {
        let late = self.again.as_mut().map(|again| again.away.remove_late(now));
        for worker in late.unwrap_or_default() {
            self.company_changed(&worker);
        }
    }

    /// Whether all free places are kept for other workers. A worker that is to join
    /// again needs its place.
    fn is_kept_from(&self, worker: &W) -> bool {
        let Some(again) = &self.again else { return false };
        let is_kept_for = |one: &W| match again.turn {
            Some(_) => self.has_state(one),
            None => self.is_expected(one),
        };
        let kept = if again.turn.is_some() { self.seats.len() } else { again.kept };
        let here = self.here().filter(|one| is_kept_for(one)).count();
        !is_kept_for(worker) && self.free() <= kept.saturating_sub(here)
    }

    /// The places of workers that do not fit beside the others any more. The last ones go
    /// first, and the others may stay if they fit without them.
    fn no_longer_fit(&mut self) -> Vec<usize> {
        let Some(again) = &mut self.again else { return Vec::new() };
        let mut unfit = Vec::new();
        if !std::mem::take(&mut again.has_changed) {
            return unfit;
        }
        for (place, seat) in self.seats.iter().enumerate().rev() {
            let seat = seat.as_ref().filter(|seat| !seat.leaves && !self.is_stale(seat));
            let Some(worker) = seat.map(|seat| &seat.worker) else { continue };
            if self.is_judged(worker) && !self.fits_beside_others(worker, &unfit) {
                unfit.push(place);
            }
        }
        unfit
    }

    /// The places whose workers are to join again: those behind a free one, the older of two of one
    /// process, and the `unfit` ones.
    fn misplaced(&self, unfit: &[usize]) -> Vec<usize> {
        if self.again.is_none() {
            return Vec::new();
        }
        let first_free = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        let is_misplaced = |place: usize, seat: &Seat<W>| {
            place > first_free || self.is_stale(seat) || unfit.contains(&place)
        };
        let seats = (0..).zip(&self.seats).filter_map(|(n, seat)| Some((n, seat.as_ref()?)));
        seats.filter(|(n, seat)| !seat.leaves && is_misplaced(*n, seat)).map(|(n, _)| n).collect()
    }

    /// Whether its process lost this connection and has a newer place.
    fn is_stale(&self, seat: &Seat<W>) -> bool {
        let mut others = self.seats.iter().flatten();
        others.any(|one| one.number > seat.number && one.worker.is_same_process(&seat.worker))
    }

    /// These workers join again. If some have state, the run waits for them as it did at first. An
    /// unfit one is not waited for, and those with the `unfit` places are sent away.
    fn move_up(&mut self, now: Duration, places: Vec<usize>, unfit: &[usize]) -> Next {
        let is_awaited = |worker: &W| self.has_state(worker) && !self.is_listed_as_unfit(worker);
        let back = places.iter().filter(|place| !unfit.contains(place));
        let mut leaving = back.filter_map(|place| self.seats.get(*place)?.as_ref());
        let waits = leaving.any(|seat| is_awaited(&seat.worker));
        if let Some(again) = self.again.as_mut().filter(|_| waits) {
            again.counts_from = now;
        }
        for place in unfit {
            let Some(worker) = self.leave(*place) else { continue };
            self.company_changed(&worker);
            self.deny(&worker, now);
        }
        self.ask_back(now, &places);
        Next::AskToRejoin(places)
    }

    /// Workers are to join again for another order of places.
    fn ask_back(&mut self, now: Duration, places: &[usize]) {
        for place in places {
            let is_stale = |seat: &Seat<W>| self.is_stale(seat);
            let is_stale = self.seats.get(*place).and_then(Option::as_ref).is_some_and(is_stale);
            let Some(worker) = self.leave(*place) else { continue };
            match &mut self.again {
                Some(again) if !is_stale => again.away.add(worker, now),
                _ => self.company_changed(&worker),
            }
        }
    }

    /// The connection of a place is being closed. Returns its worker if that is news.
    fn leave(&mut self, place: usize) -> Option<W> {
        let seat = self.seats.get_mut(place)?.as_mut()?;
        (!std::mem::replace(&mut seat.leaves, true)).then(|| seat.worker.clone())
    }

    /// A session with this number of workers takes those with the first places. If one with state
    /// would not be among them, but one without, all join again, those with state first.
    fn let_known_first(&mut self, now: Duration, workers: usize) -> Next {
        let have_state: Vec<bool> = self.joined().map(|worker| self.has_state(worker)).collect();
        let (first, others) = have_state.split_at(workers.min(have_state.len()));
        let is_in_order = !first.contains(&false) || !others.contains(&true);
        let known_here = self.known_here();
        let Some(again) = &mut self.again else { return Next::Begin(workers) };
        if is_in_order || again.turns >= MOST_TURNS {
            return Next::Begin(workers);
        }
        again.turns += 1;
        again.turn = Some(known_here);
        (again.counts_from, again.last_joined) = (now, now);
        let all: Vec<usize> = (0..have_state.len()).collect();
        self.ask_back(now, &all);
        Next::AskToRejoin(all)
    }

    /// A session begins, unless one of its workers does not fit without those that it leaves out.
    fn begin(&mut self, now: Duration, workers: usize) -> Next {
        let has_others =
            self.again.as_ref().is_some_and(|again| again.away.iter().next().is_some());
        if !has_others && self.here().count() == workers {
            return Next::Begin(workers);
        }
        let mut unfit = Vec::new();
        for (place, seat) in self.seats.iter().enumerate().take(workers).rev() {
            let worker = seat.as_ref().map(|seat| &seat.worker);
            let Some(worker) = worker.filter(|worker| self.is_judged(worker)) else { continue };
            let members = (0..workers).filter(|one| *one != place && !unfit.contains(one));
            let others = members.filter_map(|one| self.seats.get(one)?.as_ref());
            let others: Vec<W> = others.map(|seat| seat.worker.clone()).collect();
            if self.again.as_ref().is_some_and(|again| !(again.fits_beside)(worker, &others)) {
                unfit.push(place);
            }
        }
        if unfit.is_empty() {
            return Next::Begin(workers);
        }
        let mut places = unfit.clone();
        places.sort_unstable();
        self.move_up(now, places, &unfit)
    }

    /// Those for whom places are kept have had their time. A worker that does not fit beside all of
    /// them may fit beside the present ones.
    fn count_on_anybody(&mut self) -> Next {
        let Some(again) = &mut self.again else { return Next::Wait(None) };
        (again.turn, again.kept, again.needs_known, again.judges) = (None, 0, false, true);
        match std::mem::replace(&mut again.asked_for_more, true) {
            true => Next::Wait(None),
            false => Next::AskForMore,
        }
    }
}

/// Whether one of these is the same process.
fn is_among<W: Applicant>(worker: &W, all: &[W]) -> bool {
    all.iter().any(|one| one.is_same_process(worker))
}

#[cfg(test)]
mod tests;
