//! A pool, which workers come to while it trains, is struck at every event: what only takes time costs nobody, and who is
//! given up is not missed.

use crate::network::Conditions;
use crate::pool::{run, Fate};
use crate::seeds::{each, each_seed, Log};
use crate::strikes::{Mishap, Strike, Strikes, BOSS_GIVES_UP};
use crate::{models, pool, Setting};
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use std::collections::{BTreeMap, BTreeSet};
use testkit::Random;

/// Two stages with two workers each: one of each may go.
fn setting() -> Setting {
    let mut setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut Random::new(1));
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![2, 2], Some(500.0), None);
    setting
}

/// Somebody comes early, and somebody late.
fn joins() -> BTreeMap<u64, Option<u64>> {
    BTreeMap::from([(30, None), (300, None)])
}

fn fate(strikes: Strikes) -> Fate {
    Fate { due: joins(), strikes }
}

#[test]
fn simulator_a_pool_is_struck_at_every_event() {
    const TIMES: [u64; 3] = [500, 20_000, 2_900_000];
    let (graph, setting) = (models::model("skip"), setting());
    let quiet = run(&graph, &setting, 5, Conditions::CALM, fate(Strikes::default()), Log::default());
    each(1..=quiet.events, |event, log| {
        let (worker, time) = (WorkerId((event % 5) as u16), TIMES[event as usize % 3]);
        let far: BTreeSet<WorkerId> = [worker, WorkerId((event / 5 % 5) as u16)].into();
        let strikes =
            [Strike::Kill(worker), Strike::Pause(worker, time), Strike::Silence(worker), Strike::Hold(far, time)];
        for strike in strikes {
            run(&graph, &setting, 5, Conditions::CALM, fate(Strikes::at(event, strike)), log);
        }
    });
}

#[test]
fn simulator_every_frame_of_a_pool_is_late_or_comes_twice() {
    let (graph, setting) = (models::model("skip"), setting());
    let quiet = run(&graph, &setting, 5, Conditions::CALM, fate(Strikes::default()), Log::default());
    let mut struck = 0;
    each(1..=quiet.frames, |frame, log| {
        for mishap in [Mishap::Late(30_000), Mishap::Twice(0), Mishap::Twice(1000)] {
            let came = run(&graph, &setting, 5, Conditions::CALM, fate(Strikes::of(frame, mishap)), log);
            struck += came.struck.mishaps.len() as u64;
        }
    });
    // Before it is open it is no pool yet.
    assert!(struck > 3 * (quiet.frames - 100), "{struck} of {} frames", quiet.frames);
}

/// One run, struck at random.
pub fn at_random(seed: u64, log: Log) {
    let models = models::all();
    let mut random = Random::new(seed);
    let graph = random.pick(&models);
    let mut setting = Setting::random(&mut random, graph).with_replicas(&mut random);
    // Of every stage one is left whoever goes: one is killed or silent, and one hung up on.
    setting.replicas.fill(3);
    (setting.max_norm, setting.sharding) = (Some(*random.pick(&[0.5, 500.0, 1e9])), None);
    let conditions = Conditions::random(&mut random);
    let due = (0..random.below(5)).map(|_| (1 + random.below(1500), None)).collect();
    let mut strikes = Strikes::default();
    let workers = setting.workers() as u64;
    let worker = WorkerId(random.below(workers) as u16);
    let lost = if random.chance(50) { Strike::Kill(worker) } else { Strike::Silence(worker) };
    strikes.events.insert(1 + random.below(2000), lost);
    for _ in 0..random.below(3) {
        let time = *random.pick(&[1, 1000, 100_000, BOSS_GIVES_UP - 1]);
        let far = (0..workers as u16).map(WorkerId).filter(|_| random.chance(40)).collect();
        let strike = if random.chance(50) { Strike::Pause(worker, time) } else { Strike::Hold(far, time) };
        strikes.events.insert(1 + random.below(2000), strike);
    }
    for mishap in [Mishap::Late(random.below(100_000)), Mishap::Twice(random.below(100_000))] {
        strikes.frames.insert(1 + random.below(1500), mishap);
    }
    if pool::possible(graph, &setting) {
        log.note(|| format!("{}: {setting:?}, {conditions:?}, {due:?}, {strikes:?}", graph.name()));
        run(graph, &setting, random.next(), conditions, Fate { due, strikes }, log);
    }
}

#[test]
fn simulator_a_pool_is_struck_at_random() {
    each_seed(400, at_random);
}
