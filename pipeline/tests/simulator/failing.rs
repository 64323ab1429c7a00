//! A task fails: one error names the place, and the fleet goes on as if it had not happened.

use crate::calls::Call;
use crate::faults::{Faults, MESSAGE};
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_seed, Random};
use crate::user::User;
use crate::{models, user, Setting};
use pipeline::ScheduleKind;

/// Trains by hand and in rounds, and calls again what failed. Gives the errors, less those that only
/// say that a step came too far to be undone; the results are those of the uncut model.
pub(crate) fn recover(user: &mut User<'_>, oracle: &mut Oracle<'_>, steps: u64) -> Vec<String> {
    let mut errors = Vec::new();
    again(user, oracle, Call::Distribute, &mut errors);
    again(user, oracle, Call::Optimizer(1), &mut errors);
    for step in 1..=steps {
        again(user, oracle, Call::State, &mut errors);
        again(user, oracle, Call::Load(0), &mut errors);
        let steps_before = user.world.faults.steps;
        let train = user.call(Call::Train(step));
        let Err(failure) = train else {
            assert_eq!(train, Ok(oracle.call(Call::Train(step))));
            continue;
        };
        errors.push(failure.to_string());
        user.world.settle();
        // Torn exactly if some stage has updated its parameters.
        if user.world.faults.steps > steps_before {
            for call in [Call::Train(step), Call::Eval(step), Call::State] {
                let failure = user.call(call).expect_err("some stages are a step ahead");
                assert!(failure.to_string().contains("load a state_dict to go on"), "{failure}");
            }
            // The parameters as before the step, the optimizer's state anew, here as there.
            for call in [Call::Load(0), Call::Optimizer(step)] {
                again(user, oracle, call, &mut errors);
            }
        }
        again(user, oracle, Call::Train(step), &mut errors);
        user.world.assert_clear();
    }
    for call in [Call::Forward(90), Call::Eval(91)] {
        again(user, oracle, call, &mut errors);
    }
    again(user, oracle, Call::State, &mut errors);
    user.stop();
    errors
}

/// Calls once more if it fails.
fn again(user: &mut User<'_>, oracle: &mut Oracle<'_>, call: Call, errors: &mut Vec<String>) {
    let first = user.call(call);
    let answered = first.or_else(|failure| {
        errors.push(failure.to_string());
        user.call(call)
    });
    assert_eq!(answered, Ok(oracle.call(call)), "{call:?}");
}

fn one_failure(user: &mut User<'_>, oracle: &mut Oracle<'_>) -> bool {
    let errors = recover(user, oracle, 2);
    match &user.world.faults.failed {
        None => assert_eq!(errors, [""; 0]),
        Some(failed) => {
            let [error] = errors.as_slice() else { panic!("one task failed: {errors:?}") };
            let failed = failed.to_string();
            let place = failed.strip_suffix(MESSAGE).and_then(|text| text.strip_suffix(": ")).expect("place: message");
            assert!(error.starts_with(place) && error.ends_with(MESSAGE), "not an error of {place}: {error}");
        }
    }
    user.world.faults.failed.is_some()
}

#[test]
fn simulator_every_task_fails_once() {
    let graph = models::model("skip");
    let cuts = ["2", "4"].map(String::from).to_vec();
    let setting = Setting { cuts, kind: ScheduleKind::OneFOneB, microbatches: 3 };
    each([Conditions::CALM, Conditions { delay: 10_000, ..Conditions::CALM }], |conditions, _| {
        let mut task = 1;
        let mut more = true;
        while more {
            each([task], |task, log| {
                let faults = Faults { fail_task: Some(task), ..Faults::default() };
                let mut user = user(&graph, &setting, task, conditions, faults, log);
                more = one_failure(&mut user, &mut Oracle::new(&graph, setting.microbatches));
            });
            task += 1;
        }
        assert!(task > 60, "only {task} tasks");
    });
}

#[test]
fn simulator_any_task_fails() {
    let models = models::all();
    each_seed(1000, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = Setting::random(&mut random, graph);
        let conditions = Conditions::random(&mut random);
        let faults = Faults { fail_task: Some(1 + random.below(100)), ..Faults::default() };
        log.note(|| format!("{}: {setting:?}, {conditions:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), conditions, faults, log);
        one_failure(&mut user, &mut Oracle::new(graph, setting.microbatches));
    });
}
