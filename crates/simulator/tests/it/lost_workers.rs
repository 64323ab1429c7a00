//! Loss of a worker: every request is answered, the current one by a clear error, and nothing
//! hangs.

use crate::calls::Call;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::seeds::{each, each_seed, Log};
use crate::{models, user, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use testkit::Random;

const CALLS: [Call; 9] = [
    Call::Distribute,
    Call::Optimizer(1),
    Call::Train(1),
    Call::Forward(2),
    Call::Backward(2),
    Call::OptimStep(2),
    Call::State,
    Call::Load(3),
    Call::Train(3),
];

/// Runs all calls, one after the other, and loses a worker during them.
pub fn lose(
    graph: &LayerGraph,
    setting: &Setting,
    seed: u64,
    conditions: Conditions,
    lose: (u64, WorkerId),
    log: Log,
) {
    let faults = Faults { lose: Some(lose), ..Faults::default() };
    let mut user = user(graph, setting, seed, conditions, faults, log);
    let mut errors = Vec::new();
    for call in CALLS {
        let asked = user.world.now();
        let request = user.submit(call);
        let reply = user.world.reply(request);
        let known = user.world.trouble.known_lost;
        if let Some(known) = known {
            // A snapshot still arrives from the others if the lost worker has already sent its
            // part.
            let comes = matches!(call, Call::State) && asked <= known && reply.result.is_ok();
            assert!(comes || reply.at <= asked.max(known), "{call:?} was not answered at once");
            assert!(
                asked <= known || reply.result.is_err(),
                "{call:?} succeeded without {}",
                lose.1
            );
        }
        if let Err(failure) = reply.result {
            assert!(user.world.trouble.lost.is_some(), "an error without a cause: {failure}");
            // The first failed request that was made before the boss knew was the current one.
            let at_work = known.is_none_or(|known| asked < known) && errors.is_empty();
            let step = matches!(
                call,
                Call::Train(_) | Call::Forward(_) | Call::Backward(_) | Call::OptimStep(_)
            );
            assert!(
                failure.step.is_some() || !(at_work && step),
                "the step is missing in {failure}"
            );
            errors.push(failure.to_string());
        }
    }
    // A peer may see its link break before the boss sees the loss; both errors name the worker.
    for error in &errors {
        assert!(
            error.contains(&lose.1.to_string()),
            "an error that does not name {}: {error}",
            lose.1
        );
    }
    user.stop();
}

pub fn baseline(
    graph: &LayerGraph,
    setting: &Setting,
    seed: u64,
    conditions: Conditions,
    log: Log,
) -> u64 {
    let mut user = user(graph, setting, seed, conditions, Faults::default(), log);
    for call in CALLS {
        user.call(call).expect("no trouble");
    }
    user.world.events
}

#[test]
fn simulator_a_worker_lost_at_every_point() {
    let graph = models::model("skip");
    let setting = Setting::plain(&["2", "4"], ScheduleKind::OneFOneB, 3);
    each(
        [Conditions::CALM, Conditions { delay: 10_000, ..Conditions::CALM }],
        |conditions, log| {
            let events = baseline(&graph, &setting, 5, conditions, log);
            let points =
                (1..=events).flat_map(|event| [0, 1, 2].map(|worker| (event, WorkerId(worker))));
            each(points, |point, log| lose(&graph, &setting, 5, conditions, point, log));
        },
    );
}

#[test]
fn simulator_a_worker_lost_anywhere() {
    let models = models::all();
    each_seed(1000, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = Setting::random(&mut random, graph);
        let conditions = Conditions::random(&mut random);
        let network = random.next();
        let events = baseline(graph, &setting, network, conditions, log);
        let worker = WorkerId(random.below(setting.workers() as u64) as u16);
        let point = (1 + random.below(events), worker);
        log.note(|| format!("{}: {setting:?}, {conditions:?}, lost at {point:?}", graph.name()));
        lose(graph, &setting, network, conditions, point, log);
    });
}

#[test]
fn simulator_requests_in_line_when_a_worker_is_lost() {
    let graph = models::model("branchy");
    each_seed(300, |seed, log| {
        let mut random = Random::new(seed);
        let setting = Setting::random(&mut random, &graph);
        let worker = WorkerId(random.below(setting.workers() as u64) as u16);
        let faults = Faults { lose: Some((1 + random.below(300), worker)), ..Faults::default() };
        let mut user =
            user(&graph, &setting, random.next(), Conditions::random(&mut random), faults, log);
        let requests =
            [Call::Distribute, Call::Optimizer(1), Call::Train(1), Call::Eval(2), Call::State];
        let requests = requests.map(|call| user.submit(call));
        let mut failed = false;
        for request in requests {
            let reply = user.world.reply(request);
            let Err(failure) = reply.result else {
                assert!(!failed, "a success after {worker} was lost");
                continue;
            };
            failed = true;
            assert!(failure.to_string().contains(&worker.to_string()), "{failure}");
            let known = user.world.trouble.known_lost.unwrap_or(user.world.now());
            assert!(reply.at <= known, "an answer long after the loss was known");
        }
        user.stop();
    });
}

#[test]
fn simulator_everything_goes_wrong_at_once() {
    each_seed(500, everything_goes_wrong);
}

/// One run in which a worker is lost, a link breaks, and a task fails.
pub fn everything_goes_wrong(seed: u64, log: Log) {
    let models = models::all();
    let mut random = Random::new(seed);
    let graph = random.pick(&models);
    let setting = Setting::random(&mut random, graph);
    let worker = WorkerId(random.below(setting.workers() as u64) as u16);
    let faults = Faults {
        lose: random.chance(70).then(|| (1 + random.below(500), worker)),
        break_link: Some(random.below(300)),
        fail_task: Some(1 + random.below(60)),
    };
    let mut user =
        user(graph, &setting, random.next(), Conditions::random(&mut random), faults, log);
    // Answers may be errors, but a missing or an extra reply would panic.
    for call in CALLS.into_iter().chain(CALLS) {
        if random.chance(80) {
            user.call(call).ok();
        } else {
            let requests =
                [user.submit(call), user.submit(Call::Eval(9)), user.submit(Call::State)];
            requests.into_iter().for_each(|request| drop(user.world.reply(request)));
        }
    }
    user.stop();
}
