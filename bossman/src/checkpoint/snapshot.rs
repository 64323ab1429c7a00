//! Copies of the training state, from the workers and to them.

use super::manifest::{Manifest, RunRecord};
use super::state_fit::{check_optimizer_state, keeps_state};
use super::store::Checkpoints;
use super::stored_state::StoredState;
use super::training_state::{hash, Sizes, TrainingState};
use crate::data::tensor_payload::{from_payload, meta_of, owned_from_payload};
use crate::session::fetched_state;
use crate::session::position::Counters;
use crate::session::trainer::Trainer;
use crate::session::weight_transfer::{self, StageTensor};
use crate::weights::state_dict::expected;
use crate::{BossManError, StateDict};
use layerspec::LayerGraph;
use link::Payload;
use pipeline::boss::SendState;
use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::optimizer::OptimizerSpec;
use pipeline::{StateDigest, StateForm, StateName};
use runtime::StateStream;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tch::Tensor;
use tensor::parts::concat_shards;

/// The answer of a worker that copies its state.
pub(crate) type Reply<A> = Pin<Box<dyn Future<Output = Result<A, Failure>> + Send>>;

/// A state in flight. Workers have copied it, or will before they train further.
pub(crate) struct Snapshot {
    streams: Vec<StateStream>,
    counters: Counters,
    /// The sizes of parameters of which replicas have shards.
    sizes: Sizes,
}

/// Lets workers copy or hash their state between two steps. The answers travel while training
/// continues.
///
/// # Errors
/// Accumulated gradients wait for an update, or a worker failed.
pub(crate) async fn begin_snapshot(
    trainer: &mut Trainer,
    form: StateForm,
) -> Result<Snapshot, BossManError> {
    if trainer.position.accumulated.is_pending() {
        return Err(BossManError::Usage(
            "a checkpoint is made after an optimizer step, not between two".into(),
        ));
    }
    let counters = trainer.position.counters;
    let sizes = sizes(trainer.model.graph());
    let ask = |trainer: &Trainer, stage| {
        let stream = trainer.handle.fetch(SendState { stage, optimizer: true, form });
        std::future::ready(Ok::<StateStream, Failure>(stream))
    };
    let (replies, asked) = request_snapshots(trainer, ask).await;
    asked?;
    let mut streams = Vec::new();
    for reply in replies {
        streams.push(reply.await?);
    }
    Ok(Snapshot { streams, counters, sizes })
}

/// Requests copies of all stages at once, or stage by stage if parameters are sharded, because a
/// worker may not have room for all. Requests are executed in order.
pub(crate) async fn request_snapshots<A, F>(
    trainer: &mut Trainer,
    mut ask: impl FnMut(&Trainer, Option<StageId>) -> F,
) -> (Vec<Reply<A>>, Result<(), BossManError>)
where
    F: Future<Output = Result<A, Failure>> + Send + 'static,
{
    if !trainer.plan.copies_stage_by_stage() {
        return (vec![Box::pin(ask(trainer, None))], Ok(()));
    }
    let layout = trainer.plan.layout();
    let stages: Vec<StageId> = trainer.plan.stages.iter().map(|spec| spec.stage).collect();
    let mut replies: Vec<Reply<A>> = Vec::new();
    for stage in stages {
        let [gather, reshard] = layout.whole(stage).unwrap_or_default();
        let gathered = trainer.run_actions(gather).await;
        if gathered.is_ok() {
            replies.push(Box::pin(ask(trainer, Some(stage))));
        }
        let done = if gathered.is_ok() { trainer.run_actions(reshard).await } else { gathered };
        if done.is_err() {
            return (replies, done);
        }
    }
    (replies, Ok(()))
}

/// Continues training from these counters.
pub(crate) fn resume_from(trainer: &mut Trainer, counters: Counters) {
    trainer.monitor.reset();
    trainer.position.resume_from(counters);
}

/// Replaces the state of the workers with one in memory.
pub(crate) async fn restore(
    trainer: &mut Trainer,
    tensors: Vec<StageTensor>,
    counters: Counters,
) -> Result<(), BossManError> {
    let optimizer = optimizer_of(trainer)?;
    let is_of_optimizer = |tensor: &StageTensor| StateName::parse(&tensor.name).optimizer;
    let (state, weights) = tensors.into_iter().partition(is_of_optimizer);
    forget_what_waits(trainer).await?;
    weight_transfer::load(trainer, weights).await?;
    // The optimizer starts fresh. State that is missing in the stored one stays so.
    trainer.send_optimizer(optimizer).await?;
    if keeps_state(&optimizer) {
        weight_transfer::load(trainer, state).await?;
    }
    weight_transfer::end_load(trainer).await?;
    resume_from(trainer, counters);
    Ok(())
}

/// Replaces the state of the workers with a checkpoint, which is read while it travels.
pub(crate) async fn restore_stored(
    trainer: &mut Trainer,
    state: &Arc<StoredState>,
) -> Result<(), BossManError> {
    let optimizer = optimizer_of(trainer)?;
    state.check(trainer.model.graph(), &optimizer)?;
    forget_what_waits(trainer).await?;
    let read = |state: &Arc<StoredState>| {
        let state = state.clone();
        move |piece| state.read(piece)
    };
    weight_transfer::load_unread(trainer, state.weights(), read(state)).await?;
    // As in [`restore`].
    trainer.send_optimizer(optimizer).await?;
    if keeps_state(&optimizer) {
        weight_transfer::load_unread(trainer, state.optimizer(), read(state)).await?;
    }
    weight_transfer::end_load(trainer).await?;
    resume_from(trainer, state.counters);
    Ok(())
}

/// Frees batches and gradients that belong to the state before. Workers lose them with their
/// stages.
async fn forget_what_waits(trainer: &mut Trainer) -> Result<(), BossManError> {
    match trainer.position.is_idle() {
        true => Ok(()),
        false => trainer.distribute().await,
    }
}

fn optimizer_of(trainer: &Trainer) -> Result<OptimizerSpec, BossManError> {
    let none = || BossManError::Usage("restore: call send_optimizer() before it".into());
    trainer.optimizer.ok_or_else(none)
}

/// The tensors of a state for the stages that hold them.
///
/// # Errors
/// The state is not that of this model and optimizer. All differences are listed.
pub(crate) fn state_by_stage(
    trainer: &Trainer,
    state: &TrainingState,
) -> Result<Vec<StageTensor>, BossManError> {
    let graph = trainer.model.graph();
    let weights = state.weights.fit_to(graph)?;
    let optimizer: Vec<(String, &Tensor)> = state
        .optimizer
        .iter()
        .map(|(name, tensor)| (StateName::of_optimizer(name, None).to_string(), tensor))
        .collect();
    let metas = optimizer.iter().map(|(name, tensor)| Ok((name.as_str(), meta_of(tensor)?)));
    let metas = metas.collect::<Result<Vec<_>, BossManError>>()?;
    let metas = metas.iter().map(|(name, meta)| (*name, meta));
    check_optimizer_state(&expected(graph), &optimizer_of(trainer)?, metas)?;
    let optimizer = optimizer.iter().map(|(name, tensor)| (name.as_str(), *tensor));
    weight_transfer::placed(trainer, weights.iter().chain(optimizer))
}

impl Snapshot {
    /// Waits until the whole state has arrived. The workers were asked for tensors.
    pub(crate) async fn finish(self) -> Result<TrainingState, BossManError> {
        let Snapshot { streams, counters, sizes } = self;
        let (mut weights, mut optimizer) = (StateDict::default(), BTreeMap::new());
        let mut shards = Shards::default();
        receive_all(streams, |name, payload| {
            let (name, tensor) = (StateName::parse(name), owned_from_payload(payload)?);
            match (name.optimizer, name.start) {
                (false, _) => weights.insert(name.name, &tensor),
                (true, None) => drop(optimizer.insert(name.name.to_string(), tensor)),
                (true, Some(start)) => shards.insert(name.name, start, tensor),
            }
            Ok(())
        })
        .await?;
        optimizer.extend(shards.concat(&sizes)?);
        Ok(TrainingState { weights, optimizer, counters })
    }

    /// Writes the state to a checkpoint while it arrives. The workers were asked for tensors.
    ///
    /// # Errors
    /// A worker was lost, or a file cannot be written. There is then no checkpoint of this step.
    pub(crate) async fn write(
        self,
        checkpoints: &Checkpoints,
        run: RunRecord,
    ) -> Result<Manifest, BossManError> {
        let Snapshot { mut streams, counters, sizes } = self;
        let mut heads = Vec::new();
        for stream in &mut streams {
            heads.extend(stream.heads().await?.into_iter().map(|head| (head.name, head.meta)));
        }
        let mut writer = checkpoints.begin(counters, run, &heads, &sizes).await?;
        for mut stream in streams {
            loop {
                match stream.next().await {
                    Ok(Some(part)) => writer.add(&part.name, &part.payload).await?,
                    Ok(None) => break,
                    Err(failure) => return Err(writer.abort(failure.into()).await),
                }
            }
        }
        writer.finish().await
    }

    /// Waits until all hashes have arrived. The workers were asked for hashes.
    pub(crate) async fn digest(self) -> Result<StateDigest, BossManError> {
        let Snapshot { streams, counters, sizes } = self;
        let (mut hashes, mut shards) = (counters.hashes(), Shards::default());
        receive_all(streams, |name, payload| {
            let StateName { name: of, start, .. } = StateName::parse(name);
            match (start, <[u8; 32]>::try_from(&payload.bytes[..])) {
                (Some(start), _) => shards.insert(of, start, from_payload(payload)?),
                (None, Ok(hash)) => drop(hashes.insert(name.to_string(), hash)),
                (None, Err(_)) => {
                    let problem = format!("`{name}`: a worker sent something else than its hash");
                    return Err(BossManError::StateDict(vec![problem]));
                }
            }
            Ok(())
        })
        .await?;
        for (name, tensor) in shards.concat(&sizes)? {
            hashes.insert(StateName::of_optimizer(&name, None).to_string(), hash(&tensor)?);
        }
        Ok(StateDigest::of(&hashes))
    }
}

/// Receives states one after the other. After an error the rest is dropped.
async fn receive_all(
    streams: Vec<StateStream>,
    mut take: impl FnMut(&str, &Payload) -> Result<(), BossManError>,
) -> Result<(), BossManError> {
    for stream in streams {
        fetched_state::receive(stream, &mut take).await?;
    }
    Ok(())
}

/// The shards of optimizer state, by name and first element.
#[derive(Default)]
struct Shards(BTreeMap<String, BTreeMap<u64, Tensor>>);

impl Shards {
    fn insert(&mut self, name: &str, start: u64, shard: Tensor) {
        self.0.entry(name.to_string()).or_default().insert(start, shard);
    }

    /// # Errors
    /// Shards are missing, or are of no parameter.
    fn concat(self, sizes: &Sizes) -> Result<BTreeMap<String, Tensor>, BossManError> {
        let whole = |(name, shards): (String, BTreeMap<u64, Tensor>)| {
            let wrong =
                |problem: String| BossManError::StateDict(vec![format!("`{name}`: {problem}")]);
            let of = name.rsplit_once('.').and_then(|(parameter, _)| sizes.get(parameter));
            let sizes = of.ok_or_else(|| wrong("the model has no such parameter".into()))?;
            let whole =
                concat_shards(shards, sizes).map_err(|problem| wrong(problem.to_string()))?;
            Ok((name, whole))
        };
        self.0.into_iter().map(whole).collect()
    }
}

fn sizes(graph: &LayerGraph) -> Sizes {
    let mut sizes = BTreeMap::new();
    for layer in graph.layers() {
        for param in graph.own_params(layer.id) {
            let shape = param.shape.iter().map(|size| size.cast_signed()).collect();
            sizes.insert(format!("{}.{}", layer.name, param.name), shape);
        }
    }
    sizes
}
