//! Everything that can strike a run strikes it at random, again and again, whatever the model, the cut and the network.

use crate::course::Course;
use crate::network::Conditions;
use crate::recovery::another;
use crate::seeds::{each_seed, Log};
use crate::strikes::{Mishap, Strike, Strikes, BOSS_GIVES_UP};
use crate::{models, Setting};
use pipeline::ids::WorkerId;
use std::collections::BTreeMap;
use testkit::Random;

/// What strikes one membership of so many workers.
fn strikes(random: &mut Random, workers: u64) -> Strikes {
    let mut strikes = Strikes::default();
    let time = |random: &mut Random| *random.pick(&[1, 1000, 100_000, BOSS_GIVES_UP - 1]);
    for _ in 0..random.below(4) {
        let worker = WorkerId(random.below(workers) as u16);
        let group = (0..workers as u16).map(WorkerId).filter(|_| random.chance(40)).collect();
        let strike = match random.below(8) {
            0 => Strike::Kill(worker),
            1 | 2 => Strike::Pause(worker, time(random)),
            3 => Strike::Silence(worker),
            4 | 5 => Strike::Hold(group, time(random)),
            6 => Strike::Split(group),
            _ => Strike::KillBoss,
        };
        strikes.events.insert(1 + random.below(1500), strike);
    }
    for _ in 0..random.below(4) {
        let mishap = match random.chance(50) {
            true => Mishap::Late(time(random)),
            false => Mishap::Twice(time(random)),
        };
        strikes.frames.insert(1 + random.below(1000), mishap);
    }
    strikes
}

/// One run; gives how often what struck it.
pub fn run(seed: u64, log: Log) -> BTreeMap<&'static str, u64> {
    let mut random = Random::new(seed);
    let graph = models::all().swap_remove(random.below(models::all().len() as u64) as usize);
    let first = Setting::random(&mut random, &graph);
    let fewer = (1..first.workers()).rev().map(|workers| another(&mut random, &graph, &first, workers));
    let fewer: Vec<Setting> = fewer.collect();
    let ways = [vec![first], fewer].concat();
    let copies = (1 + random.below(3), random.chance(60).then(|| 1 + random.below(2)));
    let (steps, conditions) = (2 + random.below(5), Conditions::random(&mut random));
    let struck: Vec<Strikes> = (0..4).map(|_| strikes(&mut random, ways[0].workers() as u64)).collect();
    log.note(|| format!("{}: {:?}, {conditions:?}, {struck:?}", graph.name(), ways[0]));
    let course = Course::new(graph, ways, copies, steps).under(conditions, random.next());
    let mut counts = BTreeMap::new();
    for membership in course.play(&struck, log) {
        let strikes = membership.struck.strikes.iter().map(|strike| match strike {
            Strike::Kill(_) => "killed",
            Strike::Pause(..) => "paused",
            Strike::Silence(_) => "silent",
            Strike::Hold(..) => "held",
            Strike::Split(_) => "split",
            Strike::KillBoss => "the boss",
        });
        let mishaps = membership.struck.mishaps.iter().map(|mishap| match mishap {
            Mishap::Late(_) => "late",
            Mishap::Twice(_) => "twice",
        });
        strikes.chain(mishaps).for_each(|what| *counts.entry(what).or_default() += 1);
    }
    counts
}

#[test]
fn simulator_everything_strikes_at_random() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut runs = 0;
    each_seed(600, |seed, log| {
        run(seed, log).into_iter().for_each(|(what, times)| *counts.entry(what).or_default() += times);
        runs += 1;
    });
    assert!(runs < 300 || counts.len() == 8 && counts.values().all(|times| *times > 20), "{counts:?} in {runs} runs");
}
