//! A task fails. One error names the place, and the fleet continues as if it had not happened.

use crate::calls::{Answered, Call};
use crate::faults::{Faults, MESSAGE};
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::seeds::{each, each_seed};
use crate::user::User;
use crate::{models, user, Setting};
use pipeline::message::Failure;
use pipeline::ScheduleKind;
use testkit::Random;

/// Trains, and repeats failed calls. The results are those of the uncut model. Returns the errors,
/// without those that only state that a step cannot be undone.
pub fn recover(user: &mut User<'_>, oracle: &mut Oracle<'_>, steps: u64) -> Vec<String> {
    let mut errors = Vec::new();
    again(user, oracle, Call::Distribute, &mut errors);
    again(user, oracle, Call::Optimizer(1), &mut errors);
    for step in 1..=steps {
        again(user, oracle, Call::State, &mut errors);
        again(user, oracle, Call::Load(0), &mut errors);
        let updates = user.world.trouble.updates;
        let mut trained = train(user, step, &mut errors);
        if let Err(failure) = &trained {
            errors.push(failure.to_string());
            user.world.settle();
            user.world.assert_clear();
            // A step that was begun by hand cannot be completed.
            for call in [Call::Backward(step), Call::OptimStep(step)]
                .into_iter()
                .filter(|_| step % 3 == BY_HAND)
            {
                let failure = user.call(call).expect_err("the batch is cancelled").to_string();
                assert!(
                    failure.contains("begin again with forward()")
                        || failure.contains("load a state_dict")
                );
            }
            // The model is inconsistent exactly if some stage has updated its parameters.
            if user.world.trouble.updates > updates {
                mend(user, oracle, step, &mut errors);
            }
            trained = train(user, step, &mut errors);
        }
        let expected: Vec<_> = training(step).into_iter().map(|call| oracle.call(call)).collect();
        assert_eq!(trained, Ok(expected), "step {step}");
        user.world.assert_clear();
    }
    again(user, oracle, Call::State, &mut errors);
    user.stop();
    errors
}

/// One update: by hand with other calls in between, over the gradients of two steps, or in one
/// call.
fn training(step: u64) -> Vec<Call> {
    let other = Call::Eval(step);
    match step % 3 {
        BY_HAND => {
            vec![
                Call::Forward(step),
                other,
                Call::Backward(step),
                other,
                Call::State,
                Call::OptimStep(step),
            ]
        }
        2 => vec![Call::Gather(step + 100), other, Call::Train(step)],
        _ => vec![Call::Train(step)],
    }
}

const BY_HAND: u64 = 1;

/// Runs a step. Other calls may fail and be repeated without harm to the step.
fn train(
    user: &mut User<'_>,
    step: u64,
    errors: &mut Vec<String>,
) -> Result<Vec<Answered>, Failure> {
    let call = |call: Call| match (call, user.call(call)) {
        (Call::Eval(_) | Call::State, Err(failure)) => {
            errors.push(failure.to_string());
            user.call(call)
        }
        (_, result) => result,
    };
    training(step).into_iter().map(call).collect()
}

/// Repairs a model with some stages a step ahead. The optimizer state of those stages is unknown,
/// so it starts anew, as in the reference.
fn mend(user: &mut User<'_>, oracle: &mut Oracle<'_>, step: u64, errors: &mut Vec<String>) {
    // Many attempts, which use up numbers of batches.
    let tries = [Call::Train(step); 70].into_iter().chain([Call::Eval(step), Call::State]);
    for call in tries {
        let failure = user.call(call).expect_err("some stages are a step ahead");
        assert!(
            failure.to_string().contains("load a state_dict and send the optimizer again"),
            "{failure}"
        );
    }
    let fresh = if user.world.events.is_multiple_of(2) { Call::Distribute } else { Call::Load(0) };
    again(user, oracle, fresh, errors);
    if let Call::Load(_) = fresh {
        // The optimizer's state is still a step ahead.
        user.call(Call::Train(step)).expect_err("the optimizer was not sent again");
    }
    again(user, oracle, Call::Optimizer(step), errors);
}

/// Calls, and repeats a failed call once.
fn again(user: &mut User<'_>, oracle: &mut Oracle<'_>, call: Call, errors: &mut Vec<String>) {
    let first = user.call(call);
    let answered = first.or_else(|failure| {
        errors.push(failure.to_string());
        if let Call::Load(_) = call {
            // Some workers may have the new weights, and others the old ones.
            let failure =
                user.call(Call::Eval(1)).expect_err("weights may not belong together").to_string();
            assert!(failure.contains("load a state_dict again"), "{failure}");
        }
        user.call(call)
    });
    assert_eq!(answered, Ok(oracle.call(call)), "{call:?}");
}

fn one_failure(user: &mut User<'_>, oracle: &mut Oracle<'_>) -> bool {
    let errors = recover(user, oracle, 3);
    match &user.world.trouble.failed {
        None => assert_eq!(errors, [""; 0]),
        Some(failed) => {
            let [error] = errors.as_slice() else { panic!("one task failed: {errors:?}") };
            let failed = failed.to_string();
            let place = failed
                .strip_suffix(MESSAGE)
                .and_then(|text| text.strip_suffix(": "))
                .expect("place: message");
            assert!(
                error.starts_with(place) && error.ends_with(MESSAGE),
                "not an error of {place}: {error}"
            );
        }
    }
    user.world.trouble.failed.is_some()
}

#[test]
fn simulator_every_task_fails_once() {
    let graph = models::model("skip");
    let setting = Setting::plain(&["2", "4"], ScheduleKind::OneFOneB, 3);
    each([Conditions::CALM, Conditions { delay: 10_000, ..Conditions::CALM }], |conditions, _| {
        let mut failed = 0;
        each(1..300, |task, log| {
            let faults = Faults { fail_task: Some(task), ..Faults::default() };
            let mut user = user(&graph, &setting, task, conditions, faults, log);
            failed += u32::from(one_failure(&mut user, &mut Oracle::new(&graph, &setting)));
        });
        assert!(
            (60..299).contains(&failed),
            "{failed} tasks failed; the run has more than 60 and fewer than 299"
        );
    });
}

#[test]
fn simulator_any_task_fails() {
    let models = models::all();
    each_seed(600, |seed, log| {
        let mut random = Random::new(seed);
        let graph = random.pick(&models);
        let setting = Setting::random(&mut random, graph);
        let conditions = Conditions::random(&mut random);
        let faults = Faults { fail_task: Some(1 + random.below(250)), ..Faults::default() };
        log.note(|| format!("{}: {setting:?}, {conditions:?}", graph.name()));
        let mut user = user(graph, &setting, random.next(), conditions, faults, log);
        one_failure(&mut user, &mut Oracle::new(graph, &setting));
    });
}
