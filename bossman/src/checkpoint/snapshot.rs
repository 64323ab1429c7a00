//! The state of training, out of the workers and into them.

use super::manifest::Counters;
use crate::data::tensor_payload::{from_payload, to_payload};
use crate::session::boss::BossMan;
use crate::weights::state_dict::{expected, ExpectedTensor};
use crate::{BossManError, StateDict};
use layerspec::LayerGraph;
use link::{Payload, Slots};
use pipeline::boss::Request;
use pipeline::effect::Answer;
use pipeline::ids::{Slot, StageId};
use pipeline::message::Failure;
use pipeline::StateName;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use tch::Tensor;
use tensor::parts::concat_shards;

/// All of a run's state that is not in its files.
#[derive(Debug)]
pub struct TrainingState {
    /// Parameters and buffers.
    pub weights: StateDict,
    /// The optimizer state, by names such as `0.weight.exp_avg`.
    pub optimizer: BTreeMap<String, Tensor>,
    /// The counters of training.
    pub counters: Counters,
}

/// The tensors of a worker's copy.
pub(crate) type Reply = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>;

/// A state that workers have copied, or will copy before they train on, and that is on its way.
pub(crate) struct Snapshot {
    replies: Vec<Reply>,
    slots: Slots,
    counters: Counters,
    /// The sizes of parameters that replicas have parts of.
    sizes: BTreeMap<String, Vec<i64>>,
}

impl BossMan {
    /// All that training needs to go on from here to the bit, with any other workers: see [`BossMan::restore`].
    /// [`crate::checkpoint::Checkpoints`] writes it to a folder or an object store.
    ///
    /// A program that goes on once, where one of three workers is lost:
    ///
    /// ```no_run
    /// # use bossman::{Batch, BossMan, BossManError, Host, Loss, Model, Optimizer};
    /// async fn start(workers: usize) -> Result<BossMan, BossManError> {
    ///     // Workers that have lost their boss look for it on this port.
    ///     let workers = Host::new(workers).port(1024).wait().await?;
    ///     let builder = BossMan::builder(Model::from_file("model.yaml")?).loss(Loss::MSELoss).microbatches(8);
    ///     let mut boss = builder.build(workers)?;
    ///     boss.distribute_model().await?;
    ///     boss.send_optimizer(Optimizer::adam(1e-3)).await?;
    ///     Ok(boss)
    /// }
    ///
    /// async fn train(batches: &[Batch]) -> Result<(), BossManError> {
    ///     let mut boss = start(3).await?;
    ///     let mut state = boss.checkpoint().await?;
    ///     while let Some(batch) = batches.get(state.counters.step as usize) {
    ///         let step = async {
    ///             boss.train_step(batch).await?;
    ///             boss.checkpoint().await
    ///         };
    ///         match step.await {
    ///             Ok(now) => state = now,
    ///             Err(error) if error.workers_were_lost() => {
    ///                 drop(boss);
    ///                 boss = start(2).await?;
    ///                 boss.restore(&state).await?;
    ///             }
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    ///     boss.shutdown().await;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Gradients were gathered that no update has used yet; a worker failed.
    pub async fn checkpoint(&mut self) -> Result<TrainingState, BossManError> {
        self.begin_snapshot().await?.finish().await
    }

    /// Lets workers copy their state between two steps. The copy travels while training continues.
    ///
    /// # Errors
    /// Gradients were gathered that no update has used yet; a worker failed.
    pub(crate) async fn begin_snapshot(&mut self) -> Result<Snapshot, BossManError> {
        if self.accumulated.is_pending() {
            return Err(BossManError::Usage("a checkpoint is made after an optimizer step, not between two".into()));
        }
        let (counters, sizes, slots) = (self.counters(), sizes(self.model.graph()), self.handle.slots.clone());
        let ask = |boss: &BossMan, stage| boss.handle.call(Request::SendState { stage, optimizer: true });
        let (replies, asked) = self.request_snapshots(ask).await;
        let snapshot = Snapshot { replies, slots, counters, sizes };
        if let Err(error) = asked {
            // Tensors that have arrived are freed from their slots.
            snapshot.finish().await.ok();
            return Err(error);
        }
        Ok(snapshot)
    }

    /// Asks for copies of all stages at once; or stage by stage, where no worker may have room for all. Requests are carried
    /// out in their order.
    pub(crate) async fn request_snapshots<F>(
        &mut self,
        mut ask: impl FnMut(&BossMan, Option<StageId>) -> F,
    ) -> (Vec<Reply>, Result<(), BossManError>)
    where
        F: Future<Output = Result<Answer, Failure>> + Send + 'static,
    {
        if !self.snapshots_stage_by_stage() {
            return (vec![Box::pin(ask(self, None))], Ok(()));
        }
        let layout = self.plan.layout();
        let stages: Vec<StageId> = self.plan.stages.iter().map(|spec| spec.stage).collect();
        let mut replies: Vec<Reply> = Vec::new();
        for stage in stages {
            let [gather, let_go] = layout.whole(stage).unwrap_or_default();
            let gathered = self.run_actions(gather).await;
            if gathered.is_ok() {
                replies.push(Box::pin(ask(self, Some(stage))));
            }
            let let_go = if gathered.is_ok() { self.run_actions(let_go).await } else { gathered };
            if let_go.is_err() {
                return (replies, let_go);
            }
        }
        (replies, Ok(()))
    }

    /// Whether workers copy one stage after the other.
    pub(crate) fn snapshots_stage_by_stage(&self) -> bool {
        let layout = self.plan.layout();
        self.plan.stages.iter().any(|spec| layout.shards_parameters(spec.stage))
    }

    /// Where training stands.
    pub(crate) fn counters(&self) -> Counters {
        Counters { step: self.step, updates: self.updates, loss_scale: self.settings.loss_scale }
    }

    /// Training stands there from now on.
    pub(crate) fn set_counters(&mut self, Counters { step, updates, loss_scale }: Counters) {
        self.monitor.reset();
        (self.step, self.updates) = (step, updates);
        if let (Some(now), Some(then)) = (&mut self.settings.loss_scale, loss_scale) {
            *now = then;
        }
    }

    /// Gives workers the state of a run, in place of their own: training continues from there, to
    /// the bit. The optimizer must have been sent.
    ///
    /// # Errors
    /// It is another model's or another optimizer's; all that differs in the weights is listed.
    pub fn restore<'a>(
        &'a mut self,
        state: &TrainingState,
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let (placed, counters) = (self.state_by_stage(state), state.counters);
        async move {
            self.refuse_in_pool("restore")?;
            let placed = placed?;
            self.invalidate_replay();
            let hold =
                |(stage, name, payload): (StageId, String, Payload)| (stage, name, self.handle.slots.insert(payload));
            let tensors = placed.into_iter().map(hold).collect();
            self.loaded = true;
            self.call(Request::LoadState { tensors, optimizer: true }).await?;
            self.set_counters(counters);
            Ok(())
        }
    }

    fn state_by_stage(&self, state: &TrainingState) -> Result<Vec<(StageId, String, Payload)>, BossManError> {
        let mut tensors = self.weights_by_stage(&state.weights)?;
        tensors.extend(self.optimizer_state_by_stage(&state.optimizer)?);
        Ok(tensors)
    }

    /// Optimizer state goes to the stage that owns the parameter.
    fn optimizer_state_by_stage(
        &self,
        state: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(StageId, String, Payload)>, BossManError> {
        let parameters = expected(self.model.graph()).owned;
        let place = |(name, tensor): (&String, &Tensor)| {
            let stranger = || BossManError::StateDict(vec![format!("`{name}`: the model has no such parameter")]);
            let of = name.rsplit_once('.').and_then(|(parameter, _)| parameters.get(parameter));
            let ExpectedTensor { layer, parameter, .. } = of.ok_or_else(stranger)?;
            let stage = self.plan.holders(*layer, parameter).first().copied().ok_or_else(stranger)?;
            Ok((stage, StateName::of_optimizer(name, None).to_string(), to_payload(tensor)?))
        };
        state.iter().map(place).collect()
    }
}

impl Snapshot {
    /// Waits until all is here.
    pub(crate) async fn finish(self) -> Result<TrainingState, BossManError> {
        let Snapshot { replies, slots, counters, sizes } = self;
        let mut all: Vec<(String, Slot)> = Vec::new();
        let mut failed = None;
        for reply in replies {
            match reply.await {
                Ok(answer) => all.extend(answer.state),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        // Taken out of their slots in any case.
        let all = all.into_iter().filter_map(|(name, slot)| Some((name, slots.remove(slot)?)));
        let all: Vec<(String, Payload)> = all.collect();
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        let (mut weights, mut optimizer) = (StateDict::default(), BTreeMap::new());
        let mut parts: BTreeMap<String, BTreeMap<u64, Tensor>> = BTreeMap::new();
        for (name, payload) in &all {
            let (name, tensor) = (StateName::parse(name), from_payload(payload)?);
            match (name.optimizer, name.start) {
                (false, _) => weights.insert(name.name, &tensor),
                (true, None) => drop(optimizer.insert(name.name.to_string(), tensor)),
                (true, Some(start)) => drop(parts.entry(name.name.to_string()).or_default().insert(start, tensor)),
            }
        }
        for (name, parts) in parts {
            let wrong = |problem: String| BossManError::StateDict(vec![format!("`{name}`: {problem}")]);
            let of = name.rsplit_once('.').and_then(|(parameter, _)| sizes.get(parameter));
            let sizes = of.ok_or_else(|| wrong("the model has no such parameter".into()))?;
            let whole = concat_shards(parts, sizes).map_err(|problem| wrong(problem.to_string()))?;
            optimizer.insert(name, whole);
        }
        Ok(TrainingState { weights, optimizer, counters })
    }
}

fn sizes(graph: &LayerGraph) -> BTreeMap<String, Vec<i64>> {
    let mut sizes = BTreeMap::new();
    for layer in graph.layers() {
        for param in graph.own_params(layer.id) {
            let shape = param.shape.iter().map(|size| size.cast_signed()).collect();
            sizes.insert(format!("{}.{}", layer.name, param.name), shape);
        }
    }
    sizes
}
