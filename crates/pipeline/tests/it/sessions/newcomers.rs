//! Workers that join, follow and leave a run, one message at a time.

use super::boss_player::{forward, plan, request, run, Boss};
use layerspec::LayerId;
use pipeline::boss::{Instruction, MembershipChange, Prepare, RunRequest};
use pipeline::effect::{BossEffect, Micros};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, RoundUpdate, ToBoss};
use pipeline::schedule::Ending;
use pipeline::watch::{LayerHealth, Watch};
use pipeline::{OptimizerSpec, Plan};
use std::collections::BTreeMap;

const NEWCOMER: WorkerId = WorkerId(2);
const NEXT: WorkerId = WorkerId(3);
const LAST: WorkerId = WorkerId(4);
const UPDATE: RoundUpdate =
    RoundUpdate { lr: 0.1, scale: 1.0, max_norm: None, skip_infinite: false };

/// A pool of two stages with one worker each, which these have joined.
fn pool(newcomers: &[WorkerId]) -> Boss {
    let mut pool = Boss::ready();
    pool.session.open();
    for newcomer in newcomers {
        assert_eq!(pool.session.on_joined(None), *newcomer);
    }
    pool.effects.clear();
    pool
}

/// The plan in which these have the stage of worker 0, too.
fn joined_by(newcomers: &[WorkerId]) -> Plan {
    let joining = newcomers.iter().map(|newcomer| (newcomer, &WorkerId(0)));
    Plan { stage_placement: plan(2).stage_placement.joined_by(joining), ..plan(2) }
}

fn prepare(pool: &mut Boss, worker: WorkerId) {
    let (files, data, optimizer) = (Vec::new(), Vec::new(), OptimizerSpec::adam(0.1));
    let prepare = Prepare { worker, plan: joined_by(&[worker]), files, optimizer, data };
    pool.ask(Instruction::Prepare(Box::new(prepare)));
}

/// These members take part from now on, and the follower gets the state of worker 0.
fn change(pool: &mut Boss, members: &[WorkerId], follower: Option<WorkerId>) {
    let followers = follower.map(|follower| (follower, WorkerId(0)));
    let followers = BTreeMap::from_iter(followers);
    pool.ask(Box::new(MembershipChange { plan: joined_by(members), followers }));
    pool.both_done();
    members.iter().for_each(|member| pool.done(member.0, 0));
    pool.reply().expect("it is carried out");
    pool.effects.clear();
}

/// The end of a training step.
fn ask_step(pool: &mut Boss) {
    let actions = plan(2).layout().ending(Ending::Step);
    pool.ask(request(RunRequest { update: Some(UPDATE), ..run(actions) }));
}

/// The workers that are sent away, with the reasons.
fn dismissed(boss: &Boss) -> Vec<(WorkerId, &str)> {
    let reason = |effect| match effect {
        &BossEffect::Dismiss { worker, ref reason } => Some((worker, &reason[..])),
        _ => None,
    };
    boss.effects.iter().filter_map(reason).collect()
}

/// It ends neither the run nor the requests of the others.
#[test]
fn a_newcomer_that_fails_is_told_from_a_member_that_fails() {
    let failed =
        |pool: &Boss| ToBoss::Failed { id: pool.command, failure: Failure::new("no memory") };
    let mut pool = pool(&[NEWCOMER, NEXT]);
    prepare(&mut pool, NEWCOMER);
    let said = failed(&pool);
    pool.hear(NEWCOMER.0, said, &[]);
    let failure = pool.reply().expect_err("it has failed");
    assert_eq!(failure.to_string(), format!("{NEWCOMER}: no memory"));

    prepare(&mut pool, NEXT);
    let measured = ToBoss::Measured { id: pool.command, times: Vec::new() };
    pool.hear(NEXT.0, measured, &[]);
    pool.done(NEXT.0, 0);
    pool.reply().expect("it is prepared");
    change(&mut pool, &[], Some(NEXT));
    let said = failed(&pool);
    pool.hear(NEXT.0, said, &[]);
    assert_eq!(dismissed(&pool), [(NEXT, "it could not follow: no memory")]);
}

/// It computes the same as its guide does, which reports it.
#[test]
fn a_follower_s_health_does_not_count() {
    let mut pool = pool(&[NEWCOMER]);
    change(&mut pool, &[], Some(NEWCOMER));
    let watch = Watch { health: true, ..Watch::default() };
    let actions = plan(2).layout().ending(Ending::Step);
    pool.ask(request(RunRequest { watch, update: Some(UPDATE), ..run(actions) }));
    let layer = LayerId(0);
    let health = |finite| LayerHealth { layer, finite, has_gradient: true, changed: true };
    for (worker, finite) in [(0, true), (NEWCOMER.0, false)] {
        let layers = vec![health(finite)];
        pool.hear(worker, ToBoss::Health { id: pool.command, layers }, &[]);
    }
    let hangup = |effect: &BossEffect| matches!(effect, BossEffect::Hangup { .. });
    assert!(!pool.effects.iter().any(hangup), "{:?}", pool.effects);
    pool.both_done();
    assert_eq!(pool.results().health, [health(true)]);
}

/// It can begin anew. With the state it can wait for another worker's sums.
#[test]
fn a_follower_goes_with_its_guide_unless_it_has_the_state() {
    let follows = || {
        let mut pool = pool(&[NEWCOMER]);
        change(&mut pool, &[], Some(NEWCOMER));
        pool
    };
    let lost = |mut pool: Boss, worker| {
        pool.session.on_lost(Micros(0), WorkerId(worker), "it fell");
        pool.drain();
        dismissed(&pool).iter().map(|(worker, _)| *worker).collect::<Vec<_>>()
    };
    assert_eq!(lost(follows(), 0), [NEWCOMER]);
    assert_eq!(lost(follows(), 1), []);
    let mut has_state = follows();
    has_state.done(NEWCOMER.0, 0);
    assert_eq!(lost(has_state, 0), []);
}

#[test]
fn a_worker_that_leaves_goes_between_two_requests() {
    let told = "it was told to leave";
    // The current request completes with it, and the one that waits counts on it no more.
    let mut boss = Boss::ready();
    boss.ask(Instruction::Distribute);
    boss.hear(1, ToBoss::Leaving, &[]);
    boss.done(1, 0);
    assert_eq!(dismissed(&boss), []);
    boss.done(0, 0);
    boss.reply().expect("it is carried out");
    assert_eq!(dismissed(&boss), [(WorkerId(1), told)]);
    boss.session.on_lost(Micros(0), WorkerId(1), "closed here");
    let error = boss.refusal(request(forward(1)));
    assert!(error.contains(told), "{error}");

    let mut idle = Boss::ready();
    idle.hear(0, ToBoss::Leaving, &[]);
    assert_eq!(dismissed(&idle), [(WorkerId(0), told)]);

    // Not while a follower waits for its state.
    let mut guide = pool(&[NEWCOMER, NEXT]);
    change(&mut guide, &[NEWCOMER], None);
    change(&mut guide, &[NEWCOMER], Some(NEXT));
    guide.hear(0, ToBoss::Leaving, &[]);
    assert_eq!(guide.effects, [BossEffect::Leaving(WorkerId(0))]);
    guide.done(NEXT.0, 0);
    assert_eq!(dismissed(&guide), [(WorkerId(0), told)]);
}

#[test]
fn the_last_worker_of_a_stage_of_a_pool_stays_until_another_one_has_the_stage() {
    let mut pool = pool(&[NEWCOMER]);
    pool.hear(0, ToBoss::Leaving, &[]);
    pool.hear(0, ToBoss::Leaving, &[]);
    assert_eq!(pool.effects, [BossEffect::Leaving(WorkerId(0))], "told once");

    // The round waits for the follower, however far it is behind.
    change(&mut pool, &[], Some(NEWCOMER));
    let began = pool.command;
    ask_step(&mut pool);
    pool.both_done();
    assert!(pool.answered().is_none());
    let round = std::mem::replace(&mut pool.command, began);
    pool.done(NEWCOMER.0, 0);
    assert!(pool.answered().is_none());
    pool.command = round;
    pool.done(NEWCOMER.0, 0);
    pool.reply().expect("all have completed the round");

    assert_eq!(dismissed(&pool), []);
    change(&mut pool, &[NEWCOMER], None);
    assert!(pool.refusal(request(forward(2))).contains("it was told to leave"));
}

#[test]
fn of_all_that_leave_one_stays_and_one_successor_is_enough() {
    let mut pool = pool(&[NEWCOMER, NEXT, LAST]);
    change(&mut pool, &[NEWCOMER], None);
    // In one round, at whose end none of them is there.
    pool.ask(Instruction::Discard { batch: 1 });
    [NEWCOMER.0, 0].into_iter().for_each(|leaves| pool.hear(leaves, ToBoss::Leaving, &[]));
    [0, 1, 2].into_iter().for_each(|member| pool.done(member, 0));
    pool.reply().expect("it is carried out");
    assert_eq!(dismissed(&pool), [(NEWCOMER, "it was told to leave")]);

    let followers = [NEXT, LAST].map(|follower| (follower, WorkerId(0)));
    pool.ask(Box::new(MembershipChange { plan: plan(2), followers: BTreeMap::from(followers) }));
    pool.both_done();
    pool.reply().expect("it is carried out");
    let began = pool.command;
    ask_step(&mut pool);
    let round = pool.command;
    pool.both_done();
    for command in [began, round] {
        assert!(pool.answered().is_none());
        pool.command = command;
        pool.done(LAST.0, 0);
    }
    pool.reply().expect("the other one may be slow");
}
