//! Every call can be spawned on a runtime of several threads: its future is `Send`. A tensor may
//! change its thread, and may not be used by two at once, so no future holds a reference to one.

use crate::checkpoint::{Checkpoints, TrainingState};
use crate::data::{Dataset, Part};
use crate::fleet::FleetSettings;
use crate::run_file::RunFile;
use crate::train::{run, TrainOptions};
use crate::verify::{RepeatSettings, Verification, Window};
use crate::{
    plan, validate, Batch, BatchId, BossMan, BossManError, Generation, Generator, Host, Optimizer,
    Predictions, Score, Search, StateDict, Status, Translator, Variables,
};
use std::future::Future;
use std::path::Path;
use tch::Tensor;

/// Compiles for a future that can be spawned.
fn can_be_spawned(_: impl Future + Send) {}

fn steps(boss: &mut BossMan, x: &Tensor, batch: &Batch) {
    can_be_spawned(boss.forward(x, Variables::new()));
    can_be_spawned(boss.forward_all(x, Variables::new()));
    can_be_spawned(boss.forward_batch(x, Variables::new()));
    can_be_spawned(boss.backward(x));
    can_be_spawned(boss.backward_all(std::slice::from_ref(x)));
    can_be_spawned(boss.backward_batch(BatchId(1), std::slice::from_ref(x)));
    can_be_spawned(boss.discard_batch(BatchId(1)));
    can_be_spawned(boss.optim_step());
    can_be_spawned(boss.train_step(batch));
    can_be_spawned(boss.evaluate(batch));
    can_be_spawned(boss.candidates(batch));
}

fn sessions(mut boss: BossMan, data: &Dataset) {
    can_be_spawned(BossMan::setup_host(2));
    can_be_spawned(BossMan::setup_local(2));
    can_be_spawned(Host::new(2).wait());
    can_be_spawned(boss.distribute_model());
    can_be_spawned(boss.send_optimizer(Optimizer::sgd(0.1)));
    can_be_spawned(boss.open_data(data));
    can_be_spawned(boss.open_pool());
    can_be_spawned(boss.compare_replicas());
    can_be_spawned(boss.enable_recovery(10));
    can_be_spawned(boss.shutdown());
}

fn states(boss: &mut BossMan, weights: &StateDict, state: TrainingState, stored: &Checkpoints) {
    can_be_spawned(boss.state_dict());
    can_be_spawned(boss.save_state_dict("weights.safetensors"));
    can_be_spawned(boss.load_state_dict(weights));
    can_be_spawned(boss.checkpoint());
    can_be_spawned(boss.digest());
    can_be_spawned(boss.restore(&state));
    can_be_spawned(stored.list());
    can_be_spawned(stored.save(state));
    can_be_spawned(stored.last());
    can_be_spawned(stored.verify("step-00000002"));
    can_be_spawned(stored.remove("step-00000002"));
}

fn uses(
    boss: &mut BossMan,
    batches: Vec<Result<Batch, BossManError>>,
    data: &Dataset,
    predictions: Predictions,
    (generator, what): (&Generator, &Generation),
    translator: &Translator,
) {
    can_be_spawned(Score::of(boss, batches));
    can_be_spawned(predictions.of(boss, data, 32));
    can_be_spawned(generator.generate(boss, what, |_| {}));
    can_be_spawned(translator.translate(boss, &["a text"], &Search::default()));
}

fn commands(
    boss: &mut BossMan,
    (file, fleet, options): (&RunFile, &FleetSettings, &TrainOptions),
    data: &Dataset,
    verification: &mut Verification,
    (window, settings): (&Window, &RepeatSettings),
) {
    can_be_spawned(run(file, options));
    can_be_spawned(plan::run(file, fleet));
    can_be_spawned(validate(boss, file, Part::Test, data));
    can_be_spawned(file.load_model(fleet, None));
    can_be_spawned(verification.compare());
    can_be_spawned(verification.repeat(window, settings));
    can_be_spawned(Status::ask("127.0.0.1", 1024, None));
    can_be_spawned(Status::of_run(Path::new("runs/latest"), None));
}

/// The compiler has tested it. The functions are not called, as they would need a session.
#[test]
fn the_futures_of_all_calls_can_be_spawned() {
    let _ = (steps, sessions, states, uses, commands);
}
