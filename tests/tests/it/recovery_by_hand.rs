//! Tests calls by hand that lose workers and are repeated. Weights are those of a program that lost
//! none, to the bit.

use bossman::checkpoint::Checkpoints;
use bossman::{Batch, BossMan, BossManError, Cuts, Host, Loss, Model, Optimizer, Variables};
use link::{Identity, LinkError};
use std::sync::mpsc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use tests::device::device_name;
use tests::faulty::{run_faulty_worker, Fault};
use tests::programs::{free_port, processes_with, send_signal, BossAddress, TestFolder};
use tests::stateful_model::MODEL;

/// The time limit of recovery; far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// Trains a step by hand or a whole step, in turn.
async fn train(boss: &mut BossMan, step: u64) -> Result<(), BossManError> {
    struck(boss, step, || ()).await
}

/// Same as [`train`], but calls `strike` between a forward and a backward pass. Each tensor that
/// was passed to a call is overwritten once the call is done.
async fn struck(boss: &mut BossMan, step: u64, strike: impl FnOnce()) -> Result<(), BossManError> {
    let mut x = (Tensor::arange(16 * 64, (Kind::Float, Device::Cpu)) * 0.1 + step as f64)
        .sin()
        .reshape([16, 64]);
    let y = Tensor::arange(16, (Kind::Int64, Device::Cpu)).remainder(10);
    if step.is_multiple_of(2) {
        let (done, mut used) = (boss.train_step(&Batch::new(&x, &y)).await, y.shallow_clone());
        drop((x.fill_(f64::NAN), used.fill_(-1)));
        return done.map(drop);
    }
    // The second forward batch has seen what batch norm learned from the first.
    let (first, logits) = boss.forward_batch(&x, Variables::new()).await?;
    let again = boss.forward(&x, Variables::new()).await?;
    drop(x.fill_(f64::NAN));
    strike();
    again.cross_entropy_for_logits(&y).backward();
    boss.backward(&again.grad()).await?;
    drop(again.grad().fill_(f64::NAN));
    logits[0].cross_entropy_for_logits(&y).backward();
    boss.backward_batch(first, &[logits[0].grad()]).await?;
    boss.optim_step().await
}

async fn start(host: Host) -> BossMan {
    start_cut(host, Cuts::Auto).await
}

async fn start_cut(host: Host, cuts: Cuts) -> BossMan {
    let builder = BossMan::builder(Model::from_yaml(MODEL).unwrap())
        .loss(Loss::cross_entropy())
        .microbatches(4);
    let builder = builder.clip_grad_norm(1.0).cuts(cuts);
    let mut boss = builder.build(host.quiet().wait().await.unwrap()).unwrap();
    boss.distribute_model().await.unwrap();
    boss.send_optimizer(Optimizer::adam(0.01)).await.unwrap();
    boss
}

async fn trained(boss: &mut BossMan) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    boss.state_dict().await.unwrap().save(&path).unwrap();
    std::fs::read(path).unwrap()
}

/// Worker programs for a boss in this process.
struct Here {
    place: TestFolder,
    port: String,
    ticket: String,
}

impl Here {
    fn new() -> Self {
        let ticket = Identity::load_or_create().unwrap().ticket().to_string();
        Here { place: TestFolder::new(), port: free_port(), ticket }
    }

    fn host(&self, workers: usize) -> Host {
        Host::new(workers).port(self.port.parse().unwrap())
    }

    fn listening(&self) -> BossAddress {
        BossAddress { port: self.port.clone(), ticket: self.ticket.clone() }
    }

    fn worker(&self) -> tests::programs::Process {
        let arguments = ["--port", &self.port, "--device", &device_name(), "--threads", "1"];
        self.place.start_with("worker", &arguments, &[("MODEL_TICKET", &self.ticket)])
    }
}

/// Returns the weights after `steps` steps without a lost worker.
async fn trained_quietly(steps: u64) -> Vec<u8> {
    let mut quiet = start(Host::new(1).local(1).threads(1)).await;
    for step in 0..steps {
        train(&mut quiet, step).await.unwrap();
    }
    let expected = trained(&mut quiet).await;
    quiet.shutdown().await;
    expected
}

#[tokio::test]
async fn a_program_goes_on_from_a_state_in_memory_or_in_a_folder() {
    let expected = trained_quietly(8).await;

    let here = Here::new();
    let (stays, dies) = (here.worker(), here.worker());
    let mut boss = start(here.host(2)).await;
    for step in 0..4 {
        train(&mut boss, step).await.unwrap();
    }
    let state = boss.checkpoint().await.unwrap();
    let folder = Checkpoints::open(here.place.file("c").to_str().unwrap(), true).unwrap();
    train(&mut boss, 4).await.unwrap();
    dies.signal("KILL");
    let error = loop {
        if let Err(error) = train(&mut boss, 4).await {
            break error;
        }
    };
    assert!(error.workers_were_lost(), "{error}");
    assert!(error.to_string().contains("enable_recovery() repeats calls automatically"), "{error}");
    drop(boss);
    let mut boss = start(here.host(1)).await;
    boss.restore(&state).await.unwrap();
    train(&mut boss, 4).await.unwrap();
    train(&mut boss, 5).await.unwrap();
    folder.save(boss.checkpoint().await.unwrap()).await.unwrap();
    train(&mut boss, 6).await.unwrap();
    boss.restore(&folder.last().await.unwrap().unwrap()).await.unwrap();
    train(&mut boss, 6).await.unwrap();
    train(&mut boss, 7).await.unwrap();
    assert!(trained(&mut boss).await == expected, "other weights than those of a quiet run");
    boss.shutdown().await;
    stays.end().await.expect_success();
}

#[tokio::test]
async fn calls_by_hand_are_done_again_where_workers_are_lost() {
    let expected = trained_quietly(12).await;
    let here = Here::new();
    let mut workers = vec![here.worker(), here.worker()];
    let mut boss = start(here.host(2)).await;
    boss.enable_recovery(3).await.unwrap();
    for step in 0..12 {
        // Strike amid steps by hand, with a spare worker. Also strike before an evaluation and a
        // whole step, without a spare.
        let victim = [1, 5, 8].contains(&step).then(|| workers.pop().unwrap());
        if step == 5 || step == 1 {
            workers.insert(0, here.worker());
        }
        struck(&mut boss, step, || victim.iter().for_each(|victim| victim.signal("KILL")))
            .await
            .unwrap();
        if step == 8 {
            victim.unwrap().signal("KILL");
            boss.eval();
            let x = Tensor::ones([2, 64], (Kind::Float, Device::Cpu));
            assert_eq!(boss.forward(&x, Variables::new()).await.unwrap().size(), [2, 10]);
            boss.train();
        }
    }
    assert!(trained(&mut boss).await == expected, "other weights than those of a quiet run");
    assert_eq!((boss.plan().workers(), workers.len()), (1, 1));
    boss.shutdown().await;
}

#[tokio::test]
async fn calls_go_on_where_a_local_worker_ends() {
    let expected = trained_quietly(6).await;
    let place = TestFolder::new();
    // The folder tells its local workers from those of other tests.
    let mine = place.file("");
    let mut boss = start(Host::new(2).local(2).threads(1).data(&mine)).await;
    boss.enable_recovery(2).await.unwrap();
    for step in 0..6 {
        let mut victim = None;
        // Strike between a forward and a backward pass. Before the second time, a state was taken.
        let strike = || {
            victim = processes_with(mine.to_str().unwrap())
                .into_iter()
                .max()
                .filter(|_| [1, 5].contains(&step));
            victim.into_iter().for_each(|victim| send_signal(victim, "KILL"));
        };
        struck(&mut boss, step, strike).await.unwrap();
        let others = processes_with(mine.to_str().unwrap()).into_iter().max();
        assert!(victim.is_none_or(|victim| others > Some(victim)), "no others were started");
    }
    assert!(trained(&mut boss).await == expected, "other weights than those of a quiet run");
    assert_eq!(boss.plan().workers(), 2);
    boss.shutdown().await;
}

/// One worker has no memory for its part, and the call that waits is dropped. Then its replacement
/// has no memory, either.
#[tokio::test]
async fn a_loss_during_recovery_is_recovered() {
    let expected = {
        let mut quiet = start(Host::new(1).local(1).threads(1)).await;
        for step in 0..8 {
            train(&mut quiet, step * 2).await.unwrap();
        }
        trained(&mut quiet).await
    };
    let here = Here::new();
    let (_over, ends) = mpsc::channel();
    let (at, _stays) = (here.listening(), here.worker());
    let mut first =
        tokio::spawn(async move { run_faulty_worker(&at, (Fault::HasNoMemory, 5), ends).await });
    // The cut allows no other number of workers.
    let mut boss = start_cut(here.host(2), Cuts::At(vec!["first".into()])).await;
    boss.enable_recovery(3).await.unwrap();
    let mut step = 0;
    let left = loop {
        tokio::select! {
            left = &mut first => break left.unwrap(),
            done = train(&mut boss, step * 2) => done.unwrap(),
        }
        step += 1;
        assert!(step < 8, "nobody was lost");
    };
    assert!(matches!(&left, LinkError::Evicted { reason } if reason == "out of memory"), "{left}");
    let (_over, ends) = mpsc::channel();
    let others = async {
        let left = run_faulty_worker(&here.listening(), (Fault::HasNoMemory, 0), ends).await;
        assert!(
            matches!(&left, LinkError::Evicted { reason } if reason == "out of memory"),
            "{left}"
        );
        here.worker()
    };
    let both = async { tokio::join!(train(&mut boss, step * 2), others) };
    let (done, _comes) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    done.unwrap();
    for step in step + 1..8 {
        train(&mut boss, step * 2).await.unwrap();
    }
    assert!(trained(&mut boss).await == expected, "other weights than those of a quiet run");
    boss.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_done_again_is_told_with_what_to_call() {
    let here = Here::new();
    let workers = [here.worker(), here.worker()];
    let mut boss = start(here.host(2)).await;
    boss.enable_recovery(3).await.unwrap();
    // A state holds no gradients.
    let logits = boss
        .forward(&Tensor::ones([2, 64], (Kind::Float, Device::Cpu)), Variables::new())
        .await
        .unwrap();
    boss.backward(&logits.ones_like()).await.unwrap();
    assert!(boss
        .enable_recovery(3)
        .await
        .unwrap_err()
        .to_string()
        .contains("after an optimizer step"));
    boss.optim_step().await.unwrap();
    let weights = boss.state_dict().await.unwrap();
    boss.load_state_dict(&weights).await.unwrap();
    workers[0].signal("KILL");
    let error = train(&mut boss, 0).await.unwrap_err();
    assert!(error.workers_were_lost(), "{error}");
    let told = "cannot be repeated, because a call failed, or weights or an optimizer were set; \
                build a BossMan";
    assert!(error.to_string().contains(told), "{error}");
    drop(boss);
    let mut boss = start(here.host(1)).await;
    boss.enable_recovery(3).await.unwrap();
    tokio::select! {
        biased;
        done = train(&mut boss, 0) => panic!("{done:?}"),
        () = std::future::ready(()) => {}
    }
    workers[1].signal("KILL");
    let error = train(&mut boss, 0).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("because the future of a call was dropped before its end; build"),
        "{error}"
    );
}
