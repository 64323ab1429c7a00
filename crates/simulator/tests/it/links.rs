//! Direct links that cannot be made or that break: the boss relays instead.

use crate::calls::Call;
use crate::failing::recover;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_seed};
use crate::{compare, models, user, Setting};
use pipeline::ScheduleKind;
use testkit::Random;

fn setting() -> Setting {
    Setting::plain(&["2", "4"], ScheduleKind::OneFOneB, 3)
}

#[test]
fn simulator_the_boss_relays_where_dials_fail() {
    // A skip from the first stage to the third: all three pairs exchange tensors.
    let graph = models::model("skip");
    let dials = [
        Conditions { refused: 100, ..Conditions::CALM },
        Conditions { silent: 100, ..Conditions::CALM },
        Conditions { late: 100, ..Conditions::CALM },
    ];
    each(dials, |conditions, log| {
        let mut user = user(&graph, &setting(), 3, conditions, Faults::default(), log);
        let mut oracle = Oracle::new(&graph, &setting());
        let calls =
            [Call::Distribute, Call::Optimizer(1), Call::Train(1), Call::Train(2), Call::State];
        compare(&mut user, &mut oracle, &calls);
        user.world.settle();
        let notices = &user.world.notices;
        assert_eq!(notices.len(), 3, "one notice for each pair: {notices:?}");
        assert!(notices.iter().all(|n| n.contains("the boss relays between them")), "{notices:?}");
        user.stop();
    });
}

#[test]
fn simulator_a_dial_never_answered_holds_up_no_longer_than_three_seconds() {
    let graph = models::model("skip");
    let conditions = Conditions { silent: 100, ..Conditions::CALM };
    each([0], |_, log| {
        let mut user = user(&graph, &setting(), 3, conditions, Faults::default(), log);
        let request = user.submit(Call::Distribute);
        let reply = user.world.reply(request);
        assert!(
            reply.result.is_ok() && (3_000_000..3_010_000).contains(&reply.at),
            "{:?}",
            reply.at
        );
        user.stop();
    });
}

#[test]
fn simulator_a_link_broken_at_every_point() {
    let graph = models::model("skip");
    each([Conditions::CALM, Conditions { delay: 10_000, ..Conditions::CALM }], |conditions, _| {
        let (mut broken, mut failed) = (0, 0);
        let mut run = |break_link, log| {
            let faults = Faults { break_link, ..Faults::default() };
            let mut user = user(&graph, &setting(), 3, conditions, faults, log);
            let errors = recover(&mut user, &mut Oracle::new(&graph, &setting()), 2);
            assert!(errors.len() <= 1, "one link broke once: {errors:?}");
            assert!(
                errors.iter().all(|e| e.contains("direct link") && e.contains("broke")),
                "{errors:?}"
            );
            assert!(user.world.notices.len() <= 1, "one link broke once: {:?}", user.world.notices);
            failed += errors.len();
            broken += usize::from(user.world.trouble.broken.is_some());
            user.world.events
        };
        let mut events = 0;
        each([None], |whole, log| events = run(whole, log));
        each(1..events, |event, log| {
            run(Some(event), log);
        });
        assert!(
            broken > 200 && failed > 150,
            "links broke {broken} times, {failed} times in a call"
        );
    });
}

#[test]
fn simulator_a_link_broken_anywhere() {
    let models = models::all();
    each_seed(400, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = Setting::random(&mut random, graph);
        let faults = Faults { break_link: Some(random.below(300)), ..Faults::default() };
        let conditions = Conditions::random(&mut random);
        let mut user = user(graph, &setting, random.next(), conditions, faults, log);
        let errors = recover(&mut user, &mut Oracle::new(graph, &setting), 2);
        assert!(errors.len() <= 1 && errors.iter().all(|e| e.contains("broke")), "{errors:?}");
    });
}
