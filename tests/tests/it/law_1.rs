//! Law 1: the cut never shows. Losses and weights after 20 steps are equal to the bit to those of
//! one process, for every cut, every schedule and every order of packets.
//!
//! Every process has one compute thread. libtorch sums the gradients of LayerNorm's and Conv2d's
//! parameters separately for each thread, so their last bits depend on the number of threads.
//!
//! `cargo test -p tests --test it law_1:: -- --nocapture` prints what was compared.

use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use std::collections::BTreeMap;
use std::fmt;
use tests::programs::train_in_processes;
use tests::sample::{self, sampled};
use tests::{
    cuts, one_process, train, Case, Connectivity, InMemoryCluster, SocketCluster, TestCluster,
    Training, MICROBATCHES, STEPS,
};

/// One way to train a case, which is named if it differs.
struct Configuration<'a> {
    case: &'a Case,
    plan: &'a Plan,
    kind: ScheduleKind,
    microbatches: u32,
    over: &'static str,
}

impl Configuration<'_> {
    fn check(&self, expected: &Training, mut cluster: impl TestCluster) {
        let training = train(self.case, self.plan, self.kind, self.microbatches, &mut cluster);
        expected.assert_same(&training, self);
    }
}

impl fmt::Display for Configuration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts = self.plan.stages[1..].iter().map(|stage| stage.layers[0].name.as_str());
        let starts: Vec<_> = starts.collect();
        let Configuration { case, kind, microbatches, over, .. } = self;
        write!(f, "{} cut at {starts:?}, {kind}, {microbatches} microbatches, {over}", case.name)
    }
}

/// The number of tested cuts into four stages. All of them are too many.
const OF_FOUR_STAGES: usize = 40;

/// Returns the largest number of cuts to test into a number of stages.
fn cuts_max(stages: usize) -> usize {
    let all = if stages == 4 { OF_FOUR_STAGES } else { usize::MAX };
    sample::cuts().map_or(all, |number| all.min(number))
}

/// Tests every cut into 1, 2 and 3 stages and some into 4, with every placement and every number of
/// microbatches, in memory. The kinds of schedule take turns, so that each meets every number of
/// stages and of microbatches many times. A sample has three and four stages, which are as many as
/// those of all placements need.
fn every_cut(case: &Case) {
    tensor::threads::set_count(1);
    let expected = MICROBATCHES.map(|microbatches| one_process(case, microbatches));
    assert_eq!(expected[0].steps(), STEPS);
    let fewest = if sample::is_sampled() { 3 } else { 1 };
    for stages in fewest..=4 {
        let mut cuts = cuts::into_stages(case.model.graph(), stages);
        let each = cuts.len().div_ceil(cuts_max(stages));
        cuts = cuts.into_iter().step_by(each).collect();
        let mut runs = BTreeMap::new();
        for starts in &cuts {
            for (placement, plan) in &cuts::plans(&case.model, starts) {
                for (expected, microbatches) in expected.iter().zip(MICROBATCHES) {
                    let kinds = cuts::kinds(*placement);
                    let number: u64 = runs.values().sum();
                    let kind = kinds[number as usize % kinds.len()];
                    let way = Configuration { case, plan, kind, microbatches, over: "in memory" };
                    way.check(expected, InMemoryCluster::new(plan.clone(), case.seed, number));
                    *runs.entry(kind).or_insert(0) += 1;
                }
            }
        }
        row(case, "in memory", stages, cuts.len(), &runs, &expected[0]);
    }
}

/// Tests the automatic cut with every kind of schedule and number of microbatches over real
/// connections: through shared memory, over QUIC, and over QUIC through the boss.
fn over_sockets(case: &Case) {
    tensor::threads::set_count(1);
    let expected = MICROBATCHES.map(|microbatches| one_process(case, microbatches));
    let placements = [
        (2, Placement::Plain),
        (3, Placement::Plain),
        (2, Placement::Interleaved { chunks: 2 }),
        (2, Placement::V),
    ];
    let plans = placements.map(|(workers, placement)| {
        let plan = Plan::new(case.model.graph(), &Cuts::Auto, workers, placement).unwrap();
        (cuts::kinds(placement), plan)
    });
    let mut ways = Vec::new();
    for (kinds, plan) in &plans {
        let kinds = kinds.iter().flat_map(|kind| [*kind; MICROBATCHES.len()]);
        ways.extend(kinds.zip((0..MICROBATCHES.len()).cycle()).map(|(kind, of)| (plan, kind, of)));
    }
    for (way_of, over) in [
        (Connectivity::SharedMemory, "shared memory"),
        (Connectivity::Quic, "QUIC"),
        (Connectivity::Relayed, "QUIC, relayed"),
    ] {
        let mut runs = BTreeMap::new();
        for (plan, kind, of) in sampled(ways.iter().copied(), 7) {
            let way = Configuration { case, plan, kind, microbatches: MICROBATCHES[of], over };
            way.check(&expected[of], SocketCluster::new(plan.clone(), case.seed, way_of));
            *runs.entry(kind).or_insert(0) += 1;
        }
        row(case, over, 4, 1, &runs, &expected[0]);
    }
}

/// Tests the programs themselves with the automatic cut: `bossman train` with two and three workers
/// in turn.
fn in_processes(case: &Case) {
    tensor::threads::set_count(1);
    let (mut workers, mut runs) = (2, 0);
    for (microbatches, kinds) in MICROBATCHES.into_iter().zip([
        ["1f1b", "zb-v"],
        ["auto", "ready"],
        ["interleaved", "zb-h1"],
    ]) {
        let expected = one_process(case, microbatches);
        for kind in kinds {
            let more = format!("microbatches: {microbatches}\nschedule: {kind}");
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let run = runtime.block_on(train_in_processes(case, workers, &more, &[]));
            let what = format!(
                "{} on {workers} workers, {kind}, {microbatches} microbatches, processes",
                case.name
            );
            expected.assert_same(&run.training, &what);
            workers = 5 - workers;
            runs += 1;
        }
    }
    println!("{:8} processes     2 or 3 workers: {runs} runs, equal to one process", case.name);
}

fn row(
    case: &Case,
    over: &str,
    stages: usize,
    cuts: usize,
    runs: &BTreeMap<ScheduleKind, u64>,
    expected: &Training,
) {
    let runs: Vec<String> = runs.iter().map(|(kind, runs)| format!("{runs} {kind}")).collect();
    println!(
        "{:8} {over:13} {stages} stages, {cuts:3} cuts, 1, 4, 5 microbatches: {}: {STEPS} losses \
         and {} bytes of weights each, equal to one process",
        case.name,
        runs.join(", "),
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

law_1!(narrow_residual branchy skip convnet);
