//! The answers to requests. Each request has a type of its own for its answer.

use super::request::{
    Digest, Instruction, ListSnapshots, MakeIds, Measure, MembershipChange, ReportLinks, Request,
    RunRequest, SendState,
};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::LinkReport;
use crate::peer_snapshot::PeerSnapshot;
use crate::replicas::UniqueId;
use crate::task::LayerTimes;
use crate::watch::LayerHealth;
use crate::worker_span::WorkerSpan;
use layerspec::ValueId;

/// The answer to the [`Request`] with the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Every worker has done it.
    Instruct(()),
    /// The results of a round.
    Run(Box<RoundResults>),
    /// The number of commands that each follower has still to run.
    ChangeMembership(Vec<(WorkerId, usize)>),
    /// The times of each layer on each worker, ascending.
    Measure(Vec<(WorkerId, Vec<LayerTimes>)>),
    /// The last figures of each worker's links, to another worker or to the boss.
    ReportLinks(Vec<(WorkerId, Option<WorkerId>, LinkReport)>),
    /// All parameters and buffers have come.
    SendState(()),
    /// The snapshots of the run that each worker stores.
    ListSnapshots(Vec<(WorkerId, PeerSnapshot)>),
    /// An id for a communicator of each stage whose replicas sum gradients, ascending.
    MakeIds(Vec<(StageId, UniqueId)>),
    /// A SHA-256 of each trained parameter of each stage of each worker, by its name, ascending.
    Digest(Vec<(WorkerId, StageId, String, [u8; 32])>),
}

/// The results of a round.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RoundResults {
    /// The weighted loss of each microbatch, ascending.
    pub losses: Vec<(u32, f32)>,
    /// The model's outputs, by microbatch and variable.
    pub outputs: Vec<(u32, ValueId, Slot)>,
    /// The norm of all gradients before clipping, if a limit was set.
    pub grad_norm: Option<f64>,
    /// The health of layers in the update, if requested, ascending.
    pub health: Vec<LayerHealth>,
    /// When each action ran, in the order in which workers answered.
    pub spans: Vec<WorkerSpan>,
    /// The number of commands that each follower has still to run.
    pub behind: Vec<(WorkerId, usize)>,
}

impl Answer {
    /// The tensors in it, to free an answer that nobody receives.
    pub fn into_slots(self) -> Vec<Slot> {
        match self {
            Answer::Run(results) => results.outputs.into_iter().map(|(.., slot)| slot).collect(),
            _ => Vec::new(),
        }
    }
}

/// A request, and the type of its answer.
pub trait IntoRequest {
    /// The type of the answer.
    type Answer;

    /// The request.
    fn into_request(self) -> Request;

    /// The answer of this type. `None` if it answers another request.
    fn read(answer: Answer) -> Option<Self::Answer>;
}

impl IntoRequest for Request {
    type Answer = Answer;

    fn into_request(self) -> Request {
        self
    }

    fn read(answer: Answer) -> Option<Answer> {
        Some(answer)
    }
}

macro_rules! requests {
    ($($request:ty => $variant:ident($answer:ty),)*) => {$(
        impl IntoRequest for $request {
            type Answer = $answer;

            fn into_request(self) -> Request {
                Request::$variant(self)
            }

            fn read(answer: Answer) -> Option<Self::Answer> {
                match answer {
                    Answer::$variant(answer) => Some(answer),
                    _ => None,
                }
            }
        }
    )*};
}

requests! {
    Instruction => Instruct(()),
    Box<RunRequest> => Run(Box<RoundResults>),
    Box<MembershipChange> => ChangeMembership(Vec<(WorkerId, usize)>),
    Measure => Measure(Vec<(WorkerId, Vec<LayerTimes>)>),
    ReportLinks => ReportLinks(Vec<(WorkerId, Option<WorkerId>, LinkReport)>),
    SendState => SendState(()),
    ListSnapshots => ListSnapshots(Vec<(WorkerId, PeerSnapshot)>),
    MakeIds => MakeIds(Vec<(StageId, UniqueId)>),
    Digest => Digest(Vec<(WorkerId, StageId, String, [u8; 32])>),
}
