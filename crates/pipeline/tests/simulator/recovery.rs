//! Workers are lost again and again, at every moment of a run that goes on each time with who is left and its last
//! whole copy, which the boss has or the workers, as `bossman train` does; the result is that of a run in which nothing was
//! lost.

use crate::faults::{Faults, Loss, Perils};
use crate::going_on::{check, Counts, Reference, Run};
use crate::network::Conditions;
use crate::seeds::{each_seed, Log};
use crate::world::Kept;
use crate::{models, user, Setting};
use layerspec::LayerGraph;
use testkit::Random;

/// Copies begin after every so many steps.
const MOST_BETWEEN: u64 = 4;

/// All that happens at some seed, if there are many.
const ALL: [&str; 21] = [
    "a loss while stages are assigned",
    "a loss while weights are loaded",
    "a loss while the optimizer is sent",
    "a loss while state is restored",
    "a loss in a step",
    "a loss between the updates of a step",
    "a loss between steps",
    "a loss while a copy is begun",
    "a loss while a copy travels",
    "a loss after the last step",
    "a loss of several at once",
    "a loss of one that only fell silent",
    "a loss before anything new was done",
    "a copy that came after a loss",
    "a copy that was lost",
    "a loss while workers begin a copy",
    "a loss while workers restore a copy",
    "a copy of workers that was lost on its way",
    "a copy of workers that was lost with them",
    "a run that went on from what workers keep",
    "a broken link alone",
];

fn shuffle<T>(random: &mut Random, all: &mut [T]) {
    for end in (1..all.len()).rev() {
        all.swap(end, random.below(end as u64 + 1) as usize);
    }
}

/// Another way to run the same on as many workers or fewer.
pub fn another(random: &mut Random, graph: &LayerGraph, run: &Setting, workers: usize) -> Setting {
    loop {
        let drawn = Setting::random(random, graph);
        if drawn.workers() <= workers && (run.tree || !drawn.tree) {
            let Setting { microbatches, max_norm, tree, own_data, .. } = *run;
            return Setting { microbatches, max_norm, tree, own_data, ..drawn };
        }
    }
}

/// A run with as many losses as come; how often what happened is added up.
fn run(graph: &LayerGraph, random: &mut Random, log: Log, counts: &mut Counts) {
    let (first, steps) = (Setting::random(random, graph), 6 + random.below(5));
    let reference = Reference::new(graph, &first, random.chance(50).then_some(7), steps);
    let every = 1 + random.below(MOST_BETWEEN);
    let keeps = random.chance(50).then(|| 1 + random.below(3));
    let mut run = Run::new(&reference, every, keeps, counts);
    // What the processes keep that are there, whether they take part or not.
    let mut processes: Vec<Kept> = Vec::new();
    let mut here = first.workers() + random.below(3) as usize;
    let (mut setting, mut left) = (first.clone(), 1 + random.below(6));
    loop {
        let conditions = Conditions::random(random);
        let broken = random.chance(20) && left > 0;
        let faults = Faults { break_link: broken.then(|| random.below(1000)), ..Faults::default() };
        let from = run.kept.0;
        log.note(|| format!("{}: from {from} of {steps}, {here} here: {setting:?}, {conditions:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), conditions, faults, log);
        user.world.perils = Perils { one_in: *random.pick(&[20, 100, 400, 1000]), left, losses: Vec::new() };
        shuffle(random, &mut processes);
        processes.resize_with(here.max(setting.workers()), Kept::default);
        shuffle(random, &mut processes);
        user.world.bring(processes.drain(..setting.workers()).collect());
        let furthest = run.furthest;
        let result = run.attempt(&mut user, random);
        // What was copied before still comes.
        run.take_note(&mut user);
        run.note_kept(&mut user);
        left = std::mem::take(&mut user.world.perils.left);
        user.stop();
        processes.extend(user.world.left());
        let lost = |of: fn(&Loss) -> usize| user.world.perils.losses.iter().map(of).sum::<usize>();
        let (workers, silent) = (lost(|loss| loss.workers), lost(|loss| loss.silent));
        let Err(failure) = result else { return };
        check(&user, &failure);
        for (what, happened) in [
            ("a loss of several at once", user.world.perils.losses.iter().any(|loss| loss.workers > 1)),
            ("a loss of one that only fell silent", silent > 0),
            ("a loss before anything new was done", furthest > 0 && run.furthest == furthest && workers > 0),
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
    // So many that with what CI plays everything happens; see the check below.
    each_seed(800, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        run(graph, &mut random, log, &mut counts);
        runs += 1;
    });
    let never: Vec<_> = ALL.into_iter().filter(|what| counts.get(what).is_none_or(|count| *count == 0)).collect();
    assert!(runs < 2000 || never.is_empty(), "{never:?} never happened: {counts:?}");
}
