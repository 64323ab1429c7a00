//! Replicas that sum gradients among their compute threads. Results equal those of the uncut model,
//! and no failure makes a worker wait for ever.

use crate::calls::Call;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::each_seed;
use crate::{compare, failing, lost_workers, models, user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use testkit::Random;

/// A random setting with replicas that shard nothing.
fn setting(random: &mut Random, graph: &LayerGraph) -> Setting {
    Setting {
        sharding: None,
        collective: true,
        ..Setting::random(random, graph).with_replicas(random)
    }
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
        let calls = [
            Call::Distribute,
            Call::Optimizer(1),
            Call::Train(1),
            Call::Gather(2),
            Call::Train(3),
            Call::Digest,
        ];
        compare(&mut user, &mut oracle, &calls);
        let by_hand =
            [Call::Forward(4), Call::Eval(5), Call::Backward(4), Call::OptimStep(4), Call::State];
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
        let fail_task = Some(1 + random.below(150));
        let faults = Faults { fail_task, ..Faults::default() };
        log.note(|| format!("{}: {setting:?}, task {fail_task:?} fails", graph.name()));
        let mut user =
            user(graph, &setting, random.next(), Conditions::random(&mut random), faults, log);
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
        let events = lost_workers::baseline(graph, &setting, network, conditions, log);
        let worker = WorkerId(random.below(setting.workers() as u64) as u16);
        let point = (1 + random.below(events), worker);
        log.note(|| format!("{}: {setting:?}, {conditions:?}, lost at {point:?}", graph.name()));
        let faults = Faults { lose: Some(point), ..Faults::default() };
        let mut user = user(graph, &setting, network, conditions, faults, log);
        let calls = [
            Call::Distribute,
            Call::Optimizer(1),
            Call::Train(1),
            Call::Gather(2),
            Call::Train(3),
            Call::Digest,
        ];
        for call in calls {
            if let Err(failure) = user.call(call) {
                assert!(user.world.trouble.lost.is_some(), "an error without a cause: {failure}");
                assert!(failure.to_string().contains(&worker.to_string()), "{call:?}: {failure}");
            }
        }
        user.stop();
    });
}
