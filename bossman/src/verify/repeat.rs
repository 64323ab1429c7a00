//! Repeats a part of a run on local workers.

use super::{Difference, Exactness, Origin, Verification, Window};
use crate::checkpoint::{StoredState, TrainingState};
use crate::data::Part;
use crate::events::{Event, Events, Observer};
use crate::run_file::{FileReader, RunFile, Weights};
use crate::{
    BossMan, BossManError, Collective, Cuts, Host, Model, Replicas, ScheduleKind, StateDict,
};
use parking_lot::Mutex;
use pipeline::StateName;
use std::collections::BTreeMap;
use std::sync::Arc;
use tch::Tensor;

/// The largest difference of an element of a tensor on another kind of processor, as a part of the
/// largest magnitude in the tensor.
const TOLERANCE: f64 = 1e-2;

/// What the repetition of a window showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeated {
    /// The first thing that differs.
    pub difference: Option<Difference>,
    /// The steps with a digest that was compared.
    pub digests: u64,
    /// The steps with a loss that was compared.
    pub losses: u64,
    /// The stored states and weights that were compared, tensor by tensor.
    pub tensors: u64,
    /// The kind of processor here, if it is another one than the run's. Then only stored tensors
    /// are compared, and an element may differ by a hundredth of the largest in its tensor.
    pub other_processor: Option<String>,
}

/// The workers of a repetition.
#[derive(Clone, Debug)]
pub struct RepeatSettings {
    /// The number of local workers. The cut does not show in the result.
    pub workers: usize,
    /// Whether they run TorchScript layers, which are programs.
    pub allow_torchscript: bool,
}

impl Verification {
    /// Repeats a window, and compares the loss of each step, the digests, and the stored tensors.
    /// It ends with the first difference.
    ///
    /// # Errors
    /// A file cannot be read, the run cannot be repeated here, or a worker fails.
    pub async fn repeat(
        &self,
        window: &Window,
        settings: &RepeatSettings,
    ) -> Result<Repeated, BossManError> {
        let Exactness::Bits { processor, threads } = self.exactness() else {
            return Err(BossManError::Usage("this run cannot be repeated to the bit".into()));
        };
        let file = self.on_one_pipeline();
        let model = Model::from_file(&file.model)?;
        let weights = file.initial_weights(None, &model)?;
        let data = file.part(Part::Train, &model)?;
        let state = self.state_of(window.from).await?;
        let builder = file.builder(model);
        builder.check(settings.workers)?;
        let here = Arc::new(Mutex::new(Processors::default()));
        let host = Host::new(settings.workers).local(settings.workers).port(0);
        let host = if settings.allow_torchscript { host.allow_torchscript() } else { host };
        let host = host.threads(threads as usize);
        let host = host.events(Events::unobserved().with(here.clone()));
        let mut boss = builder.build(host.wait().await?)?;
        boss.distribute_model().await?;
        if let (Origin::Beginning, Some(weights)) = (window.from, weights) {
            weights.load(&mut boss).await?;
        }
        boss.send_optimizer(file.optimizer).await?;
        if let Some(state) = &state {
            boss.restore_stored(state).await?;
        }
        let other_processor = here.lock().0.iter().find(|here| **here != processor).cloned();
        let mut repetition = Repetition {
            verification: self,
            boss,
            seen: Repeated { difference: None, digests: 0, losses: 0, tensors: 0, other_processor },
        };
        let mut batches = file.batches(data, window.from.step());
        for step in window.from.step() + 1..=window.to {
            let report = repetition.boss.train_step(&batches.next_batch()?).await?;
            let difference = repetition.after_step(step, report.loss).await?;
            if difference.is_some() {
                repetition.seen.difference = difference;
                break;
            }
        }
        repetition.boss.shutdown().await;
        Ok(repetition.seen)
    }

    /// The run with one replica of each stage, which gives the same bits as any other layout.
    fn on_one_pipeline(&self) -> RunFile {
        let sums_like_replicas = self.file.replicas.is_some()
            || self.receipt.sessions.iter().any(|session| session.pool);
        let microbatches = self.receipt.sessions.first().map(|session| session.microbatches);
        let weights = self.file.weights.clone();
        RunFile {
            weights: weights.map(|weights| Weights { reader: FileReader::Boss, ..weights }),
            microbatches: microbatches.unwrap_or(self.file.microbatches),
            schedule: Some(ScheduleKind::OneFOneB),
            chunks: None,
            cuts: Cuts::Auto,
            // Gradients are summed in another order without the key.
            replicas: sums_like_replicas.then_some(Replicas::Each(1)),
            sharding: None,
            collective: Collective::Quic,
            ..self.file.clone()
        }
    }

    async fn state_of(&self, origin: Origin) -> Result<Option<Arc<StoredState>>, BossManError> {
        let (Origin::Checkpoint(step), Some(checkpoints)) = (origin, &self.checkpoints) else {
            return Ok(None);
        };
        let name = crate::checkpoint::folder_of_step(step);
        Ok(Some(Arc::new(checkpoints.compared(&name).await?)))
    }
}

/// The kinds of processor of the workers that joined.
#[derive(Default)]
struct Processors(Vec<String>);

impl Observer for Processors {
    fn on_event(&mut self, event: &Event) -> Result<(), BossManError> {
        if let Event::Joined { processor, .. } = event {
            self.0.push(processor.clone());
        }
        Ok(())
    }
}

/// A window at work.
struct Repetition<'a> {
    verification: &'a Verification,
    boss: BossMan,
    seen: Repeated,
}

impl Repetition<'_> {
    /// Compares what there is after a step. Returns the first difference.
    async fn after_step(
        &mut self,
        step: u64,
        loss: f32,
    ) -> Result<Option<Difference>, BossManError> {
        let is_exact = self.seen.other_processor.is_none();
        let expected = self.verification.losses.get(&step);
        if expected.is_none() && self.verification.has_metrics() {
            let problem = "metrics.jsonl has no loss of it";
            return Ok(Some(Difference::new(format!("step {step}"), problem)));
        }
        if is_exact {
            if let Some(expected) = expected {
                let there = Some(loss).filter(|loss| loss.is_finite());
                if there != *expected {
                    let text =
                        |loss: Option<f32>| loss.map_or("null".into(), |loss| format!("{loss:?}"));
                    let problem = format!(
                        "its loss is {}, and metrics.jsonl has {}",
                        text(there),
                        text(*expected)
                    );
                    return Ok(Some(Difference::new(format!("step {step}"), problem)));
                }
                self.seen.losses += 1;
            }
        }
        // Tensors come first, because they tell which one differs.
        if let Some(difference) = self.compare_weights(step, is_exact).await? {
            return Ok(Some(difference));
        }
        self.compare_state(step, is_exact).await
    }

    /// Compares the weights with the files that hold those of this step.
    async fn compare_weights(
        &mut self,
        step: u64,
        is_exact: bool,
    ) -> Result<Option<Difference>, BossManError> {
        let of_step = self.verification.receipt.weights.iter().filter(|(_, of)| **of == step);
        for (name, _) in of_step {
            let stored = StateDict::load(self.verification.folder.join(name))?;
            let here = self.boss.state_dict().await?;
            if stored.digest()? != here.digest()? {
                let (stored, here) = (by_name(&stored), by_name(&here));
                if let Some(difference) = compare_tensors(name, &stored, &here, is_exact)? {
                    return Ok(Some(difference));
                }
            }
            self.seen.tensors += 1;
        }
        Ok(None)
    }

    /// Compares the state with the digest of this step, and with its checkpoint if it is there.
    async fn compare_state(
        &mut self,
        step: u64,
        is_exact: bool,
    ) -> Result<Option<Difference>, BossManError> {
        let digests = &self.verification.receipt.digests;
        let Some(expected) = digests.iter().find(|digest| digest.step == step) else {
            return Ok(None);
        };
        if is_exact && self.boss.digest().await?.to_string() == expected.digest {
            self.seen.digests += 1;
            return Ok(None);
        }
        if self.verification.proven.contains(&step) {
            let stored = self.verification.state_of(Origin::Checkpoint(step)).await?;
            let here = self.boss.checkpoint().await?;
            if let Some(stored) = stored {
                let name = crate::checkpoint::folder_of_step(step);
                let (stored, here) = (all_by_name(&stored.load()?), all_by_name(&here));
                let difference = compare_tensors(&name, &stored, &here, is_exact)?;
                if difference.is_some() {
                    return Ok(difference);
                }
                self.seen.tensors += 1;
            }
        }
        Ok(is_exact.then(|| {
            let problem = "the digest of the repeated state is not that of receipt.json";
            Difference::new(format!("step {step}"), problem)
        }))
    }
}

fn by_name(weights: &StateDict) -> BTreeMap<String, Tensor> {
    weights.iter().map(|(name, tensor)| (name.to_string(), tensor.shallow_clone())).collect()
}

/// Weights and optimizer state, whose names differ.
fn all_by_name(state: &TrainingState) -> BTreeMap<String, Tensor> {
    let mut all = by_name(&state.weights);
    let optimizer = state.optimizer.iter().map(|(name, tensor)| {
        (StateName::of_optimizer(name, None).to_string(), tensor.shallow_clone())
    });
    all.extend(optimizer);
    all
}

/// Compares tensors by name: to the bit, or within the tolerance. Returns the first difference.
fn compare_tensors(
    place: &str,
    stored: &BTreeMap<String, Tensor>,
    here: &BTreeMap<String, Tensor>,
    is_exact: bool,
) -> Result<Option<Difference>, BossManError> {
    for (name, stored) in stored {
        let differs = |problem: String| {
            Ok(Some(Difference::new(place, format!("tensor `{name}`: {problem}"))))
        };
        let Some(here) = here.get(name) else {
            return differs("the repeated run has no such tensor".into());
        };
        let (stored_meta, here_meta) = (tensor::dtype_of(stored)?, tensor::dtype_of(here)?);
        if stored_meta != here_meta || stored.size() != here.size() {
            return differs("the repeated run has another type or shape".into());
        }
        let (largest, distance) = distance(stored, here)?;
        let allowed = if is_exact { 0.0 } else { TOLERANCE * largest };
        if distance > allowed || distance.is_nan() {
            return differs(format!(
                "an element differs from the repeated one by {distance:e}; the largest has the \
                 magnitude {largest:e}"
            ));
        }
    }
    match here.keys().find(|name| !stored.contains_key(*name)) {
        Some(name) => Ok(Some(Difference::new(place, format!("tensor `{name}`: is missing")))),
        None => Ok(None),
    }
}

/// The largest magnitude of `a`, and the largest distance of an element. Equal elements have the
/// distance 0, also if they are infinite.
fn distance(a: &Tensor, b: &Tensor) -> Result<(f64, f64), BossManError> {
    let attempt = || -> Result<(f64, f64), tch::TchError> {
        if a.numel() == 0 || a.f_equal(b)? {
            return Ok((0.0, 0.0));
        }
        let (a, b) = (a.f_to_kind(tch::Kind::Double)?, b.f_to_kind(tch::Kind::Double)?);
        let number = |tensor: Tensor| f64::try_from(tensor.f_abs()?.f_max()?);
        Ok((number(a.shallow_clone())?, number(a.f_sub(&b)?)?))
    };
    Ok(attempt().map_err(tensor::TensorError::from)?)
}
