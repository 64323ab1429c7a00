//! Replicas that sum gradients among their compute threads: as the uncut model, and whatever fails, nobody waits for ever.

use crate::calls::Call;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::random::Random;
use crate::seeds::each_seed;
use crate::{compare, failing, lost, models, user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;

/// Any, with replicas, which share out nothing.
fn setting(random: &mut Random, graph: &LayerGraph) -> Setting {
    Setting { sharding: None, collective: true, ..Setting::random(random, graph).with_replicas(random) }
}

#[test]
fn simulator_sums_among_compute_threads() {
    let models = models::all();
    each_seed(300, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = setting(&mut random, graph);
        let conditions = Conditions::random(&mut random);
        log.note(|| format!("{}: {setting:?}, {conditions:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), conditions, Faults::default(), log);
        let mut oracle = Oracle::new(graph, &setting);
        let calls =
            [Call::Distribute, Call::Optimizer(1), Call::Train(1), Call::Gather(2), Call::Train(3), Call::Digest];
        compare(&mut user, &mut oracle, &calls);
        let by_hand = [Call::Forward(4), Call::Eval(5), Call::Backward(4), Call::OptimStep(4), Call::State];
        compare(&mut user, &mut oracle, &by_hand);
        user.stop();
    });
}

#[test]
fn simulator_a_task_fails_while_others_wait_for_a_sum() {
    let models = models::all();
    each_seed(300, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = setting(&mut random, graph);
        let faults = Faults { fail_task: Some(1 + random.below(150)), ..Faults::default() };
        log.note(|| format!("{}: {setting:?}, {faults:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), Conditions::random(&mut random), faults, log);
        failing::recover(&mut user, &mut Oracle::new(graph, &setting), 4);
    });
}

#[test]
fn simulator_a_worker_is_lost_while_others_wait_for_a_sum() {
    let models = models::all();
    each_seed(300, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = setting(&mut random, graph);
        let (conditions, network) = (Conditions::random(&mut random), random.next());
        let events = lost::baseline(graph, &setting, network, conditions, log);
        let worker = WorkerId(random.below(setting.workers() as u64) as u16);
        let point = (1 + random.below(events), worker);
        log.note(|| format!("{}: {setting:?}, {conditions:?}, lost at {point:?}", graph.name()));
        lost::lose(graph, &setting, network, conditions, point, log);
    });
}
