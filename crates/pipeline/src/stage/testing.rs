//! Helpers of the machines' tests.

use super::links::Links;
use super::membership::Membership;
use super::outbox::Outbox;
use crate::effect::{Destination, Micros, StageEffect};
use crate::ids::{Slot, WorkerId};
use crate::message::{Assignment, Mode, PeerAddress, Reduction, Round};
use crate::replicas::{BucketBytes, MicrobatchAssignment, Sharding, WorkerGroups};
use crate::round_outputs::RoundOutputs;
use crate::schedule::{Action, Order};
use crate::watch::Watch;
use crate::{Cuts, Determinism, Initialization, Placement, Plan};
use layerspec::LayerGraph;

/// A worker's place in a model of three linear layers. `replicas` is the number of replicas of each
/// stage. With two replicas of the first of two stages, worker 2 is the second replica.
pub(super) fn membership(replicas: &[u16], worker: u16, sharding: Option<Sharding>) -> Membership {
    let linear = "  - Linear: {in_features: 64, out_features: 64}\n";
    let text = format!("inputs: {{x: [batch, 64]}}\nlayers:\n{linear}{linear}{linear}");
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    let plan = Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(replicas), Placement::Plain)
        .expect("a good cut");
    let worker = WorkerId(worker);
    let assignment = Assignment {
        worker,
        stages: plan.stages_of(worker),
        stage_placement: plan.stage_placement,
        buckets: BucketBytes::default(),
        sharding,
        peers: Vec::new(),
        seed: 1,
        determinism: Determinism::Strict,
        initialization: Initialization::AtOnce,
    };
    Membership::assigned(&assignment).expect("a good assignment")
}

/// The links of a worker. The boss relays for `relayed`.
pub(super) fn links(worker: u16, relayed: &[u16]) -> Links {
    let peers: Vec<PeerAddress> = relayed
        .iter()
        .map(|peer| PeerAddress {
            worker: WorkerId(*peer),
            address: None,
            dial: false,
            relayed: true,
        })
        .collect();
    let mut links = Links::default();
    links.open(Micros(0), WorkerId(worker), &peers);
    links
}

/// A round of one batch of four microbatches, without an update.
pub(super) fn round(actions: Vec<Action>) -> Round {
    Round {
        batch: 7,
        step: 0,
        mode: Mode::Train,
        kv_cache: None,
        actions,
        order: Order::Listed,
        microbatch_assignment: MicrobatchAssignment::default(),
        microbatches: 4,
        samples: None,
        reduction: Reduction::default(),
        loss: None,
        outputs: RoundOutputs::None,
        grads_from_boss: false,
        update: None,
        watch: Watch::default(),
    }
}

/// The effects so far, one a line.
pub(super) fn text(outbox: &mut Outbox) -> String {
    let mut lines = String::new();
    while let Some(effect) = outbox.pop() {
        let line = match effect {
            StageEffect::Send { to, slots } => {
                format!("send {} as {}", numbers(&slots), receivers(&to))
            }
            StageEffect::Hangup { peer, reason } => format!("hang up on {peer}: {reason}"),
            StageEffect::Drop(slots) => format!("drop {}", numbers(&slots)),
            StageEffect::StoreSnapshot { part, tensors, .. } => {
                format!("store {} tensors of part {part}", tensors.len())
            }
            StageEffect::RetainSnapshots(snapshots) => {
                format!("retain {} snapshots", snapshots.len())
            }
            StageEffect::Sum { summing, sums, .. } => {
                let slots: Vec<Slot> = sums.into_iter().flat_map(|(_, slots)| slots).collect();
                format!("sum {} by {summing:?}", numbers(&slots))
            }
            StageEffect::Tell(message) => format!("tell the boss {}", kind(&message)),
            StageEffect::Data { .. } => "read".to_string(),
            other => format!("{other:?}"),
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

fn numbers(slots: &[Slot]) -> String {
    format!("{:?}", slots.iter().map(|slot| slot.0).collect::<Vec<_>>())
}

fn receivers(to: &[Destination]) -> String {
    let one = |to: &Destination| {
        let relay = to.route.map_or(String::new(), |route| format!(" for {}", route.to));
        format!("{} to {}{relay}", kind(&to.head), to.peer)
    };
    to.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The name of a variant.
fn kind(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_string()
}
