//! Each test is a script: events and the decisions that follow them, as text.

use super::*;
use crate::ids::StageId;
use crate::message::Failure;
use crate::replicas::{MicrobatchAssignment, Speed};

/// A pool, and the change of members that the workers do not know yet.
struct Pool {
    membership: Membership,
    change: Option<Change>,
    position: Position,
    slow: Option<WorkerId>,
}

/// Plays a script on a pool whose stages have these workers, as `0,1 2`. A line of the script is an
/// event, and after `=>` what follows.
fn play(placement: &str, script: &str) {
    let stages = placement.split(' ').map(|stage| stage.split(',').map(worker).collect());
    let placement = StagePlacement::new(stages.collect());
    let workers = placement.members().into_iter().map(|worker| (worker, process(worker)));
    let membership = Membership::new(placement.clone(), workers.collect());
    let mut pool = Pool { membership, change: None, position: Position::default(), slow: None };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expected) = line.split_once("=>").unwrap_or((line, ""));
        assert_eq!(pool.on(event), expected.trim(), "after `{event}`");
    }
}

impl Pool {
    /// Reports an event. Returns the decisions, and the result.
    fn on(&mut self, event: &str) -> String {
        let mut words = event.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let result = self.result(verb, &words);
        let decisions: Vec<String> =
            std::iter::from_fn(|| self.membership.poll_decision()).map(decision).collect();
        decisions.into_iter().chain(result).collect::<Vec<_>>().join("; ")
    }

    fn result(&mut self, verb: &str, words: &[&str]) -> Option<String> {
        let first = || worker(words[0]);
        let membership = &mut self.membership;
        match verb {
            "joined" => {
                let process = process(words.get(2).map_or_else(first, |old| worker(old)));
                membership.on_joined(first(), process);
            }
            "leaving" => membership.on_leaving(first()),
            "left" => membership.on_left(first(), "it was tired"),
            "prepared" => membership.on_prepared(first(), Ok(())),
            "unfit" => return Some(format!("{}", membership.on_unfit(first()))),
            "unprepared" => membership.on_prepared(first(), Err(Failure::new("no memory"))),
            "slow" => self.slow = words.first().map(|word| worker(word)),
            "steps" => {
                let steps = words[0].parse().expect("a number");
                (0..steps).for_each(|_| self.step(behind(&words[1..])));
            }
            "update" => return Some(self.update()),
            "accepted" => {
                let change = self.change.take().expect("a change");
                membership.on_changed(change, behind(words));
            }
            "refused" => {
                let change = self.change.take().expect("a change");
                membership.on_change_failed(change);
            }
            "lost" => {
                return Some(format!("{:?}", membership.on_failure(&Failure::lost("").on(first()))))
            }
            "failed" => {
                let failure = Failure::new("it has a fault").on(first());
                return Some(format!("{:?}", membership.on_failure(&failure)));
            }
            "state" => return Some(format!("{:?}", membership.state(first()).expect("a member"))),
            other => panic!("no event is called `{other}`"),
        }
        None
    }

    fn step(&mut self, behind: BTreeMap<WorkerId, usize>) {
        self.position.step += 1;
        self.position.updates += 1;
        self.membership.set_position(self.position);
        let assignment = MicrobatchAssignment::even(self.membership.placement(), 4);
        let step = self.position.step;
        let (samples, microbatches, assignment) = (10, 4, &assignment);
        self.membership.on_step(StepDone { step, samples, microbatches, assignment, behind });
    }

    fn update(&mut self) -> String {
        let slow = self.slow;
        let speed = |_: StageId, worker| {
            Speed::from(if Some(worker) == slow { 10_000_000 } else { 1_000_000 })
        };
        let times = StepTimes { stages: &[], microbatches: 4, speed: &speed };
        self.change = match self.membership.update(&times) {
            Ok(change) => change,
            Err(failure) => return failure.to_string(),
        };
        self.change.as_ref().map_or("same".into(), |Change { placement, followers }| {
            let followers =
                followers.iter().map(|(w, guide)| format!(", {} like {}", w.0, guide.0));
            text(placement) + &followers.collect::<String>()
        })
    }
}

fn worker(word: &str) -> WorkerId {
    WorkerId(word.parse().expect("a worker"))
}

/// The process of a worker. As in containers, all have one process id.
fn process(worker: WorkerId) -> Process {
    Process { id: 1, instance: worker.0.into(), ..Process::default() }
}

/// Parses `3:1`: worker 3 has still one command to run.
fn behind(words: &[&str]) -> BTreeMap<WorkerId, usize> {
    let parse = |word: &&str| {
        let (follower, commands) = word.split_once(':').expect("a follower");
        (worker(follower), commands.parse().expect("a number"))
    };
    words.iter().map(parse).collect()
}

fn text(placement: &StagePlacement) -> String {
    let number = |worker: &WorkerId| worker.0.to_string();
    let stage = |workers: &[WorkerId]| workers.iter().map(number).collect::<Vec<_>>().join(",");
    placement.iter().map(|(_, workers)| stage(workers)).collect::<Vec<_>>().join(" ")
}

fn decision(decision: Decision) -> String {
    match decision {
        Decision::Notice(notice) => notice.to_string(),
        Decision::Prepare { worker, placement } => {
            format!("prepare {} in {}", worker.0, text(&placement))
        }
        Decision::Disconnect { worker, reason } => format!("disconnect {} ({reason})", worker.0),
        Decision::ForgetTimes(worker) => format!("forget {}", worker.0),
    }
}

#[test]
fn workers_join_where_the_fewest_are() {
    play(
        "0,1 2",
        "joined 3
         update       => prepare 3 in 0,1 2,3; same
         joined 4
         update       => prepare 4 in 0,1,4 2; same
         prepared 3
         prepared 3
         update       => 0,1 2, 3 like 2
         accepted 3:2
         prepared 4
         update       => 0,1 2, 3 like 2, 4 like 1
         accepted 3:1 4:3
         update       => same
         steps 1 3:0 4:2
         update       => 0,1 2,3, 4 like 1
         accepted 4:2 => step 2: 4 workers
         state 3      => Active
         state 4      => CatchingUp(WorkerId(1))
         steps 1 4:0
         update       => 0,1,4 2,3
         accepted     => step 3: 5 workers
         update       => same",
    );
}

#[test]
fn a_worker_that_fits_another_stage_goes_there() {
    play(
        "0 1 2,3",
        "joined 4
         update       => prepare 4 in 0,4 1 2,3; same
         unfit 4      => true
         state 4      => Joined
         update       => prepare 4 in 0 1,4 2,3; same
         unfit 4      => true
         joined 5
         update       => prepare 4 in 0 1 2,3,4; prepare 5 in 0,5 1 2,3; same
         unfit 4      => false
         unprepared 4 => worker 4 cannot take part: no memory; disconnect 4 (no memory); \
                         worker 4 left (no memory)
         unfit 4      => false
         prepared 5
         unfit 5      => false
         update       => 0 1 2,3, 5 like 0",
    );
}

#[test]
fn a_worker_may_leave_before_it_takes_part() {
    play(
        "0,1",
        "joined 2
         left 2       => worker 2 left (it was tired)
         left 2
         update       => same
         joined 3
         update       => prepare 3 in 0,1,3; same
         left 3       => worker 3 left (it was tired)
         prepared 3
         unprepared 3
         update       => same
         joined 4
         update       => prepare 4 in 0,1,4; same
         prepared 4
         left 4       => worker 4 left (it was tired)
         update       => same",
    );
}

#[test]
fn a_worker_that_cannot_be_prepared_waits_when_it_joins_again() {
    play(
        "0",
        "joined 1
         update       => prepare 1 in 0,1; same
         unprepared 1 => worker 1 cannot take part: no memory; disconnect 1 (no memory); \
                         worker 1 left (no memory)
         joined 2 as 1 => \
                          worker 2 is put aside: it was here before: no memory
         state 2      => Evicted { reason: \"it was here before: no memory\", until: 200 }
         update       => same
         steps 200
         update       => forget 2; prepare 2 in 0,2; same",
    );
}

#[test]
fn a_follower_gets_another_guide_if_its_own_leaves() {
    play(
        "0,1 2,3",
        "joined 4
         update       => prepare 4 in 0,1,4 2,3; same
         prepared 4
         update       => 0,1 2,3, 4 like 0
         accepted 4:3
         left 0       => worker 0 left (it was tired)
         update       => 1 2,3, 4 like 1
         accepted 4:1 => step 1: 3 workers
         update       => same",
    );
}

#[test]
fn a_follower_that_has_caught_up_replaces_its_guide() {
    play(
        "0,1",
        "joined 2
         update       => prepare 2 in 0,1,2; same
         prepared 2
         update       => 0,1, 2 like 0
         accepted 2:1
         steps 1 2:0
         left 0       => worker 0 left (it was tired)
         update       => 1,2
         lost 1       => Repeat
         refused
         state 2      => Active
         left 1       => worker 1 left (it was tired)
         update       => 2
         accepted     => step 2: 1 workers
         update       => same",
    );
}

#[test]
fn a_new_follower_waits_if_the_change_fails() {
    play(
        "0,1",
        "joined 2
         update       => prepare 2 in 0,1,2; same
         prepared 2
         update       => 0,1, 2 like 0
         lost 1       => Repeat
         refused
         state 2      => Ready(StageId(0))
         left 1       => worker 1 left (it was tired)
         update       => 0, 2 like 0
         accepted 2:2 => step 1: 1 workers
         state 2      => CatchingUp(WorkerId(0))",
    );
}

#[test]
fn a_stage_that_loses_its_last_worker_ends_the_run() {
    play(
        "0,1 2",
        "joined 3
         update       => prepare 3 in 0,1 2,3; same
         prepared 3
         update       => 0,1 2, 3 like 2
         accepted 3:4
         left 2       => worker 2 left (it was tired)
         update       => everybody has left who had stage 1, and its weights are gone with them",
    );
}

#[test]
fn a_straggler_is_evicted_and_tried_again() {
    play(
        "0,1,2",
        "slow 1
         steps 4
         update       => same
         steps 1
         update       => worker 1 is put aside: \
                         a step takes 10 ms with it and 2 ms without; 0,2
         accepted     => step 6: 2 workers
         steps 199
         update       => same
         steps 1
         update       => forget 1; prepare 1 in 0,2,1; same
         prepared 1
         update       => 0,2, 1 like 0
         accepted 1:1
         steps 1 1:0
         update       => 0,2,1
         accepted     => step 207: 3 workers
         steps 4
         update       => same
         steps 1
         update       => worker 1 is put aside: \
                         a step takes 10 ms with it and 2 ms without; 0,2",
    );
}

#[test]
fn a_worker_that_was_put_aside_replaces_the_last_one() {
    play(
        "0,1",
        "slow 1
         steps 5
         update       => worker 1 is put aside: \
                         a step takes 10 ms with it and 4 ms without; 0
         accepted     => step 6: 1 workers
         steps 1
         update       => same
         leaving 0    => worker 0 leaves as soon as another worker has its layers
         update       => forget 1; prepare 1 in 0,1; same
         prepared 1
         update       => 0, 1 like 0
         accepted 1:1
         steps 1 1:0
         update       => 0,1
         accepted     => step 8: 2 workers
         steps 9
         update       => same
         left 0       => worker 0 left (it was tired)
         update       => 1
         accepted     => step 17: 1 workers",
    );
}

#[test]
fn a_follower_gets_its_state_from_one_that_stays() {
    play(
        "0,1",
        "joined 2
         leaving 0
         update       => prepare 2 in 0,1,2; same
         prepared 2
         update       => 0,1, 2 like 1",
    );
}

#[test]
fn a_worker_joins_the_stage_that_its_last_worker_leaves() {
    play(
        "0,1 2,3",
        "leaving 2
         leaving 3    => worker 3 leaves as soon as another worker has its layers
         joined 4
         update       => prepare 4 in 0,1 2,3,4; same",
    );
}

#[test]
fn the_last_worker_of_a_stage_is_no_straggler() {
    play(
        "0,1 2",
        "slow 2
         steps 9
         update       => same",
    );
}

#[test]
fn a_follower_that_falls_too_far_behind_is_disconnected() {
    play(
        "0",
        "joined 1
         update       => prepare 1 in 0,1; same
         prepared 1
         update       => 0, 1 like 0
         accepted 1:11
         steps 1 1:12
         steps 1 1:13 => disconnect 1 (its line or its processor is too slow: it fell further \
                         behind while it caught up)
         left 1       => worker 1 left (it was tired)
         update       => same
         joined 2 as 1 => worker 2 is put aside: it was here before: \
                          its line or its processor is too slow: it fell further behind while it \
                          caught up",
    );
}

#[test]
fn a_member_that_fails_is_removed_and_a_second_one_proves_the_step_wrong() {
    play(
        "0,1,2",
        "failed 1     => worker 1 failed and is removed: worker 1: it has a fault; \
                         disconnect 1 (it failed: it has a fault); RepeatWithout(WorkerId(1))
         left 1
         update       => 0,2
         accepted     => step 1: 2 workers
         failed 2     => Stop(WouldFailAgain)",
    );
}

/// Nobody else has the state, and the failure would come again.
#[test]
fn the_only_worker_of_a_stage_that_fails_ends_the_run() {
    play("0,1 2", "failed 2     => Stop(WouldFailAgain)");
    // The other one has left.
    play(
        "0,1 2",
        "left 1       => worker 1 left (it was tired)
         failed 0     => Stop(WouldFailAgain)",
    );
}

/// The workers do not know yet that it is removed, but it must not take part again.
#[test]
fn a_member_that_fails_during_a_change_stays_removed() {
    play(
        "0,1,2",
        "lost 0       => Repeat
         update       => 0,1,2
         failed 1     => worker 1 failed and is removed: worker 1: it has a fault; \
                         disconnect 1 (it failed: it has a fault); RepeatWithout(WorkerId(1))
         refused
         state 1      => Left { reason: \"it failed\" }
         update       => 0,2",
    );
}

#[test]
fn failures_without_progress_stop() {
    let repeat = "lost 0 => Repeat\n";
    let limit = crate::recovery::POOL_ATTEMPTS as usize + 2;
    play("0,1", &(repeat.repeat(limit) + "lost 0 => Stop(TooManyAttempts)"));
    play("0,1", &(repeat.repeat(limit) + "steps 1\n" + &repeat.repeat(limit)));
}

#[test]
fn a_step_counts_for_each_member_by_its_share() {
    let placement = StagePlacement::new(vec![vec![WorkerId(0), WorkerId(1)]]);
    let workers = placement.members().into_iter().map(|worker| (worker, process(worker)));
    let mut membership = Membership::new(placement.clone(), workers.collect());
    let link = |from, to, bytes_per_second| LinkRate {
        from: WorkerId(from),
        to: WorkerId(to),
        bytes_per_second,
    };
    // A rate of zero is unknown, and worker 2 is no member.
    membership.set_links(vec![link(0, 1, 7), link(1, 0, 5), link(0, 2, 1), link(1, 0, 0)]);
    // The replicas take three microbatches and one.
    let speed = |_: StageId, worker: WorkerId| 1 + 2 * u64::from(worker.0);
    let assignment = &MicrobatchAssignment::by_speed(&placement, 4, speed);
    let (step, samples, microbatches, behind) = (1, 10, 4, BTreeMap::new());
    membership.on_step(StepDone { step, samples, microbatches, assignment, behind });
    let found = membership.members().map(|(_, m)| (m.share, m.samples, m.bytes_per_second));
    assert_eq!(found.collect::<Vec<_>>(), [(0.75, 8, Some(5)), (0.25, 2, Some(5))]);
}

/// Two containers of one name, whose processes have one id. JOIN-9.
#[test]
fn a_process_like_a_removed_one_is_not_held_back() {
    let placement = StagePlacement::new(vec![vec![WorkerId(0), WorkerId(1)]]);
    let workers = placement.members().into_iter().map(|worker| (worker, process(worker)));
    let mut membership = Membership::new(placement, workers.collect());
    membership.disconnect(WorkerId(1), "it was slow");
    membership.on_joined(WorkerId(2), Process { instance: 9, ..process(WorkerId(1)) });
    assert_eq!(membership.state(WorkerId(2)), Some(&MemberState::Joined));
    membership.on_joined(WorkerId(3), process(WorkerId(1)));
    let held_back = membership.state(WorkerId(3)).and_then(MemberState::reason);
    assert_eq!(held_back, Some("it was here before: it was slow"));
}
