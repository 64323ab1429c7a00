//! Waits at the desk, text in and text out.

use super::verdicts::MOST_JUDGED;
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq)]
struct Process(u64);

impl Applicant for Process {
    fn is_same_process(&self, other: &Self) -> bool {
        self == other
    }

    fn instance(&self) -> u64 {
        self.0
    }
}

/// A desk of four places after a session of `workers` workers, 1 to `workers`, of which `lost`
/// are lost. 6 waits, and 8 and 9 are unfit. Workers from 8 on fit beside others if their
/// numbers differ by more than two. The others fit.
fn desk(workers: usize, lost: usize, kept: KeptPlaces, local: &[u64]) -> JoinDesk<Process> {
    let known: Vec<_> = (1..=workers as u64).map(Process).collect();
    let newcomers = if kept == KeptPlaces::All { vec![Process(6)] } else { Vec::new() };
    let unfit = vec![Process(8), Process(9)];
    let last = LastSession { workers, lost, newcomers, kept, known, unfit };
    let far = |one: &Process, others: &[Process]| {
        one.0 < 8 || others.iter().all(|at| at.0.abs_diff(one.0) > 2)
    };
    JoinDesk::again(4, local.to_vec(), last, |workers| workers != 3, Box::new(far))
}

/// Plays lines `MILLISECONDS ask WORKER: ANSWER`, `.. leaves PLACE`, `.. left PLACE` and `.. poll:
/// NEXT`.
fn play(mut desk: JoinDesk<Process>, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expected) = line.split_once(": ").unwrap_or((line, ""));
        let words: Vec<_> = event.split(' ').collect();
        let now = Duration::from_millis(words[0].parse().unwrap());
        let number = || words[2].parse::<u64>().unwrap();
        let came = match words[1] {
            "ask" => format!("{:?}", desk.ask(now, &Process(number()))),
            "poll" => format!("{:?}", desk.poll(now)),
            "leaves" => {
                desk.leaving(number() as usize);
                String::new()
            }
            _ => {
                desk.left(number() as usize);
                String::new()
            }
        };
        assert_eq!(came, expected, "{line}");
    }
}

/// A place has one worker, also while its connection is being closed. JOIN-6.
#[test]
fn a_first_session_needs_every_place() {
    play(
        JoinDesk::new(2),
        "0 ask 1: Place(0)
         0 poll: Wait(None)
         9 left 0
         9 ask 2: Place(0)
         9 ask 3: Place(1)
         9 ask 4: Full
         9 leaves 0
         9 poll: Wait(None)
         10 left 0
         10 ask 2: Place(0)
         10 poll: Begin(2)",
    );
}

/// Two places are kept. Three are here, the run fits two, and the stranger came first.
#[test]
fn a_stranger_does_not_push_out_a_worker_with_state() {
    play(
        desk(2, 0, KeptPlaces::Remaining, &[]),
        "0 ask 7: Place(0)
         0 ask 5: Place(1)
         0 ask 4: Kept
         10 ask 1: Place(2)
         20 ask 2: Place(3)
         20 poll: Begin(4)
         30 left 1
         30 poll: AskToRejoin([2, 3])
         40 poll: Wait(Some(15.03s))
         50 left 2
         50 left 3
         60 ask 1: Place(1)
         60 ask 2: Place(2)
         1560 poll: AskToRejoin([0, 1, 2])
         1570 left 0
         1570 ask 7: Kept
         1571 ask 2: Place(0)
         1572 left 1
         1573 ask 1: Place(1)
         1575 left 2
         1575 ask 7: Place(2)
         3075 poll: Begin(2)",
    );
}

/// The first to join again are behind those that have not left, so they move up. Others may not
/// come between.
#[test]
fn a_turn_ends_once_those_with_state_have_the_first_places() {
    play(
        desk(1, 0, KeptPlaces::All, &[70]),
        "0 ask 6: Place(0)
         0 ask 70: Place(1)
         0 ask 1: Place(2)
         1500 poll: AskToRejoin([0, 1, 2])
         1501 left 2
         1501 ask 1: Place(2)
         1502 ask 70: Place(3)
         1503 left 0
         1503 poll: AskToRejoin([2, 3])
         1504 ask 6: Kept
         1505 left 1
         1506 ask 70: Place(0)
         1507 ask 6: Kept
         1508 ask 1: Place(1)
         1509 left 2
         1510 ask 6: Place(2)",
    );
}

/// The unfit ones fit beside the survivor, but not both of them.
#[test]
fn unfit_workers_are_judged_beside_those_that_are_here() {
    play(
        desk(2, 1, KeptPlaces::Remaining, &[]),
        "0 ask 8: Unfit
         14999 poll: Wait(Some(15s))
         15000 poll: AskForMore
         15000 poll: Wait(None)
         15001 ask 9: Place(0)
         15001 ask 8: Unfit
         15002 ask 1: Place(1)
         15003 left 0
         15003 poll: AskToRejoin([1])
         15004 left 1
         15005 ask 1: Place(0)
         15006 ask 8: Place(1)",
    );
}

#[test]
fn local_workers_and_newcomers_have_their_places() {
    play(
        desk(2, 0, KeptPlaces::All, &[70]),
        "0 ask 5: Kept
         0 ask 6: Place(0)
         0 ask 1: Place(1)
         0 poll: Wait(None)
         100 ask 70: Place(2)
         100 poll: Wait(Some(1.6s))
         1600 poll: AskToRejoin([0, 1, 2])",
    );
    play(
        desk(2, 0, KeptPlaces::None, &[]),
        "0 ask 5: Place(0)
         0 ask 7: Place(1)
         1500 poll: Begin(2)",
    );
}

/// A spare leaves late, and the survivor behind it joins again.
#[test]
fn survivors_that_are_asked_to_join_again_have_time() {
    play(
        desk(2, 0, KeptPlaces::Remaining, &[]),
        "0 ask 5: Place(0)
         0 ask 1: Place(1)
         14000 poll: Wait(Some(15s))
         14000 left 0
         14000 poll: AskToRejoin([1])
         14000 left 1
         15000 poll: Wait(Some(29s))
         15000 ask 1: Place(0)
         28999 poll: Wait(Some(29s))
         29000 poll: Begin(1)",
    );
}

/// A spare that asks early is no survivor. Once too few remain, any worker is as good.
#[test]
fn a_spare_does_not_count_as_a_worker_with_state() {
    play(
        desk(3, 1, KeptPlaces::Remaining, &[]),
        "0 ask 5: Place(0)
         0 ask 1: Place(1)
         1500 poll: Wait(Some(15s))
         15000 poll: Begin(2)",
    );
    play(
        desk(3, 1, KeptPlaces::Remaining, &[]),
        "15000 poll: AskForMore
         15000 ask 5: Place(0)
         15000 ask 7: Place(1)
         16000 poll: Wait(Some(16.5s))
         16500 poll: Begin(2)",
    );
}

/// Its place is taken until it has left, also if all places are.
#[test]
fn a_session_does_not_begin_with_workers_that_leave() {
    play(
        desk(4, 1, KeptPlaces::None, &[]),
        "0 ask 1: Place(0)
         0 ask 2: Place(1)
         5 left 0
         5 poll: AskToRejoin([1])
         6 ask 3: Place(0)
         6 ask 4: Place(2)
         6 ask 5: Place(3)
         1506 poll: Wait(None)
         1507 left 1
         1507 poll: AskToRejoin([2, 3])",
    );
}

/// A worker before the local one dies, so the local one joins twice.
#[test]
fn a_local_worker_that_joins_twice_is_one() {
    play(
        desk(3, 1, KeptPlaces::Remaining, &[70]),
        "0 ask 1: Place(0)
         1 ask 70: Place(1)
         1 poll: Wait(Some(1.501s))
         2 left 0
         2 poll: AskToRejoin([1])
         3 left 1
         9000 poll: Wait(None)
         9000 ask 70: Place(0)
         9000 poll: Wait(Some(15.002s))",
    );
}

/// It was unfit beside two others, and both are lost.
#[test]
fn an_unfit_worker_may_come_once_it_is_alone() {
    play(
        desk(2, 2, KeptPlaces::All, &[]),
        "1500 poll: Wait(Some(6s))
         6000 poll: AskForMore
         6001 ask 7: Place(0)
         6002 ask 9: Unfit
         6003 left 0
         6003 ask 9: Place(0)
         7503 poll: Begin(1)",
    );
}

/// It was let in beside one survivor. Then another one comes back, beside which it does not fit.
#[test]
fn an_unfit_worker_leaves_a_survivor_its_place() {
    play(
        desk(2, 0, KeptPlaces::Remaining, &[]),
        "15000 poll: AskForMore
         15001 ask 5: Place(0)
         15001 ask 9: Place(1)
         15001 poll: Wait(Some(16.501s))
         15002 ask 7: Place(2)
         15002 poll: AskToRejoin([1])
         15003 left 1
         15003 poll: AskToRejoin([2])
         15004 left 2
         15005 ask 7: Place(1)
         15005 ask 9: Unfit
         16505 poll: Begin(2)",
    );
}

/// It asks while a survivor is away for a moment, which was asked to join again.
#[test]
fn an_unfit_worker_that_was_sent_away_stays_away_until_others_come_or_go() {
    let sent_away = "15000 poll: AskForMore
         15001 ask 5: Place(0)
         15001 ask 9: Place(1)
         15002 ask 7: Place(2)
         15002 poll: AskToRejoin([1])
         15002 ask 9: Unfit
         15003 left 1
         15003 ask 9: Unfit
         15003 poll: AskToRejoin([2])
         15004 ask 9: Unfit
         15004 left 2
         15005 ask 9: Unfit\n";
    let survivor_left = "15006 ask 7: Place(1)
         15007 ask 9: Unfit
         15008 left 1
         15009 ask 9: Place(1)";
    let survivor_stays_away = "25002 ask 9: Unfit
         25003 ask 9: Place(1)";
    for then in [survivor_left, survivor_stays_away] {
        play(desk(2, 0, KeptPlaces::Remaining, &[]), &[sent_away, then].concat());
    }
}

/// They fit beside one survivor and each other, and both came. One is enough to send away.
#[test]
fn no_more_unfit_workers_are_sent_away_than_is_needed() {
    let unfit = vec![Process(8), Process(9)];
    let (kept, newcomers, known) = (KeptPlaces::All, Vec::new(), vec![Process(1), Process(2)]);
    let last = LastSession { workers: 2, lost: 0, newcomers, kept, known, unfit };
    let crowd = |_: &Process, others: &[Process]| others.len() < 3;
    let desk = JoinDesk::again(5, Vec::new(), last, |_| true, Box::new(crowd));
    play(
        desk,
        "15000 poll: AskForMore
         15001 ask 8: Place(0)
         15001 ask 9: Place(1)
         15002 ask 1: Place(2)
         15002 ask 2: Place(3)
         15002 poll: AskToRejoin([1])
         15003 left 1
         15003 ask 9: Unfit
         15003 poll: AskToRejoin([2, 3])
         15004 left 2
         15004 left 3
         15005 ask 9: Unfit
         15006 ask 1: Place(1)
         15006 ask 2: Place(2)
         15007 ask 9: Unfit
         16506 poll: Begin(3)",
    );
}

/// Its connection broke, and it asks again before the boss notices. It needs one place. JOIN-9.
#[test]
fn a_process_has_one_place() {
    play(
        desk(2, 0, KeptPlaces::Remaining, &[]),
        "0 ask 1: Place(0)
         0 ask 2: Place(1)
         1 ask 1: Place(2)
         1 poll: AskToRejoin([0])
         2 left 0
         2 poll: AskToRejoin([1, 2])
         3 left 2
         4 left 1
         5 ask 2: Place(0)
         5 ask 1: Place(1)
         1505 poll: Begin(2)",
    );
}

/// One worker took part and may be lost, so no place is kept. It comes again, with the only state.
#[test]
fn spares_do_not_replace_the_only_worker_with_state() {
    play(
        desk(1, 1, KeptPlaces::Remaining, &[]),
        "0 ask 5: Place(0)
         0 ask 7: Place(1)
         0 ask 1: Place(2)
         1500 poll: AskToRejoin([0, 1, 2])
         1501 left 0
         1501 left 1
         1501 left 2
         1502 ask 5: Kept
         1503 ask 1: Place(0)
         1504 ask 5: Place(1)
         3004 poll: Begin(2)",
    );
}

#[test]
fn after_a_session_without_state_all_but_local_workers_are_as_good() {
    let desk = |local: &[u64]| {
        let last = LastSession::without_state(2, Vec::new());
        let all = |_: &Process, _: &[Process]| true;
        JoinDesk::again(2, local.to_vec(), last, |workers| workers == 2, Box::new(all))
    };
    play(
        desk(&[]),
        "0 ask 7: Place(0)
         0 poll: Wait(Some(15s))
         9000 ask 5: Place(1)
         9000 poll: Begin(2)",
    );
    play(
        desk(&[]),
        "1000 ask 7: Place(0)
         15000 poll: AskForMore
         15000 poll: Wait(None)
         90000 ask 5: Place(1)
         90000 poll: Begin(2)",
    );
    // The local worker is about to start.
    play(
        desk(&[3]),
        "0 ask 7: Place(0)
         0 ask 8: Kept
         900 ask 3: Place(1)
         900 poll: Begin(2)",
    );
}

/// A stranger that fits beside none of those that come again is sent away.
#[test]
fn after_a_session_without_state_a_stranger_keeps_nobody_out() {
    let last = LastSession::without_state(2, vec![Process(1), Process(2)]);
    let far = |one: &Process, others: &[Process]| others.iter().all(|at| at.0.abs_diff(one.0) < 5);
    play(
        JoinDesk::again(2, Vec::new(), last, |workers| workers == 2, Box::new(far)),
        "0 ask 9: Place(0)
         500 ask 1: Place(1)
         500 poll: AskToRejoin([0])",
    );
}

/// Each verdict takes a plan.
#[test]
fn a_crowd_of_unfit_workers_is_judged_in_part() {
    let (judged, count) = (Arc::new(AtomicUsize::new(0)), 20);
    let counter = judged.clone();
    let unfit: Vec<_> = (100..100 + count).map(Process).collect();
    let (kept, newcomers, known) = (KeptPlaces::All, Vec::new(), Vec::new());
    let last = LastSession { workers: 1, lost: 1, newcomers, kept, known, unfit };
    let never = move |_: &Process, _: &[Process]| {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    };
    let mut desk = JoinDesk::again(2, Vec::new(), last, |_| true, Box::new(never));
    let late = Duration::from_secs(60);
    assert_eq!(desk.poll(late), Next::AskForMore);
    for _ in 0..3 {
        for process in (100..100 + count).map(Process) {
            assert_eq!(desk.ask(late, &process), Answer::Unfit);
        }
    }
    assert_eq!(judged.load(Ordering::Relaxed), MOST_JUDGED);
}

/// A desk of two places after a session of one worker, with `count` unfit workers from 100 on. The
/// last fits beside any other, and the others beside none. It waits for anybody. Counts the
/// verdicts on each.
fn crowded_desk(count: u64) -> (JoinDesk<Process>, Arc<Mutex<Vec<u32>>>) {
    let judged = Arc::new(Mutex::new(vec![0; count as usize]));
    let unfit: Vec<_> = (100..100 + count).map(Process).collect();
    let (kept, newcomers, known) = (KeptPlaces::All, Vec::new(), vec![Process(1)]);
    let last = LastSession { workers: 1, lost: 1, newcomers, kept, known, unfit };
    let counts = judged.clone();
    let only_last = move |worker: &Process, _: &[Process]| {
        counts.lock().unwrap()[(worker.0 - 100) as usize] += 1;
        worker.0 == 99 + count
    };
    let mut desk = JoinDesk::again(2, Vec::new(), last, |n| n == 2, Box::new(only_last));
    assert_eq!(desk.poll(Duration::from_secs(60)), Next::AskForMore);
    (desk, judged)
}

/// All ask once a second, in the same order. Nobody comes or goes.
#[test]
fn a_fit_worker_behind_a_crowd_of_unfit_ones_is_judged() {
    let (mut desk, judged) = crowded_desk(20);
    for second in 60..80 {
        for process in (100..120).map(Process) {
            assert_eq!(desk.ask(Duration::from_secs(second), &process), Answer::Unfit);
        }
        let sum: usize = judged.lock().unwrap().iter().map(|count| *count as usize).sum();
        assert_eq!(sum, if second < 70 { MOST_JUDGED } else { 2 * MOST_JUDGED });
    }
    let last = Duration::from_secs(80);
    let answers: Vec<_> = (100..120).map(|process| desk.ask(last, &Process(process))).collect();
    assert_eq!(answers.iter().filter(|answer| **answer == Answer::Unfit).count(), 19);
    assert_eq!(answers[19], Answer::Place(0));
    assert_eq!(*judged.lock().unwrap(), [1; 20]);
}

/// A worker joins and dies again and again, so that every verdict is void soon.
#[test]
fn unfit_workers_are_judged_in_turn_whoever_comes_and_goes() {
    let (mut desk, judged) = crowded_desk(20);
    for second in 60..72 {
        let now = Duration::from_secs(second);
        for process in (100..119).map(Process) {
            assert_eq!(desk.ask(now, &process), Answer::Unfit);
        }
        if second % 3 == 0 {
            assert_eq!(desk.ask(now, &Process(1)), Answer::Place(0));
            desk.left(0);
        }
    }
    let judged = judged.lock().unwrap();
    let (least, most) = (judged[..19].iter().min(), judged[..19].iter().max());
    assert_eq!((least, most), (Some(&1), Some(&3)), "{judged:?}");
}

/// One that does not ask any more holds up nobody.
#[test]
fn unfit_workers_that_are_gone_lose_their_turn() {
    let (mut desk, judged) = crowded_desk(40);
    for process in (100..140).map(Process) {
        assert_eq!(desk.ask(Duration::from_secs(60), &process), Answer::Unfit);
    }
    let last = Process(139);
    assert_eq!(desk.ask(Duration::from_secs(69), &last), Answer::Unfit);
    assert_eq!(desk.ask(Duration::from_secs(70), &last), Answer::Place(0));
    assert_eq!(judged.lock().unwrap().iter().sum::<u32>(), MOST_JUDGED as u32 + 1);
}

/// They fit beside one other. The survivors come later.
#[test]
fn a_stranger_is_judged_when_it_asks_and_leaves_survivors_their_places() {
    let (kept, newcomers, unfit) = (KeptPlaces::Remaining, Vec::new(), Vec::new());
    let known = vec![Process(1), Process(2)];
    let last = LastSession { workers: 2, lost: 0, newcomers, kept, known, unfit };
    let crowd = |_: &Process, others: &[Process]| others.len() < 2;
    play(
        JoinDesk::again(4, Vec::new(), last, |_| true, Box::new(crowd)),
        "0 ask 5: Place(0)
         0 ask 7: Place(1)
         1 ask 4: Kept
         2 ask 1: Place(2)
         2 poll: AskToRejoin([1])
         3 left 1
         3 poll: AskToRejoin([2])
         4 left 2
         4 ask 7: Unfit
         4 ask 4: Unfit
         5 ask 1: Place(1)
         6 ask 7: Unfit
         7 ask 2: Place(2)
         7 poll: AskToRejoin([0])
         8 left 0
         8 poll: AskToRejoin([1, 2])
         9 left 1
         9 left 2
         10 ask 5: Unfit
         11 ask 1: Place(0)
         12 ask 2: Place(1)
         13 ask 5: Unfit
         1512 poll: Begin(2)",
    );
}

/// It fits beside worker 1 and others. The session has two workers, and 1 is not among them.
#[test]
fn a_session_does_not_begin_with_a_stranger_that_does_not_fit_without_the_others() {
    let (kept, newcomers, unfit) = (KeptPlaces::None, Vec::new(), Vec::new());
    let known = vec![Process(1), Process(2)];
    let last = LastSession { workers: 2, lost: 0, newcomers, kept, known, unfit };
    let beside_1 =
        |_: &Process, others: &[Process]| others.is_empty() || others.contains(&Process(1));
    play(
        JoinDesk::again(4, Vec::new(), last, |workers| workers == 2, Box::new(beside_1)),
        "0 ask 5: Place(0)
         0 ask 2: Place(1)
         0 ask 1: Place(2)
         0 poll: Wait(Some(1.5s))
         1500 poll: AskToRejoin([0])
         1501 left 0
         1501 poll: AskToRejoin([1, 2])
         1502 left 1
         1502 left 2
         1503 ask 5: Unfit
         1504 ask 1: Place(0)
         1504 ask 2: Place(1)
         3004 poll: Begin(2)",
    );
}
