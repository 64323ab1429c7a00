//! Loading of weights: the boss sends each weight once to a stage, replicas pass it on, and in the
//! end all have it.

use crate::calls::Call;
use crate::failing::recover;
use crate::faults::Faults;
use crate::lost_workers::{baseline, lose};
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_seed};
use crate::user::User;
use crate::{compare, models, user, Setting};
use pipeline::effect::Peer;
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use testkit::Random;

const CALLS: [Call; 7] = [
    Call::Distribute,
    Call::Optimizer(1),
    Call::State,
    Call::Load(7),
    Call::Digest,
    Call::Train(1),
    Call::State,
];

/// The model `shared`, cut in two so that the second stage copies parameters of the first.
fn tied(replicas: &[u16]) -> Setting {
    let plain = Setting::plain(&["third"], ScheduleKind::OneFOneB, 3);
    Setting { replicas: replicas.to_vec(), tree: true, ..plain }
}

/// Checks that each replica receives each weight once: the first from the boss, the others from
/// each other. No replica sends it to more than two.
fn check_ways(user: &User<'_>) {
    let stage_placement = &user.plan.stage_placement;
    assert!(!user.world.weights.is_empty(), "no weight was loaded");
    for (name, settings) in &user.world.weights {
        let stages: std::collections::BTreeSet<_> =
            settings.iter().map(|(stage, ..)| *stage).collect();
        for stage in stages {
            let settings: Vec<_> = settings.iter().filter(|(of, ..)| *of == stage).collect();
            let replicas = stage_placement.of(stage);
            let mut reached: Vec<WorkerId> = settings.iter().map(|(.., to)| *to).collect();
            reached.sort_unstable();
            let mut all = replicas.to_vec();
            all.sort_unstable();
            assert_eq!(reached, all, "`{name}` in {stage}");
            for sender in replicas.iter().map(|worker| Peer::Worker(*worker)).chain([Peer::Boss]) {
                let sent = settings.iter().filter(|(_, from, _)| *from == sender).count();
                assert!(
                    sent <= if sender == Peer::Boss { 1 } else { 2 },
                    "{sender} sends `{name}` {sent} times"
                );
            }
        }
    }
}

#[test]
fn simulator_the_boss_sends_each_weight_once_to_a_stage() {
    let graph = models::model("shared");
    let settings: [&[u16]; 6] = [&[1, 1], &[2, 2], &[5, 1], &[1, 5], &[5, 3], &[4, 5]];
    each(settings, |replicas, _| {
        each_seed(20, |seed, log| {
            let mut random = Random::new(seed);
            let (setting, conditions) = (tied(replicas), Conditions::random(&mut random));
            let mut user = user(&graph, &setting, seed, conditions, Faults::default(), log);
            compare(&mut user, &mut Oracle::new(&graph, &setting), &CALLS);
            check_ways(&user);
            let twice = user.world.weights.values().filter(|settings| {
                let of_boss = settings.iter().filter(|(_, from, _)| *from == Peer::Boss);
                of_boss.count() == 2
            });
            assert!(twice.count() > 0, "what the second stage borrows is sent to it, too");
            user.stop();
        });
    });
}

#[test]
fn simulator_a_worker_lost_while_weights_are_passed_on() {
    let graph = models::model("skip");
    let setting =
        Setting { replicas: vec![5], tree: true, ..Setting::plain(&[], ScheduleKind::GPipe, 2) };
    each([Conditions::CALM], |conditions, log| {
        let events = baseline(&graph, &setting, 5, conditions, log);
        let points =
            (1..=events).flat_map(|event| [0, 1, 4].map(|worker| (event, WorkerId(worker))));
        each(points, |point, log| lose(&graph, &setting, 5, conditions, point, log));
    });
}

#[test]
fn simulator_a_failure_while_weights_are_passed_on() {
    let graph = models::model("shared");
    each_seed(300, |seed, log| {
        let mut random = Random::new(seed);
        let replicas: [u16; 2] = *random.pick(&[[5, 1], [3, 5], [2, 4]]);
        let setting = tied(&replicas);
        // The first calls distribute the model, and set its optimizer; each step then loads.
        let faults = match random.chance(50) {
            true => Faults { fail_task: Some(1 + random.below(60)), ..Faults::default() },
            false => Faults { break_link: Some(random.below(400)), ..Faults::default() },
        };
        let mut user =
            user(&graph, &setting, random.next(), Conditions::random(&mut random), faults, log);
        let errors = recover(&mut user, &mut Oracle::new(&graph, &setting), 2);
        assert!(errors.len() <= 1, "one thing went wrong: {errors:?}");
    });
}
