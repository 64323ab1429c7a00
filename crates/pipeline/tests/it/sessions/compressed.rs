//! The messages and residuals of a session whose replicas exchange compressed gradients.

use layerspec::LayerGraph;
use pipeline::effect::{Frame, Micros, Part, Peer, Residuals, StageEffect, Summing};
use pipeline::ids::{Slot, StageId, Ticket, WorkerId};
use pipeline::message::{
    Assignment, Command, Mode, PeerAddress, Reduction, Round, RoundUpdate, TensorHead, ToBoss,
    ToWorker,
};
use pipeline::replicas::{nodes, BucketBytes, Compress, MicrobatchAssignment, Node, WorkerGroups};
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::{Action, Order};
use pipeline::stage::StageSession;
use pipeline::task::{EarlyOutput, Outcome};
use pipeline::watch::Watch;
use pipeline::{Cuts, Determinism, Initialization, Placement, Plan};

const NOW: Micros = Micros(0);
const STAGE: StageId = StageId(0);
const OTHER: WorkerId = WorkerId(1);
const FORM: Compress = Compress::Int8;
const BATCH: u64 = 9;

/// The first of two replicas, with a driver that counts slots.
struct Replica {
    session: StageSession,
    slots: u64,
}

impl Replica {
    /// A session with its stage, and a command for three of four microbatches.
    fn at_work(update: bool) -> Self {
        let yaml = "{inputs: {x: [batch, 32]}, layers: [Linear: {in_features: 32, out_features: \
                    32, bias: false}]}";
        let graph = LayerGraph::from_yaml(yaml, "one").unwrap();
        let plan =
            Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(&[2]), Placement::Plain).unwrap();
        let mut replica = Replica { session: StageSession::new(), slots: 0 };
        let address = Some(([127, 0, 0, 1], 1024).into());
        let assignment = Assignment {
            worker: WorkerId(0),
            stages: plan.stages_of(WorkerId(0)),
            stage_placement: plan.stage_placement.clone(),
            buckets: BucketBytes::default(),
            sharding: None,
            peers: vec![PeerAddress { worker: OTHER, address, dial: true, relayed: false }],
            seed: 0,
            determinism: Determinism::Strict,
            initialization: Initialization::AtOnce,
        };
        replica.command(1, Command::Assign(Box::new(assignment)));
        replica.session.on_link_up(NOW, OTHER);
        assert!(matches!(replica.work()[..], [StageEffect::Dial { .. }, StageEffect::Tell(_)]));
        let actions = [Action::Reduce { stage: STAGE }, Action::OptimStep { stage: STAGE }];
        let round = Round {
            batch: BATCH,
            step: 1,
            mode: Mode::Train,
            kv_cache: None,
            actions: actions[..if update { 2 } else { 1 }].to_vec(),
            order: Order::Listed,
            microbatch_assignment: MicrobatchAssignment::by_speed(
                &plan.stage_placement,
                4,
                |_, worker| 1 + 2 * u64::from(worker.0),
            ),
            microbatches: 4,
            samples: None,
            reduction: Reduction::Compressed(FORM),
            loss: None,
            outputs: RoundOutputs::None,
            grads_from_boss: false,
            watch: Watch::default(),
            update: update.then_some(RoundUpdate {
                lr: 0.1,
                scale: 1.0,
                max_norm: None,
                skip_infinite: false,
            }),
        };
        replica.command(2, Command::Run(Box::new(round)));
        replica
    }

    fn slot(&mut self) -> Vec<Slot> {
        self.slots += 1;
        vec![Slot(self.slots)]
    }

    fn hear(&mut self, from: Peer, head: TensorHead) {
        let slots = self.slot();
        self.session.on_frame(NOW, from, Frame { route: None, head, slots });
    }

    fn command(&mut self, id: u64, body: Command) {
        self.session.on_message(NOW, ToWorker::Command { id, body });
    }

    /// Hands out the only bucket, with the sums of three microbatches.
    fn hand_out(&mut self) -> Vec<Node> {
        let nodes = nodes(4, 0..3);
        assert_eq!(nodes.len(), 2);
        let shards =
            (0..2).map(|_| nodes.iter().map(|node| (*node, self.slot())).collect()).collect();
        self.session.on_early_output(NOW, EarlyOutput::Sums { stage: STAGE, bucket: 0, shards });
        nodes
    }

    /// Its effects. The compute thread finishes tasks at once, and messages to itself arrive.
    fn work(&mut self) -> Vec<StageEffect> {
        let mut wanted = Vec::new();
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                StageEffect::Compute { ticket, .. } => {
                    self.session.on_done(NOW, ticket, Ok(Outcome::Done), (NOW, NOW))
                }
                other => wanted.push(other),
            }
        }
        wanted
    }

    fn summed(&mut self, ticket: Ticket) {
        let sum = self.slot();
        self.session.on_summed(NOW, ticket, Ok(sum));
    }
}

/// The requested sum, and its number of nodes.
fn asked(effects: &[StageEffect]) -> (Ticket, u16, usize) {
    let [StageEffect::Sum { ticket, summing, sums }] = effects else { panic!("{effects:?}") };
    let Summing::Compressed(FORM, Part { stage: STAGE, bucket: 0, replica }) = *summing else {
        panic!("{summing:?}")
    };
    (*ticket, replica, sums.len())
}

/// The sent heads, each with its receiver.
fn sent(effects: &[StageEffect]) -> Vec<(Peer, TensorHead)> {
    let [StageEffect::Send { to, .. }] = effects else { panic!("{effects:?}") };
    to.iter().map(|to| (to.peer, to.head.clone())).collect()
}

/// A replica that has received the sums of all replicas.
fn exchanged(update: bool) -> Replica {
    let mut replica = Replica::at_work(update);
    assert!(replica.work().is_empty());
    let own = replica.hand_out();
    let (ticket, of, terms) = asked(&replica.work());
    assert_eq!((of, terms), (1, 2), "all that is the other's, added up before it is sent");
    replica.summed(ticket);
    let node = own[0];
    let sum = TensorHead::Sum { batch: BATCH, stage: STAGE, bucket: 0, node };
    assert_eq!(sent(&replica.work()), [(Peer::Worker(OTHER), sum)]);

    let node = nodes(4, [3])[0];
    replica
        .hear(Peer::Worker(OTHER), TensorHead::Sum { batch: BATCH, stage: STAGE, bucket: 0, node });
    let (ticket, of, terms) = asked(&replica.work());
    assert_eq!((of, terms), (0, 3), "its own two as they are, and the other's one");
    replica.summed(ticket);
    let reduced = TensorHead::Reduced { batch: BATCH, stage: STAGE, bucket: 0 };
    let to_both = [0, 1].map(|worker| (Peer::Worker(WorkerId(worker)), reduced.clone()));
    assert_eq!(sent(&replica.work()), to_both, "it uses what the other gets");
    for (from, reduced) in to_both {
        replica.hear(from, reduced);
    }
    replica
}

/// Else the replicas would wait for them.
#[test]
fn gradients_in_too_few_or_too_many_parts_fail_the_round() {
    for parts in [0, 1, 3] {
        let mut replica = Replica::at_work(true);
        replica.work();
        let node = nodes(4, 0..3)[0];
        let shards: Vec<_> = (0..parts).map(|_| vec![(node, replica.slot())]).collect();
        let handed = EarlyOutput::Sums { stage: STAGE, bucket: 0, shards };
        replica.session.on_early_output(NOW, handed);
        let effects = replica.work();
        let failure = effects.iter().find_map(|effect| match effect {
            StageEffect::Tell(ToBoss::Failed { id: 2, failure }) => Some(failure),
            _ => None,
        });
        let failure = failure.unwrap_or_else(|| panic!("{effects:?}"));
        assert_eq!(failure.stage, Some(STAGE));
        let parts = format!("bucket 0 in {parts} parts");
        assert!(failure.message.contains(&parts), "{}", failure.message);
        // What the task hands out after that is let go.
        replica.hand_out();
        let effects = replica.work();
        assert!(matches!(effects[..], [StageEffect::Drop(_)]), "{effects:?}");
    }
}

#[test]
fn what_was_lost_is_kept_with_the_step() {
    let mut replica = exchanged(true);
    let effects = replica.work();
    assert_eq!(effects[0], StageEffect::Residuals(Residuals::Keep));
    assert!(matches!(effects[1..], [StageEffect::Tell(ToBoss::Done { id: 2, .. })]));
    replica.command(3, Command::SetOptimizer(pipeline::OptimizerSpec::adam(0.1)));
    assert_eq!(replica.work()[0], StageEffect::Residuals(Residuals::Forget));
}

#[test]
fn a_round_without_a_step_leaves_that_open() {
    let effects = exchanged(false).work();
    assert!(matches!(effects[..], [StageEffect::Tell(ToBoss::Done { id: 2, .. })]));
}

#[test]
fn what_was_lost_in_a_void_step_is_forgotten() {
    let mut replica = Replica::at_work(true);
    replica.work();
    replica.hand_out();
    let (ticket, ..) = asked(&replica.work());
    replica.session.on_message(NOW, ToWorker::Abort { id: 2, batch: Some(BATCH), gradients: true });
    let effects = replica.work();
    assert!(effects.contains(&StageEffect::Residuals(Residuals::Restore)), "{effects:?}");
    replica.summed(ticket);
    assert!(
        matches!(replica.work()[..], [StageEffect::Drop(_)]),
        "a sum that nobody wants any more"
    );
}
