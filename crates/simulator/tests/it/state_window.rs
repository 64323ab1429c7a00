//! State that travels through a window: what was fetched is right, and workers wait for the boss.

use crate::calls::Call;
use crate::faults::Faults;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::each;
use crate::{compare, models, user, Setting};
use pipeline::ScheduleKind;

const CALLS: [Call; 7] = [
    Call::Distribute,
    Call::Optimizer(1),
    Call::State,
    Call::Train(1),
    Call::Checkpoint,
    Call::Train(2),
    Call::Checkpoint,
];

#[test]
fn simulator_state_travels_through_a_window() {
    let graph = models::model("skip");
    let mut used = 0;
    each(1..=20, |seed, log| {
        let setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 2);
        let mut user = user(&graph, &setting, seed, Conditions::CALM, Faults::default(), log);
        compare(&mut user, &mut Oracle::new(&graph, &setting), &CALLS);
        used += user.world.windows_used;
        user.stop();
    });
    assert!(used > 20, "only {used} frames waited for others to be taken");
}

#[test]
fn simulator_state_travels_while_training_goes_on() {
    let graph = models::model("skip");
    each(1..=20, |seed, log| {
        let setting = Setting::plain(&["2"], ScheduleKind::OneFOneB, 2);
        let mut user = user(&graph, &setting, seed, Conditions::CALM, Faults::default(), log);
        let mut oracle = Oracle::new(&graph, &setting);
        let requests: Vec<u64> = CALLS.iter().map(|call| user.submit(*call)).collect();
        for (call, request) in CALLS.into_iter().zip(requests) {
            let answered = user.world.reply(request).result.expect("nothing fails");
            assert_eq!(answered, oracle.call(call), "{call:?}");
        }
        user.stop();
    });
}
