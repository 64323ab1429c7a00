//! Whatever can strike a run strikes it at every event: a worker is killed, does nothing for a while, is given up and comes
//! again, two sides hear nothing of each other, the boss is killed and begins again; and every frame is late, or comes twice.
//! The weights are those of the run that nothing strikes, everything ends, and no tensor is left behind.

use crate::course::{Course, Membership};
use crate::network::Conditions;
use crate::seeds::{each, Log};
use crate::strikes::{Mishap, Strike, Strikes};
use crate::{models, Setting};
use pipeline::ids::WorkerId;
use pipeline::replicas::Sharding;
use pipeline::ScheduleKind;
use std::collections::BTreeSet;
use testkit::Random;

/// Three stages one after the other.
fn pipeline() -> Course {
    let way = |cuts: &[&str]| Setting::plain(cuts, ScheduleKind::OneFOneB, 2);
    Course::new(models::model("skip"), vec![way(&["2", "4"]), way(&["4"]), way(&[])], (2, Some(1)), 3)
}

/// Two stages, the first of which two workers have.
fn replicas(sharding: Option<Sharding>) -> Course {
    let way = |cuts: &[&str], replicas: &[u16]| {
        let mut way = Setting::plain(cuts, ScheduleKind::OneFOneB, 2).with_replicas(&mut Random::new(1));
        (way.replicas, way.max_norm, way.sharding) = (replicas.to_vec(), Some(500.0), sharding);
        way
    };
    Course::new(models::model("skip"), vec![way(&["2"], &[2, 1]), way(&[], &[2]), way(&[], &[1])], (2, Some(1)), 3)
}

fn courses() -> Vec<Course> {
    let slow = Conditions { delay: 10_000, ..Conditions::CALM };
    vec![pipeline(), replicas(None), replicas(Some(Sharding::Parameters)).under(slow, 6)]
}

/// Every set of some workers.
fn groups(workers: u16) -> Vec<BTreeSet<WorkerId>> {
    let member = |set: u32, worker: &u16| set >> worker & 1 == 1;
    let set = |set| (0..workers).filter(|worker| member(set, worker)).map(WorkerId).collect();
    (1..1 << workers).map(set).collect()
}

/// All groups at every event of the first course, and of the others half of them at an event and half at the next.
fn of_event<T: Clone>(groups: &[T], (course, event): (usize, u64)) -> Vec<T> {
    let due = |place: usize| course == 0 || (place as u64 + event).is_multiple_of(2);
    groups.iter().enumerate().filter(|(place, _)| due(*place)).map(|(_, group)| group.clone()).collect()
}

/// Plays a course for every event and each of these strikes; what comes after the first membership is up to `more`.
fn sweep(course: &Course, strikes: impl Fn(u64) -> Vec<Vec<Strikes>>, mut came: impl FnMut(&[Membership])) {
    let quiet = course.play(&[], Log::default());
    assert_eq!(quiet.len(), 1);
    let (events, mut struck) = (quiet[0].events, 0);
    for event in 1..=events {
        for strikes in strikes(event) {
            each([&strikes], |strikes, log| {
                let memberships = course.play(strikes, log);
                struck += u64::from(!memberships[0].struck.strikes.is_empty());
                came(&memberships);
            });
        }
    }
    assert!(struck >= events, "{struck} strikes at {events} events");
}

#[test]
fn simulator_a_worker_is_killed_at_every_event() {
    for course in courses() {
        let workers = (0..course.workers()).map(WorkerId);
        let strikes = |event| workers.clone().map(|worker| vec![Strikes::at(event, Strike::Kill(worker))]).collect();
        sweep(&course, strikes, |_| {});
    }
}

#[test]
fn simulator_a_worker_does_nothing_for_a_while_at_every_event() {
    const PAUSES: [u64; 3] = [500, 20_000, 2_900_000];
    for course in courses() {
        let workers = (0..course.workers()).map(WorkerId);
        let pause = |event, worker: WorkerId| {
            let time = PAUSES[(event as usize + usize::from(worker.0)) % PAUSES.len()];
            vec![Strikes::at(event, Strike::Pause(worker, time))]
        };
        let strikes = |event| workers.clone().map(|worker| pause(event, worker)).collect();
        sweep(&course, strikes, |memberships| assert_eq!(memberships.len(), 1, "nobody is lost"));
    }
}

#[test]
fn simulator_a_worker_is_given_up_and_comes_again_at_every_event() {
    for course in courses() {
        let workers = (0..course.workers()).map(WorkerId);
        let strikes = |event| workers.clone().map(|worker| vec![Strikes::at(event, Strike::Silence(worker))]).collect();
        sweep(&course, strikes, |_| {});
    }
}

#[test]
fn simulator_two_sides_hear_nothing_of_each_other_for_a_while_at_every_event() {
    const TIMES: [u64; 3] = [500, 20_000, 2_900_000];
    for (number, course) in courses().into_iter().enumerate() {
        let groups = groups(course.workers());
        let hold = |event: u64, far: BTreeSet<WorkerId>| {
            let time = TIMES[(event as usize + far.len()) % TIMES.len()];
            vec![Strikes::at(event, Strike::Hold(far, time))]
        };
        let strikes = |event| of_event(&groups, (number, event)).into_iter().map(|far| hold(event, far)).collect();
        sweep(&course, strikes, |memberships| assert_eq!(memberships.len(), 1, "nobody is lost"));
    }
}

#[test]
fn simulator_two_sides_give_each_other_up_at_every_event() {
    for (number, course) in courses().into_iter().enumerate() {
        let groups = groups(course.workers());
        // Those who are left go on, until the others are there again.
        let split = |event: u64, far: BTreeSet<WorkerId>| {
            vec![Strikes::at(event, Strike::Split(far)), Strikes::at(1 + event * 7 % 200, Strike::KillBoss)]
        };
        let strikes = |event| of_event(&groups, (number, event)).into_iter().map(|far| split(event, far)).collect();
        sweep(&course, strikes, |_| {});
    }
}

#[test]
fn simulator_the_boss_is_killed_at_every_event() {
    for course in courses() {
        let kill = |event| Strikes::at(event, Strike::KillBoss);
        let strikes = |event: u64| vec![vec![kill(event)], vec![kill(event), kill(1 + event * 7 % 200)]];
        sweep(&course, strikes, |memberships| assert!(memberships.len() <= 3));
    }
}

/// Plays a course for every frame and each of these mishaps.
fn sweep_frames(course: &Course, mishaps: &[Mishap], came: impl Fn(&[Membership])) {
    let frames = course.play(&[], Log::default())[0].frames;
    for frame in 1..=frames {
        each(mishaps, |mishap, log| {
            let memberships = course.play(&[Strikes::of(frame, *mishap)], log);
            assert_eq!(memberships[0].struck.mishaps, [*mishap]);
            came(&memberships);
        });
    }
}

#[test]
fn simulator_every_frame_is_late() {
    for course in courses() {
        sweep_frames(&course, &[700, 30_000, 2_900_000].map(Mishap::Late), |memberships| {
            assert_eq!(memberships.len(), 1, "nobody is lost");
        });
    }
}

#[test]
fn simulator_every_frame_comes_twice() {
    for course in courses() {
        sweep_frames(&course, &[0, 300, 20_000, 1_000_000].map(Mishap::Twice), |memberships| {
            assert!(memberships.len() <= 2, "one frame cost {} memberships", memberships.len() - 1);
        });
    }
}
