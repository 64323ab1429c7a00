//! Law 1: the cut never shows. Losses and weights after 20 steps are equal to the bit to one
//! process, wherever the model is cut, whichever schedule runs, whatever order packets arrive in.
//!
//! One compute thread everywhere: libtorch sums the gradients of LayerNorm's and Conv2d's parameters
//! apart for each thread, so their last bits depend on how many there are.
//!
//! `cargo test -p tests --test law_1 -- --nocapture` prints what was compared.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

use pipeline::{Cuts, Plan, ScheduleKind};
use std::fmt;
use tests::programs::by_hand;
use tests::{cuts, one_process, train, Case, Fleet, Memory, Sockets, Training, MICROBATCHES, STEPS};

const SCHEDULES: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneFOneB];

/// One way to train a case, to name it where it differs.
struct Way<'a> {
    case: &'a Case,
    plan: &'a Plan,
    kind: ScheduleKind,
    microbatches: u32,
    over: &'static str,
}

impl Way<'_> {
    fn check(&self, expected: &Training, mut fleet: impl Fleet) {
        let training = train(self.case, self.plan, self.kind, self.microbatches, &mut fleet);
        expected.assert_same(&training, self);
    }
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts = self.plan.stages[1..].iter().map(|stage| stage.layers[0].name.as_str());
        let starts: Vec<_> = starts.collect();
        let Way { case, kind, microbatches, over, .. } = self;
        write!(f, "{} cut at {starts:?}, {kind}, {microbatches} microbatches, {over}", case.name)
    }
}

/// Every cut into 1, 2 and 3 stages with every schedule and number of microbatches, in memory.
fn every_cut(case: &Case) {
    tensor::threads::set_count(1);
    let expected = MICROBATCHES.map(|microbatches| one_process(case, microbatches));
    assert_eq!(expected[0].steps(), STEPS);
    for stages in 1..=3 {
        let cuts = cuts::into_stages(case.model.graph(), stages);
        let mut runs = 0;
        for starts in &cuts {
            let plan = &cuts::plan(&case.model, starts);
            for (expected, microbatches) in expected.iter().zip(MICROBATCHES) {
                for kind in SCHEDULES {
                    runs += 1;
                    let way = Way { case, plan, kind, microbatches, over: "in memory" };
                    way.check(expected, Memory::new(plan.clone(), case.seed, runs));
                }
            }
        }
        row(case, "in memory", stages, cuts.len(), runs, &expected[0]);
    }
}

/// The automatic cut with every schedule and number of microbatches, over QUIC: straight between the
/// workers, and by way of the boss.
fn over_sockets(case: &Case) {
    tensor::threads::set_count(1);
    let expected = MICROBATCHES.map(|microbatches| one_process(case, microbatches));
    for stages in 2..=3 {
        let plan = &Plan::new(case.model.graph(), &Cuts::Auto, stages).unwrap();
        for (direct, over) in [(true, "QUIC"), (false, "QUIC, relayed")] {
            for kind in SCHEDULES {
                for (expected, microbatches) in expected.iter().zip(MICROBATCHES) {
                    let way = Way { case, plan, kind, microbatches, over };
                    way.check(expected, Sockets::new(plan.clone(), case.seed, direct));
                }
            }
            row(case, over, stages, 1, (SCHEDULES.len() * MICROBATCHES.len()) as u64, &expected[0]);
        }
    }
}

/// The programs themselves, over the automatic cut: `bossman train`, and two and three workers in turn.
fn in_processes(case: &Case) {
    tensor::threads::set_count(1);
    let (mut workers, mut runs) = (2, 0);
    for microbatches in MICROBATCHES {
        let expected = one_process(case, microbatches);
        for kind in SCHEDULES {
            let plan = &Plan::new(case.model.graph(), &Cuts::Auto, workers).unwrap();
            let way = Way { case, plan, kind, microbatches, over: "processes" };
            let more = format!("microbatches: {microbatches}\nschedule: {kind}");
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let run = runtime.block_on(by_hand(case, workers, &more, &[]));
            expected.assert_same(&run.training, &way);
            workers = 5 - workers;
            runs += 1;
        }
    }
    println!("{:8} processes     2 or 3 workers: {runs} runs, equal to one process", case.name);
}

fn row(case: &Case, over: &str, stages: usize, cuts: usize, runs: u64, expected: &Training) {
    println!(
        "{:8} {over:13} {stages} stages, {cuts:3} cuts x 2 schedules x 1, 4, 5 microbatches: {runs:3} runs, {STEPS} losses and \
         {} bytes of weights each, equal to one process",
        case.name,
        expected.bytes()
    );
}

macro_rules! law_1 {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::every_cut(&tests::Case::$name()); })*
        }
        mod over_sockets {
            $(#[test] fn $name() { super::over_sockets(&tests::Case::$name()); })*
        }
        mod in_processes {
            $(#[test] fn $name() { super::in_processes(&tests::Case::$name()); })*
        }
    };
}

law_1!(residual branchy skip convnet);
