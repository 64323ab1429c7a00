//! Tests replicas that sum gradients among their devices. A stand-in for NCCL sums in the host's
//! memory. The tests check the sums, and steps in which one replica does not arrive.
//!
//! `cargo test -p tests --test it collective:: -- --nocapture` prints how far the sums are from
//! those of one process.

use bossman::{Batch, BossMan, Collective, Host, Model, Optimizer, StateDict};
use link::{Identity, Nccl as Told, NcclInfo, WorkerInfo};
use pipeline::boss::{Digest, Instruction, RunRequest};
use pipeline::ids::StageId;
use pipeline::message::{Failure, FailureKind, Reduction};
use pipeline::replicas::WorkerGroups;
use pipeline::task::{EarlyOutput, Outcome, Task, TaskError};
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use runtime::{ComputeThread, PendingWork, TaskTensor};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{mpsc, Arc, LazyLock};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use tensor::nccl::Nccl;
use tests::device::{device, device_of};
use tests::programs::{free_port, TestFolder};
use tests::sample::sampled;
use tests::{
    find_replicas, one_process, outputs, put, step_request, train, Case, Connectivity,
    InMemoryCluster, SocketCluster, Steps, TestCluster, Training, STEPS,
};
use tokio::sync::Notify;
use worker::StageCompute;

static NCCL: LazyLock<Arc<Nccl>> = LazyLock::new(|| match device() {
    Device::Cpu => Nccl::load_for_host(&testkit::fake_nccl::library(&[])).unwrap(),
    _ => Nccl::load(None).unwrap(),
});

fn summed(case: Case, reduction: Reduction) -> Case {
    let steps = Steps { reduction, ..case.steps };
    case.with(steps)
}

fn plan(case: &Case, replicas: &[u16], placement: Placement) -> Plan {
    Plan::new(case.model.graph(), &Cuts::Auto, WorkerGroups::of(replicas), placement).unwrap()
}

fn cluster(plan: &Plan, case: &Case) -> SocketCluster {
    SocketCluster::summing_with(Some(NCCL.clone()), plan.clone(), case.seed, Connectivity::Quic)
}

/// Panics if replicas of a stage differ.
fn assert_alike(cluster: &mut impl TestCluster, what: &str) {
    let digests = cluster.call(Digest).unwrap();
    let mut of_stages: BTreeMap<(StageId, String), Vec<[u8; 32]>> = BTreeMap::new();
    digests.into_iter().for_each(|(_, stage, name, digest)| {
        of_stages.entry((stage, name)).or_default().push(digest)
    });
    for ((stage, name), digests) in of_stages {
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{what}: replicas of {stage} differ in {name}"
        );
    }
}

fn trained(case: &Case, plan: &Plan, kind: ScheduleKind, microbatches: u32) -> Training {
    let mut cluster = cluster(plan, case);
    let training = train(case, plan, kind, microbatches, &mut cluster);
    assert_alike(&mut cluster, case.name);
    training
}

/// With two replicas of one microbatch each, a sum has only one order, so frames and the collective
/// operation yield the same.
#[test]
fn two_replicas_come_to_the_same_as_with_frames() {
    tensor::threads::set_count(1);
    let cases = [Case::residual, Case::convnet, Case::tied, Case::skip];
    let groups = [(&[2][..], ScheduleKind::GPipe), (&[2, 2], ScheduleKind::ZbH1)];
    let ways =
        cases.into_iter().flat_map(|case| groups.map(|(replicas, kind)| (case, replicas, kind)));
    for (case, replicas, kind) in sampled(ways, 3) {
        let (fast, collective) =
            (summed(case(), Reduction::Fast), summed(case(), Reduction::Collective));
        let plan = plan(&fast, replicas, Placement::Plain);
        let expected =
            train(&fast, &plan, kind, 2, &mut InMemoryCluster::new(plan.clone(), fast.seed, 0));
        let what = format!("{} on {replicas:?}, {kind}", fast.name);
        expected.assert_same(&trained(&collective, &plan, kind, 2), &what);
    }
}

/// Tests more replicas than microbatches, unequal shares, several stages per worker, and a norm
/// over gathered gradients. The result is close to that of one process, and the same on all
/// replicas.
#[test]
fn the_sums_are_those_of_one_process() {
    tensor::threads::set_count(1);
    let gathered = Steps { accumulate: 2, max_norm: Some(0.5), ..Steps::default() };
    type Run = (fn() -> Case, &'static [u16], Placement, ScheduleKind, u32);
    let cases: [Run; 6] = [
        (Case::residual, &[2], Placement::Plain, ScheduleKind::GPipe, 4),
        (Case::residual, &[3], Placement::Plain, ScheduleKind::GPipe, 1),
        (Case::residual, &[3, 1], Placement::Plain, ScheduleKind::OneFOneB, 5),
        (Case::convnet, &[1, 2], Placement::Plain, ScheduleKind::Ready, 5),
        (Case::residual, &[2, 2], Placement::V, ScheduleKind::ZbV, 5),
        (Case::skip, &[2, 2], Placement::Plain, ScheduleKind::Ready, 5),
    ];
    for (number, (case, replicas, placement, kind, microbatches)) in cases.into_iter().enumerate() {
        let case = || if number == 5 { case().with(gathered) } else { case() };
        let exact = one_process(&summed(case(), Reduction::Tree), microbatches);
        let case = summed(case(), Reduction::Collective);
        let training = trained(&case, &plan(&case, replicas, placement), kind, microbatches);
        let what = format!("{} on {replicas:?}, {kind}, {microbatches} microbatches", case.name);
        let near = [1e-7, 1e-6, 1e-5, 1e-4]
            .into_iter()
            .find(|near| training.losses_differ_by_at_most(&exact, *near));
        println!("{what}: losses differ by at most {near:?} of them");
        // Adam's first steps are as large for small gradients as for large ones.
        let allowed = if case.name == "convnet" { 1e-4 } else { 1e-5 };
        assert!(near.is_some_and(|near| near <= allowed), "{what}: far from one process's");
    }
}

/// A step that fails on one worker fails on all at once, although the others wait for it. It leaves
/// no trace.
#[test]
fn a_step_that_fails_is_called_off_everywhere_and_the_next_begins_with_new_communicators() {
    tensor::threads::set_count(1);
    let case = summed(Case::residual(), Reduction::Collective);
    let plan = plan(&case, &[2], Placement::Plain);
    let expected = trained(&case, &plan, ScheduleKind::GPipe, 2);
    let mut cluster = cluster(&plan, &case);
    cluster.call(Instruction::Distribute).unwrap();
    cluster.call(Instruction::SetOptimizer(case.optimizer)).unwrap();
    let step = |number: usize, cluster: &SocketCluster| {
        step_request(&case, &plan, ScheduleKind::GPipe, 2, number, cluster.slots())
    };
    let unfound = cluster.call(Box::new(step(0, &cluster))).unwrap_err();
    assert!(unfound.message.contains("no communicator among its replicas"), "{unfound}");
    find_replicas(&mut cluster);
    let mut losses = Vec::new();
    for number in 0..STEPS {
        let batch = 2 * number as u64 + 100;
        if number % 5 == 2 {
            // The target of the second microbatch is NaN, which only its replica sees.
            let mut run = RunRequest { batch, ..step(number, &cluster) };
            let (index, unused) = run.targets.pop().unwrap();
            cluster.slots().remove(unused).unwrap();
            let samples = case.batch(number).1.tensor_split(2, 0).pop().unwrap();
            run.targets.push((index, put(cluster.slots(), &samples.full_like(f64::NAN))));
            let begun = Instant::now();
            let failure = cluster.call(Box::new(run)).unwrap_err();
            assert!(
                failure.kind == FailureKind::NotFinite && begun.elapsed() < Duration::from_secs(2),
                "{failure}"
            );
            find_replicas(&mut cluster);
        }
        let run = RunRequest { batch: batch + 1, ..step(number, &cluster) };
        let answer = cluster.call(Box::new(run)).unwrap();
        losses.push(
            answer.losses.iter().map(|(_, loss)| *loss).reduce(|sum, loss| sum + loss).unwrap(),
        );
    }
    assert_alike(&mut cluster, "after steps that failed");
    expected.assert_same(&outputs(&plan, &mut cluster, &losses), &"with steps that failed");
}

/// Tests such workers from the user's side.
#[test]
fn a_boss_with_such_workers() {
    tensor::threads::set_count(1);
    nccl_is_chosen_automatically_and_recovers();
    a_collective_with_a_lost_worker_is_interrupted_at_once();
}

/// Tests a worker that loses its connection while others wait for it in a sum.
fn a_collective_with_a_lost_worker_is_interrupted_at_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let address = Address::new();
        let (joined, waiting) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let first = Role::Waits { joined: joined.clone(), waiting: waiting.clone() };
        let first = tokio::spawn(work(address.clone(), "0", first));
        let to = address.clone();
        let second = tokio::spawn(async move {
            // The worker that joins second gets the second place.
            joined.notified().await;
            work(to, "1", Role::Dies { waiting }).await;
        });
        let mut boss = build(&address, Collective::Auto).await;
        boss.distribute_model().await.unwrap();
        boss.send_optimizer(Optimizer::sgd_momentum(0.1, 0.9)).await.unwrap();
        boss.train_step(&batch(1)).await.unwrap();
        boss.train_step(&batch(2)).await.unwrap();
        let begun = Instant::now();
        let error = boss.train_step(&batch(3)).await.unwrap_err().to_string();
        assert!(error.contains("worker 1"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        second.await.unwrap();
        boss.shutdown().await;
        // The compute thread of the other worker does not stay in the sum.
        tokio::time::timeout(Duration::from_secs(5), first).await.unwrap().unwrap();
    });
}

/// Tests that NCCL is chosen, that its ranks find each other again after a failed step, and that
/// the weights are those of frames.
fn nccl_is_chosen_automatically_and_recovers() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let weights = |collective: Collective, gpus: [&'static str; 2], fails: bool| {
        runtime.block_on(async move {
            let address = Address::new();
            let start = |gpu| drop(tokio::spawn(work(address.clone(), gpu, Role::Works)));
            gpus.into_iter().for_each(start);
            let mut boss = build(&address, collective).await;
            boss.distribute_model().await.unwrap();
            boss.send_optimizer(Optimizer::sgd_momentum(0.1, 0.9)).await.unwrap();
            for step in 1..=4 {
                if fails && step == 3 {
                    let wrong = Batch::new(&input(step), &input(step).full_like(f64::NAN));
                    assert!(boss
                        .train_step(&wrong)
                        .await
                        .unwrap_err()
                        .to_string()
                        .contains("loss"));
                }
                boss.train_step(&batch(step)).await.unwrap();
            }
            let candidates = boss.candidates(&batch(1)).await.unwrap().collective;
            let weights = boss.state_dict().await.unwrap();
            boss.shutdown().await;
            (weights, candidates)
        })
    };
    let (expected, told) = weights(Collective::Quic, ["0", "1"], false);
    assert_eq!(told, None, "there was nothing to choose");
    let same = |weights: &StateDict| {
        expected
            .iter()
            .for_each(|(name, tensor)| assert_eq!(weights.get(name), Some(tensor), "{name}"));
    };
    let (by_nccl, told) = weights(Collective::Auto, ["0", "1"], false);
    assert_eq!(told.as_deref(), Some("replicas sum their gradients with NCCL 2.27.3"));
    same(&by_nccl);
    let (mended, _) = weights(Collective::Auto, ["0", "1"], true);
    same(&mended);
    let (shared, told) = weights(Collective::Auto, ["0", "0"], false);
    let why = "replicas sum their gradients over QUIC: worker 0 and worker 1 share a GPU, which \
               NCCL does not allow";
    assert_eq!(told.as_deref(), Some(why));
    same(&shared);
    let refused = runtime.block_on(async {
        let address = Address::new();
        (0..2).for_each(|_| drop(tokio::spawn(work(address.clone(), "0", Role::Works))));
        let workers = address.host().wait().await.unwrap();
        builder(Collective::Nccl).build(workers).err().unwrap().to_string()
    });
    assert!(
        refused.starts_with("collective(nccl): worker 0 and worker 1 share a GPU"),
        "{refused}"
    );
}

const MODEL: &str = "
model: small
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 8}
  - Tanh: {}
  - Linear: {in_features: 8, out_features: 4}
";

fn input(step: i64) -> Tensor {
    (Tensor::arange(32, (Kind::Float, Device::Cpu)).view([8, 4]) + step).sin()
}

fn batch(step: i64) -> Batch {
    Batch::new(&input(step), &input(step).cos())
}

fn builder(collective: Collective) -> bossman::Builder {
    BossMan::builder(Model::from_yaml(MODEL).unwrap())
        .replicas(bossman::Replicas::Each(2))
        .assign_evenly()
        .microbatches(2)
        .collective(collective)
        .fast_reduction()
        .schedule(ScheduleKind::GPipe)
        .loss(bossman::Loss::MSELoss)
        .seed(5)
}

async fn build(address: &Address, collective: Collective) -> BossMan {
    let workers = address.host().wait().await.unwrap();
    builder(collective).build(workers).unwrap()
}

/// The boss's port, and the folder of its key and ticket.
#[derive(Clone)]
struct Address {
    port: u16,
    place: Arc<TestFolder>,
}

impl Address {
    fn new() -> Self {
        Address { port: free_port().parse().unwrap(), place: Arc::new(TestFolder::new()) }
    }

    fn host(&self) -> Host {
        Host::new(2).port(self.port).config_dir(self.place.file("config")).quiet()
    }
}

/// The role of a worker.
#[derive(Clone)]
enum Role {
    Works,
    /// Notifies when it has joined, and when it reaches its third sum.
    Waits {
        joined: Arc<Notify>,
        waiting: Arc<Notify>,
    },
    /// Never reaches its third sum. It is cut off while the other worker waits for it there.
    Dies {
        waiting: Arc<Notify>,
    },
}

/// Runs a worker that reports a GPU and sums with the stand-in.
async fn work(address: Address, gpu: &'static str, role: Role) {
    let boss = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port));
    let identity = Identity::load_or_create_in(&address.place.file("config")).unwrap();
    let ticket = identity.ticket();
    let told = NcclInfo {
        version: NCCL.version(),
        machine: "here".into(),
        gpu: gpu.into(),
        beyond_machine: false,
    };
    let info =
        WorkerInfo { device: "cuda:0".into(), nccl: Told::Here(told), ..WorkerInfo::default() };
    let (membership, endpoint) = loop {
        let endpoint = link::worker_endpoint(ticket, &[boss]).unwrap();
        if let Ok(membership) = link::join(&endpoint, &[boss], ticket, info.clone()).await {
            break (membership, endpoint);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if let Role::Waits { joined, .. } = &role {
        joined.notify_one();
    }
    let (alive, dead) = mpsc::channel();
    let its_role = role.clone();
    let compute = ComputeThread::start_interruptible(move |called_off| {
        tensor::threads::set_count(1);
        let compute = StageCompute::new(device_of(gpu.parse().unwrap()))
            .with_nccl(Some(NCCL.clone()), called_off);
        Acting { compute, sums: 0, role: its_role, dead }
    });
    let dead = async move {
        match role {
            Role::Dies { waiting } => waiting.notified().await,
            _ => std::future::pending().await,
        }
        drop::<mpsc::Sender<()>>(alive);
    };
    let (snapshots, leave) = (runtime::SnapshotStore::default(), runtime::LeaveSignal::default());
    let compute = compute.unwrap();
    tokio::select! {
        _ = runtime::serve(membership, &endpoint, ticket, compute, None, snapshots, &leave) => {}
        () = dead => endpoint.close(1u32.into(), b"dead"),
    }
}

/// A compute thread whose third sum depends on its worker's role.
struct Acting {
    compute: StageCompute,
    sums: u32,
    role: Role,
    /// Disconnects when its worker ends.
    dead: mpsc::Receiver<()>,
}

impl runtime::Compute for Acting {
    fn prepare(&mut self, task: &Task<TaskTensor>) {
        self.compute.prepare(task);
    }

    fn run(
        &mut self,
        task: Task<TaskTensor>,
        emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
    ) -> Result<Outcome<TaskTensor>, TaskError> {
        self.sums += u32::from(matches!(task, Task::AllReduce { .. }));
        match &self.role {
            Role::Waits { waiting, .. } if self.sums == 3 => waiting.notify_one(),
            Role::Dies { .. } if self.sums == 3 => {
                self.dead.recv().unwrap_err();
                return Err(Failure::new("it is dead").into());
            }
            _ => {}
        }
        self.compute.run(task, emit)
    }

    fn pending(&mut self) -> Option<Box<dyn PendingWork>> {
        self.compute.pending()
    }
}
