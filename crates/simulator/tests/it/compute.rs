//! A worker's compute thread, with fake tensors. It checks that it is asked for sensible things.

use crate::math::{self, Draw, Fake};
use crate::params::Params;
use layerspec::{DType, LayerId, ValueId};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{Failure, Mode};
use pipeline::optimizer::OptimizerSpec;
use pipeline::plan::StageSpec;
use pipeline::replicas::{buckets, Bucket, Node, ShardId, Sharding, Tree, UniqueId};
use pipeline::task::{BuildSettings, EarlyOutput, LossTask, Outcome, Task, TreeLeaf, Update};
use pipeline::watch::LayerHealth;
use pipeline::{slices, LoadContent, StateForm, StateName, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that a compute thread keeps between tasks.
#[derive(Default)]
pub struct Compute {
    stages: BTreeMap<StageId, Stage>,
    seed: u64,
    optimizer: Option<OptimizerSpec>,
    /// The stages whose other replicas were found.
    communicators: BTreeSet<StageId>,
    /// Whether a task failed, and nothing was cleaned up since.
    pub failed: bool,
    /// Results that were handed out and not yet fetched.
    pub handed: Vec<EarlyOutput<Fake>>,
}

struct Stage {
    spec: StageSpec,
    params: Params,
    buckets: Vec<Bucket>,
    /// This replica's shard of the sharded buckets.
    share: Option<ShardId>,
    /// Whether parameters are sharded, and whether all of them are present now.
    gathers: bool,
    gathered: bool,
    /// Whether the round's sums along a tree have begun and not ended.
    branching: bool,
    /// The number of microbatches of such a round.
    microbatches: u32,
    /// Forward passes that wait for their backward pass.
    saved: BTreeMap<MicrobatchKey, Saved>,
    /// Backward passes that wait for their second half: the gradient of each use of a weight.
    halves: BTreeMap<MicrobatchKey, Vec<(String, LayerId, Fake)>>,
    /// The last backward pass since the last step: gradients are summed in order.
    last_backward: Option<MicrobatchKey>,
    /// Whether gradients for other stages were handed out, and none were added since.
    reduced: bool,
}

struct Saved {
    step: u64,
    values: BTreeMap<ValueId, Fake>,
    /// The output with the loss, and its gradient.
    loss: Option<(usize, Fake)>,
}

/// The gradient sums of a replica's microbatches: the number of all microbatches, and the sums for
/// each use of a weight.
pub struct Handed {
    microbatches: u32,
    uses: Vec<Vec<(Node, Option<Fake>)>>,
}

impl Handed {
    /// The sums over all replicas, along the tree.
    pub fn together(all: Vec<Handed>) -> Vec<Option<Fake>> {
        let microbatches = all.iter().map(|own| own.microbatches).max().unwrap_or(0);
        let uses = all.iter().map(|own| own.uses.len()).max().unwrap_or(0);
        let sum = |place: usize| {
            let mut tree = Tree::new(microbatches);
            let nodes = all.iter().filter_map(|own| own.uses.get(place)).flatten();
            nodes.for_each(|(node, grad)| math::branch(&mut tree, *node, *grad));
            tree.into_root().expect("all microbatches")
        };
        (0..uses).map(sum).collect()
    }
}

impl Compute {
    /// Whether no forward pass waits for its backward pass.
    pub fn is_clear(&self) -> bool {
        self.stages.values().all(|stage| stage.saved.is_empty() && stage.halves.is_empty())
    }

    /// The weights of each stage of which every replica holds all state.
    pub fn whole_params(&self) -> impl Iterator<Item = (StageId, &Params)> {
        let whole = self.stages.iter().filter(|(_, s)| s.share.is_none());
        whole.map(|(stage, s)| (*stage, &s.params))
    }

    /// Runs a task. A task after a failed task fails, too, if it depends on its results, as on a
    /// real worker.
    pub fn run(&mut self, task: Task<Fake>) -> Result<Outcome<Fake>, Failure> {
        let follows = matches!(
            task,
            Task::OptimStep { .. } | Task::AllGather { .. } | Task::AllReduce { .. }
        );
        self.failed &= !matches!(task, Task::Discard { .. });
        let result = match follows && self.failed {
            true => Err(Failure::new("an earlier task of this step failed")),
            false => self.carry_out(task),
        };
        self.failed |= result.is_err();
        result
    }

    fn carry_out(&mut self, task: Task<Fake>) -> Result<Outcome<Fake>, Failure> {
        match task {
            Task::Build { stages, settings } => {
                let BuildSettings { buckets: bytes, sharding, shard_ids, seed, .. } = settings;
                let stages = stages.into_iter().map(|spec| {
                    let share = shard_ids.get(&spec.stage).copied();
                    let sharding = sharding.filter(|_| share.is_some());
                    let buckets = buckets(&spec, bytes, sharding);
                    let gathers = sharding.is_some_and(Sharding::shards_parameters);
                    (
                        spec.stage,
                        Stage {
                            gathers,
                            gathered: !gathers,
                            ..Stage::new(spec, (buckets, share), seed)
                        },
                    )
                });
                *self = Compute { stages: stages.collect(), seed, ..Compute::default() };
            }
            Task::SetOptimizer(spec) => {
                self.optimizer = Some(spec);
                self.stages.values_mut().for_each(|s| s.params.forget_state());
            }
            Task::Forward { stage, key, step, mode, inputs, export, loss, .. } => {
                let draw = Draw { seed: self.seed, step, microbatch: key.index };
                self.stage(stage).check_gathered()?;
                return Ok(self.stage(stage).forward(key, draw, mode, inputs, &export, loss));
            }
            Task::Backward { stage, key, grads, input_only, leaf: branch } => {
                let seed = self.seed;
                self.stage(stage).check_gathered()?;
                let outcome = self.stage(stage).backward(key, seed, grads, input_only, branch)?;
                self.hand_out(stage, branch);
                return Ok(outcome);
            }
            Task::BackwardWeight { stage, key, leaf: branch } => {
                self.stage(stage).backward_weight(key, branch)?;
                self.hand_out(stage, branch);
            }
            Task::Reduce { stage, buckets, statistics, .. } => {
                assert!(statistics.is_empty(), "there are no batch norms");
                self.stage(stage).reduce(buckets)?;
            }
            Task::MakeIds { stages } => {
                let id = |stage: StageId| (stage, UniqueId::from([stage.0 as u8; UniqueId::BYTES]));
                return Ok(Outcome::UniqueIds { ids: stages.into_iter().map(id).collect() });
            }
            Task::Communicate { stages } => {
                assert!(stages.is_empty(), "others are needed for that")
            }
            Task::AllReduce { .. } => panic!("others are needed for that"),
            Task::TiedGrads { stage } => return self.stage(stage).tied_grads(),
            Task::GradNorm { stage, tied } => return Ok(self.stage(stage).grad_norm(tied)),
            Task::OptimStep { stage, update, tied, health } => {
                let optimizer =
                    self.optimizer.ok_or_else(|| Failure::new("there is no optimizer"))?;
                let outcome = self.stage(stage).optim_step(&optimizer, update, tied);
                if !self.stage(stage).gathers {
                    self.share(stage);
                }
                if health {
                    let all = self.stage(stage).spec.layers.iter().map(|layer| layer.id);
                    let fine = |layer| LayerHealth {
                        layer,
                        finite: true,
                        has_gradient: true,
                        changed: true,
                    };
                    let handed = EarlyOutput::Health(all.map(fine).collect());
                    self.handed.push(handed);
                }
                return Ok(outcome);
            }
            Task::AllGather { stage, buckets } => self.stage(stage).all_gather(buckets),
            Task::EmitShard { stage } => self.share(stage),
            Task::Reshard { stage } => self.stage(stage).reshard(),
            Task::UpdateTied { stage, tied } => self.stage(stage).update_tied(tied),
            Task::Measure { probes } => {
                return Ok(Outcome::Measured { times: probes.iter().map(math::times).collect() });
            }
            Task::Discard { batch, gradients } => {
                self.stages.values_mut().for_each(|stage| stage.discard(batch, gradients));
                if gradients {
                    self.communicators.clear();
                }
            }
            Task::Snapshot { parameters, optimizer, form } => {
                let mut tensors = Vec::new();
                for (stage, s) in &self.stages {
                    let all = parameters.contains(stage);
                    if all {
                        s.check_gathered()?;
                        let owned = s.params.owned().into_iter();
                        tensors.extend(owned.map(|(name, value)| (name, None, value)));
                    }
                    if optimizer.contains(stage) {
                        tensors.extend(s.params.states(&s.buckets, s.share, !all));
                    }
                }
                return Ok(sliced(tensors, form));
            }
            Task::Digest => {
                // Sharded parameters are left out, because each replica has another part.
                let digest = |(stage, s): (&StageId, &Stage)| {
                    (*stage, String::new(), if s.gathers { [0; 32] } else { s.params.digest() })
                };
                return Ok(Outcome::Digests { digests: self.stages.iter().map(digest).collect() });
            }
            Task::Load { tensors, content } => {
                let whole = content == LoadContent::WholeState;
                let (states, tensors): (Vec<_>, Vec<_>) =
                    tensors.into_iter().partition(|(name, _)| StateName::parse(name).optimizer);
                assert!(whole || states.is_empty() || content == LoadContent::Part);
                let needs = whole || !states.is_empty();
                assert!(self.optimizer.is_some() || !needs, "a state without an optimizer");
                if whole {
                    self.stages.values_mut().for_each(|s| s.params.forget_state());
                }
                self.load(tensors, whole);
                for (name, state) in states {
                    let (param, _) = StateName::parse(&name).kept().expect("a parameter's");
                    self.stages
                        .values_mut()
                        .for_each(|s| s.params.load_state(param, state, &s.buckets, s.share));
                }
            }
            Task::Files { .. } => {}
        }
        Ok(Outcome::Done)
    }

    /// The other replicas of these stages are found.
    pub fn communicate(&mut self, stages: impl Iterator<Item = StageId>) {
        self.communicators = stages.collect();
    }

    /// The gradient sums of this replica's microbatches, if it has found the others.
    pub fn own_sums(&mut self, stage: StageId) -> Option<Handed> {
        let found = self.communicators.contains(&stage);
        let Stage { params, buckets, microbatches, .. } =
            self.stages.get_mut(&stage).filter(|_| found)?;
        Some(Handed {
            microbatches: std::mem::take(microbatches),
            uses: params.take_trees(buckets),
        })
    }

    /// Ends a round's sum with the sums over all replicas.
    pub fn all_reduce(&mut self, stage: StageId, sums: &[Option<Fake>]) -> Result<(), Failure> {
        let Stage { params, buckets, halves, branching, .. } = self.stage(stage);
        // This task was already queued when the last pass failed.
        if !halves.is_empty() {
            return Err(Failure::new("a sum without some of its microbatches"));
        }
        *branching = false;
        params.add_sums(buckets, sums);
        Ok(())
    }

    /// Hands out this replica's part of the parameters.
    fn share(&mut self, stage: StageId) {
        let part = self.stage(stage).part();
        let handed = |(bucket, slices)| EarlyOutput::Updated { stage, bucket, slices };
        self.handed.extend(part.into_iter().map(handed));
    }

    /// After the last microbatch of a replica that is not alone.
    fn hand_out(&mut self, stage: StageId, branch: Option<TreeLeaf>) {
        let Some(replicas) = branch.and_then(|branch| branch.emit_to_replicas) else { return };
        let Stage { params, buckets, .. } =
            self.stages.get_mut(&stage).expect("a stage of this worker");
        let handed = buckets.iter().enumerate().map(|(bucket, of)| EarlyOutput::Sums {
            stage,
            bucket: bucket as u32,
            shards: params.hand_out(of, replicas),
        });
        self.handed.extend(handed);
    }

    fn stage(&mut self, stage: StageId) -> &mut Stage {
        self.stages.get_mut(&stage).expect("a stage of this worker")
    }

    /// Loads tensors and slices of tensors. A slice has the number of its tensor.
    fn load(&mut self, tensors: Vec<(String, Fake)>, whole: bool) {
        let all: BTreeSet<String> = self.stages.values().flat_map(|s| s.params.names()).collect();
        let (mut loaded, mut left) = (BTreeSet::new(), all.clone());
        for (text, value) in tensors {
            let name = StateName::parse(&text).name;
            assert!(all.contains(name), "{name} is not here");
            self.stages.values_mut().for_each(|s| s.params.load(name, value));
            left.remove(name);
            assert!(loaded.insert(text.clone()), "{text} is loaded twice");
        }
        assert!(!whole || left.is_empty(), "a state without {left:?}");
    }
}

/// State as a worker sends it. A tensor has one number, which is that of all its slices.
fn sliced(tensors: Vec<(String, Option<u64>, Fake)>, form: StateForm) -> Outcome<Fake> {
    // Hashes travel as tensors do, and the simulator computes with numbers.
    assert_ne!(form, StateForm::Hashes);
    let (mut heads, mut sent) = (Vec::new(), Vec::new());
    for (name, elements, value) in tensors {
        let wanted = match form {
            StateForm::Slices => 1 + name.bytes().map(u64::from).sum::<u64>() % 5,
            _ => 1,
        };
        let count = elements.map_or(wanted, |elements| wanted.min(elements));
        let meta = TensorMeta { dtype: DType::Int64, shape: vec![count] };
        // Slices of one element.
        sent.extend(slices(&name, &meta, 8).into_iter().map(|slice| (slice.name, value)));
        heads.push((name, meta));
    }
    Outcome::State { heads, tensors: sent }
}

impl Stage {
    fn new(spec: StageSpec, (buckets, share): (Vec<Bucket>, Option<ShardId>), seed: u64) -> Self {
        let params = Params::new(&spec, seed);
        let (saved, halves) = (BTreeMap::new(), BTreeMap::new());
        let (gathers, gathered, branching, reduced) = (false, true, false, false);
        Stage {
            spec,
            params,
            buckets,
            share,
            gathers,
            gathered,
            branching,
            microbatches: 0,
            saved,
            halves,
            last_backward: None,
            reduced,
        }
    }

    fn check_gathered(&self) -> Result<(), Failure> {
        // This task was already queued when the all-gather failed.
        self.gathered
            .then_some(())
            .ok_or_else(|| Failure::new("only a part of the parameters is here"))
    }

    fn reshard(&mut self) {
        self.gathered = !self.gathers;
    }

    fn forward(
        &mut self,
        key: MicrobatchKey,
        draw: Draw,
        mode: Mode,
        inputs: Vec<Fake>,
        export: &[usize],
        loss: Option<LossTask<Fake>>,
    ) -> Outcome<Fake> {
        let spec = &self.spec;
        assert_eq!(inputs.len(), spec.inputs.len(), "an input for each of the stage's");
        let mut values: BTreeMap<ValueId, Fake> =
            spec.inputs.iter().map(|i| i.value).zip(inputs).collect();
        for layer in &spec.layers {
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| values[v]).collect();
            let draw = (mode == Mode::Train).then_some(draw);
            let outputs = math::forward(layer, &self.params.of(layer), &inputs, draw);
            values.extend(layer.outputs.iter().copied().zip(outputs));
        }
        let output = |index: usize| values[&spec.outputs[index].value];
        let outputs = export.iter().map(|index| output(*index)).collect();
        let loss = loss.map(|task| (task.output, math::loss(output(task.output), &task)));
        if mode == Mode::Train {
            let loss = loss.map(|(output, (_, grad))| (output, grad));
            let saved = Saved { step: draw.step, values, loss };
            assert!(
                self.saved.insert(key, saved).is_none(),
                "{}: {key} forward twice",
                self.spec.stage
            );
        }
        Outcome::Forward { outputs, loss: loss.map(|(_, (loss, _))| loss) }
    }

    fn backward(
        &mut self,
        key: MicrobatchKey,
        seed: u64,
        outside: Vec<Vec<Fake>>,
        input_only: bool,
        branch: Option<TreeLeaf>,
    ) -> Result<Outcome<Fake>, Failure> {
        let spec = self.spec.clone();
        // Missing if the forward pass failed while this task was queued.
        let saved = self.saved.remove(&key);
        let saved = saved.ok_or_else(|| {
            Failure::new(format!("{}: {key} backward without its forward pass", spec.stage))
        })?;
        assert_eq!(outside.len(), spec.outputs.len(), "gradients for each of the stage's outputs");
        assert!(!input_only || spec.is_trained(), "a half of what has no other");

        let needs_grad = self.needs_grad();
        let mut grads: BTreeMap<ValueId, Vec<Fake>> = BTreeMap::new();
        let mut of_uses = Vec::new();
        for (index, (output, outside)) in spec.outputs.iter().zip(outside).enumerate() {
            assert!(
                output.needs_grad || outside.is_empty(),
                "a gradient for a variable that needs none"
            );
            let loss = saved.loss.filter(|(with_loss, _)| *with_loss == index && output.needs_grad);
            grads
                .entry(output.value)
                .or_default()
                .extend(loss.map(|(_, grad)| grad).into_iter().chain(outside));
        }
        for layer in spec.layers.iter().rev() {
            let of = |value: &ValueId| {
                grads.get(value).and_then(|terms| math::sum(terms.iter().copied()))
            };
            let of_outputs: Vec<Option<Fake>> = layer.outputs.iter().map(of).collect();
            if of_outputs.iter().all(Option::is_none) {
                continue;
            }
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| saved.values[v]).collect();
            let draw = Draw { seed, step: saved.step, microbatch: key.index };
            let (of_inputs, of_weights) =
                math::backward(layer, &self.params.of(layer), &inputs, draw, &of_outputs);
            for ((name, trained), grad) in self.params.weights(layer).into_iter().zip(of_weights) {
                if trained {
                    of_uses.push((name, layer.id, grad));
                }
            }
            for (value, grad) in layer.inputs.iter().zip(of_inputs).rev() {
                if needs_grad.contains(value) {
                    grads.entry(*value).or_default().push(grad);
                }
            }
        }
        self.halves.insert(key, of_uses);
        if !input_only {
            self.backward_weight(key, branch)?;
        }
        let of_inputs = spec.inputs.iter().map(|input| {
            let terms = grads.remove(&input.value).unwrap_or_default();
            if input.sum_here {
                math::sum(terms).into_iter().collect()
            } else {
                terms
            }
        });
        Ok(Outcome::Backward { grads: of_inputs.collect() })
    }

    fn backward_weight(
        &mut self,
        key: MicrobatchKey,
        branch: Option<TreeLeaf>,
    ) -> Result<(), Failure> {
        let stage = self.spec.stage;
        let half = self.halves.remove(&key);
        let half = half.ok_or_else(|| {
            Failure::new(format!("{stage}: {key} backward without its first half"))
        })?;
        self.reduced = false;
        if self.buckets.is_empty() {
            return Ok(()); // nothing to sum, in whatever order
        }
        let Some(branch) = branch else {
            let last = self.last_backward.replace(key);
            assert!(last.is_none_or(|last| last < key), "{stage}: {key} backward after {last:?}");
            half.into_iter().for_each(|(name, user, grad)| self.params.add_grad(&name, user, grad));
            return Ok(());
        };
        // Along a tree the order is free.
        self.branching = true;
        self.microbatches = branch.microbatches;
        for used in self.buckets.iter().flat_map(|bucket| &bucket.uses) {
            let (name, user) = self.params.named(used);
            let grad =
                half.iter().find(|(n, u, _)| (n, *u) == (&name, user)).map(|(.., grad)| *grad);
            self.params.add_leaf(&name, user, grad, key.index, branch.microbatches);
        }
        Ok(())
    }

    fn reduce(&mut self, reduced: Vec<Vec<Vec<Fake>>>) -> Result<(), Failure> {
        // This task was already queued when the last pass failed.
        if !self.halves.is_empty() || !self.params.are_whole(!reduced.is_empty()) {
            return Err(Failure::new("a sum without some of its microbatches"));
        }
        self.branching = false;
        self.params.reduce(&self.buckets, self.share, reduced);
        Ok(())
    }

    fn tied_grads(&mut self) -> Result<Outcome<Fake>, Failure> {
        assert!(!self.spec.tied_copies.is_empty(), "nothing to hand over");
        // This task was already queued when the last half failed.
        if !self.halves.is_empty() {
            return Err(Failure::new("gradients are handed over too early"));
        }
        self.reduced = true;
        Ok(Outcome::Tied { tensors: self.params.tied_grads(&self.spec) })
    }

    fn grad_norm(&mut self, tied: Vec<(StageId, Vec<Fake>)>) -> Outcome<Fake> {
        self.params.add_tied(&self.spec, tied);
        Outcome::Norms {
            squares: self.params.squares(&self.spec.layers, &self.buckets, self.share),
        }
    }

    fn optim_step(
        &mut self,
        optimizer: &OptimizerSpec,
        update: Update,
        tied: Vec<(StageId, Vec<Fake>)>,
    ) -> Outcome<Fake> {
        assert!(self.halves.is_empty() && !self.branching, "an update before the last gradient");
        assert!(
            self.spec.tied_copies.is_empty() || self.reduced,
            "shared gradients were not handed over"
        );
        self.params.add_tied(&self.spec, tied);
        self.params.step(optimizer, update);
        self.last_backward = None;
        Outcome::Tied { tensors: self.params.tied_values(&self.spec) }
    }

    /// The values that only this replica updates.
    fn part(&self) -> Vec<(u32, Vec<Fake>)> {
        let Some(share) = self.share else { return Vec::new() };
        let sharded = (0..).zip(&self.buckets).filter(|(_, bucket)| bucket.sharded);
        sharded.map(|(number, bucket)| (number, self.params.values(bucket, share))).collect()
    }

    fn all_gather(&mut self, updated: Vec<Vec<Vec<Fake>>>) {
        self.params.all_gather(&self.buckets, self.share, updated);
        self.gathered = true;
    }

    fn update_tied(&mut self, tied: Vec<(StageId, Vec<Fake>)>) {
        self.params.take_tied(&self.spec, tied);
    }

    fn discard(&mut self, batch: u64, gradients: bool) {
        self.saved.retain(|key, _| key.batch != batch);
        self.halves.retain(|key, _| key.batch != batch);
        self.reshard();
        if gradients {
            self.params.forget_grads();
            self.branching = false;
            self.last_backward = None;
        }
    }

    /// The variables of a stage that depend on a trained weight, here or before it.
    fn needs_grad(&self) -> BTreeSet<ValueId> {
        let spec = &self.spec;
        let mut needing: BTreeSet<ValueId> =
            spec.inputs.iter().filter(|i| i.needs_grad).map(|i| i.value).collect();
        for layer in &spec.layers {
            let trains = self.params.weights(layer).iter().any(|(_, trained)| *trained);
            if trains || layer.inputs.iter().any(|v| needing.contains(v)) {
                needing.extend(&layer.outputs);
            }
        }
        needing
    }
}
