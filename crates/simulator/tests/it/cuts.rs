//! Law 1: for every cut, schedule and network, the results are those of the uncut model.

use crate::calls::{script, Call};
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_number, each_seed};
use crate::user::User;
use crate::world::World;
use crate::{compare, every_cut, models, placements, user, Setting};
use pipeline::ids::WorkerId;
use pipeline::replicas::StagePlacement;
use pipeline::ScheduleKind;
use testkit::Random;

const STEPS: [Call; 7] = [
    Call::Distribute,
    Call::Optimizer(1),
    Call::Train(1),
    Call::Forward(2),
    Call::Backward(2),
    Call::OptimStep(2),
    Call::State,
];

fn every_cut_of(name: &str) {
    let graph = models::model(name);
    let settings = every_cut(&graph, 4).into_iter().flat_map(|cuts| {
        let settings = placements(cuts.len() + 1).into_iter().enumerate();
        settings.flat_map(move |(way, (_, kind, placement))| {
            let max_norm = (way % 2 == 0).then_some(500.0);
            let cuts = cuts.clone();
            [1, 4, 5].map(|microbatches| {
                Setting::of(cuts.clone(), kind, placement, microbatches, max_norm)
            })
        })
    });
    let settings: Vec<Setting> = settings.collect();
    assert!(settings.len() >= 90, "only {} settings", settings.len());
    let settings = each_number(settings.len() as u64).map(|number| &settings[number as usize - 1]);
    each(settings, |setting, log| {
        let mut user = user(&graph, setting, 1, Conditions::CALM, Faults::default(), log);
        compare(&mut user, &mut Oracle::new(&graph, setting), &STEPS);
        user.world.assert_clear();
        user.stop();
    });
}

macro_rules! every_cut_tests {
    ($($test:ident: $model:literal),*) => {$(
        #[test]
        fn $test() {
            every_cut_of($model);
        }
    )*};
}

every_cut_tests! {
    simulator_every_cut_of_a_chain: "chain",
    simulator_every_cut_of_a_branchy_model: "branchy",
    simulator_every_cut_of_a_skip: "skip",
    simulator_every_cut_of_a_variable_with_many_uses: "many-uses",
    simulator_every_cut_of_two_inputs: "two-inputs",
    simulator_every_cut_of_two_outputs: "two-outputs",
    simulator_every_cut_of_an_early_output: "early-output",
    simulator_every_cut_of_frozen_layers: "frozen",
    simulator_every_cut_of_tied_layers: "tied",
    simulator_every_cut_of_layers_tied_far_apart: "shared"
}

/// Prefetched samples are those that the next round requests, if it assigns microbatches like this
/// one.
#[test]
fn simulator_what_is_read_ahead_is_asked_for() {
    let models = models::all();
    each_seed(100, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let mut setting = Setting::random(&mut random, graph);
        (setting.own_data, setting.microbatch_assignments) = (true, None);
        let mut user = user(
            graph,
            &setting,
            random.next(),
            Conditions::random(&mut random),
            Faults::default(),
            log,
        );
        let mut oracle = Oracle::new(graph, &setting);
        // The samples of step 3 name those of step 5, those of step 9 those of step 11.
        let calls = [1, 3, 5, 9, 11, 7].map(Call::Train);
        compare(
            &mut user,
            &mut oracle,
            &[&[Call::Distribute, Call::Optimizer(1)], &calls[..]].concat(),
        );
        let (told, asked) = user.world.ahead;
        assert!(told > 0 && asked == told, "{told} were read ahead, {asked} of them asked for");
        user.stop();
    });
}

#[test]
fn simulator_any_network_gives_the_same() {
    let models = models::all();
    each_seed(1000, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = Setting::random(&mut random, graph);
        let conditions = Conditions::random(&mut random);
        log.note(|| format!("{}: {setting:?}, {conditions:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), conditions, Faults::default(), log);
        let mut oracle = Oracle::new(graph, &setting);
        for call in script(&mut random, 4) {
            compare(&mut user, &mut oracle, &[call]);
            if random.chance(50) {
                user.world.settle();
            }
        }
        user.world.assert_clear();
        user.stop();
    });
}

#[test]
fn simulator_stages_placed_anyhow() {
    let models = models::all();
    each_seed(200, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let kind = *random.pick(&[ScheduleKind::GPipe, ScheduleKind::Ready]);
        let setting = Setting { kind, tree: false, ..Setting::random(&mut random, graph) };
        let mut plan = setting.plan(graph);
        let stages = plan.stage_placement.stages();
        let workers = 1 + random.below(stages as u64) as u16;
        let mut home = |stage: usize| {
            if stage < workers.into() {
                stage as u16
            } else {
                random.below(workers.into()) as u16
            }
        };
        plan.stage_placement =
            StagePlacement::single((0..stages).map(|stage| WorkerId(home(stage))));
        log.note(|| format!("{}: {setting:?} on {:?}", graph.name(), plan.stage_placement));
        let world = World::new(
            plan.clone(),
            random.next(),
            Conditions::random(&mut random),
            Faults::default(),
            log,
        );
        let mut user = User::new(graph, plan, &setting, world);
        compare(&mut user, &mut Oracle::new(graph, &setting), &STEPS);
        user.stop();
    });
}

#[test]
fn simulator_replicas_share_what_is_evaluated() {
    let graph = models::model("skip");
    each_seed(50, |seed, log| {
        let plain = Setting::plain(&["3"], ScheduleKind::GPipe, 3);
        let setting = Setting { replicas: vec![3, 2], tree: true, ..plain };
        let mut user = user(&graph, &setting, seed, Conditions::CALM, Faults::default(), log);
        compare(&mut user, &mut Oracle::new(&graph, &setting), &[Call::Distribute, Call::Eval(2)]);
        let mut took: Vec<(u16, u32)> = user
            .world
            .spans
            .iter()
            .map(|span| (span.worker.0, span.action.microbatch().unwrap_or(9)))
            .collect();
        took.sort_unstable();
        // Workers 0, 2 and 4 have the first stage, 1 and 3 the second.
        assert_eq!(took, [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2), (4, 2)]);
        user.stop();
    });
}

#[test]
fn simulator_requests_in_line_are_answered_in_order() {
    let graph = models::model("skip");
    each_seed(100, |seed, log| {
        let mut random = Random::new(seed);
        let setting = Setting::random(&mut random, &graph);
        let mut user = user(
            &graph,
            &setting,
            random.next(),
            Conditions::random(&mut random),
            Faults::default(),
            log,
        );
        let mut oracle = Oracle::new(&graph, &setting);
        let calls = [
            Call::Distribute,
            Call::Optimizer(1),
            Call::Train(1),
            Call::Eval(2),
            Call::Train(3),
            Call::State,
        ];
        let requests = calls.map(|call| user.submit(call));
        let mut last = 0;
        for (call, request) in calls.into_iter().zip(requests) {
            let reply = user.world.reply(request);
            assert!(last <= reply.at, "a reply before the last one's");
            last = reply.at;
            assert_eq!(reply.result, Ok(oracle.call(call)));
        }
        user.stop();
    });
}

#[test]
fn simulator_nothing_works_before_the_model_is_distributed() {
    let graph = models::model("skip");
    each([0], |_, log| {
        let setting = Setting::plain(&["3"], ScheduleKind::GPipe, 4);
        let mut user = user(&graph, &setting, 1, Conditions::CALM, Faults::default(), log);
        for call in [
            Call::Optimizer(1),
            Call::Train(1),
            Call::Eval(1),
            Call::Forward(1),
            Call::State,
            Call::Load(0),
        ] {
            let failure = user.call(call).expect_err("there are no layers yet");
            assert!(failure.to_string().contains("call distribute_model() first"), "{failure}");
        }
        compare(&mut user, &mut Oracle::new(&graph, &setting), &STEPS);
        user.stop();
    });
}
