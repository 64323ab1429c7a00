//! Loses workers again and again, at every moment of a run. Each time the run recovers with the
//! remaining workers and the last complete snapshot, at the boss or at the workers, like `bossman
//! train`. The result equals that of a run without losses.

use crate::faults::{Faults, Loss, RandomFaults};
use crate::network::Conditions;
use crate::recovering_run::{recover, Counts, Reference, Run};
use crate::seeds::{each_seed, Log};
use crate::world::Kept;
use crate::{models, user, Setting};
use layerspec::LayerGraph;
use testkit::Random;

/// The most steps between two snapshots.
const MOST_BETWEEN: u64 = 4;

/// All that happens at some seed, if there are many.
const ALL: [&str; 22] = [
    "a loss while stages are assigned",
    "a loss while weights are loaded",
    "a loss while the optimizer is sent",
    "a loss while state is restored",
    "a loss in a step",
    "a loss between the updates of a step",
    "a loss between steps",
    "a loss while a snapshot is begun",
    "a loss while a snapshot travels",
    "a loss after the last step",
    "a loss of several at once",
    "a loss of one that only fell silent",
    "a loss before anything new was done",
    "a snapshot that came after a loss",
    "a snapshot that was lost",
    "a loss while workers begin a snapshot",
    "a loss while workers restore a snapshot",
    "a snapshot of workers that was lost on its way",
    "a snapshot of workers that was lost with them",
    "a run that went on from what workers keep",
    "a broken link alone",
    "a run that gave up and was resumed by its user",
];

fn shuffle<T>(random: &mut Random, all: &mut [T]) {
    for end in (1..all.len()).rev() {
        all.swap(end, random.below(end as u64 + 1) as usize);
    }
}

/// Another setting for the same model on at most `workers` workers.
pub fn another(random: &mut Random, graph: &LayerGraph, run: &Setting, workers: usize) -> Setting {
    loop {
        let drawn = Setting::random(random, graph);
        if drawn.workers() <= workers && (run.tree || !drawn.tree) {
            let Setting { microbatches, max_norm, tree, own_data, .. } = *run;
            return Setting { microbatches, max_norm, tree, own_data, ..drawn };
        }
    }
}

/// A run with any number of losses. Adds up how often each kind of event happened.
fn run(graph: &LayerGraph, random: &mut Random, log: Log, counts: &mut Counts) {
    let (first, steps) = (Setting::random(random, graph), 6 + random.below(5));
    let reference = Reference::new(graph, &first, random.chance(50).then_some(7), steps);
    let every = 1 + random.below(MOST_BETWEEN);
    let keeps = random.chance(50).then(|| 1 + random.below(3));
    let mut run = Run::new(&reference, every, keeps, counts);
    // The snapshots of all live processes, including those that take no part.
    let mut processes: Vec<Kept> = Vec::new();
    let mut here = first.workers() + random.below(3) as usize;
    let (mut setting, mut left) = (first.clone(), 1 + random.below(6));
    loop {
        let conditions = Conditions::random(random);
        let broken = random.chance(20) && left > 0;
        let faults = Faults { break_link: broken.then(|| random.below(1000)), ..Faults::default() };
        let from = run.kept.0;
        log.note(|| {
            format!(
                "{}: from {from} of {steps}, {here} here: {setting:?}, {conditions:?}",
                graph.name()
            )
        });
        let mut user = user(graph, &setting, random.next(), conditions, faults, log);
        user.world.random_faults =
            RandomFaults { one_in: *random.pick(&[20, 100, 400, 1000]), left, losses: Vec::new() };
        shuffle(random, &mut processes);
        processes.resize_with(here.max(setting.workers()), Kept::default);
        shuffle(random, &mut processes);
        user.world.bring(processes.drain(..setting.workers()).collect());
        let furthest = run.policy.furthest();
        let result = run.attempt(&mut user, random);
        // Earlier snapshots still arrive.
        run.record_snapshots(&mut user);
        run.note_kept(&mut user);
        left = std::mem::take(&mut user.world.random_faults.left);
        user.stop();
        processes.extend(user.world.left());
        let lost =
            |of: fn(&Loss) -> usize| user.world.random_faults.losses.iter().map(of).sum::<usize>();
        let (workers, silent) = (lost(|loss| loss.workers), lost(|loss| loss.silent));
        let Err(failure) = result else { return };
        recover(&mut run, &user, &failure);
        for (what, happened) in [
            (
                "a loss of several at once",
                user.world.random_faults.losses.iter().any(|loss| loss.workers > 1),
            ),
            ("a loss of one that only fell silent", silent > 0),
            (
                "a loss before anything new was done",
                furthest > 0 && run.policy.furthest() == furthest && workers > 0,
            ),
            ("a broken link alone", workers == 0),
        ] {
            run.count_if(what, happened);
        }
        // Some come again, and at least one does.
        here = (here.saturating_sub(workers) + random.below(2) as usize).max(1);
        if setting.workers() > here || random.chance(70) {
            setting = another(random, graph, &first, here);
        }
    }
}

#[test]
fn simulator_a_run_goes_on_where_workers_are_lost() {
    let models = models::all();
    let (mut counts, mut runs) = (Counts::new(), 0);
    // Enough seeds that every kind of event happens in CI; see the check below.
    each_seed(800, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        run(graph, &mut random, log, &mut counts);
        runs += 1;
    });
    let never: Vec<_> =
        ALL.into_iter().filter(|what| counts.get(what).is_none_or(|count| *count == 0)).collect();
    assert!(runs < 2000 || never.is_empty(), "{never:?} never happened: {counts:?}");
}
