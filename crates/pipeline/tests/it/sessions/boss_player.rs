//! Plays requests of the user and answers of workers against a boss's session.

use layerspec::LayerGraph;
use pipeline::boss::{
    Answer, BossSession, Instruction, IntoRequest, Request, RoundResults, RunRequest, Setup,
};
use pipeline::effect::{BossEffect, Frame, Micros};
use pipeline::ids::{MicrobatchKey, Slot, StageId, WorkerId};
use pipeline::message::{Failure, Mode, Reduction, TensorHead, ToBoss, ToWorker};
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::{Action, Placement};
use pipeline::{Cuts, Plan};

pub(super) fn graph() -> LayerGraph {
    let text =
        "inputs: {x: [batch, 4]}\nlayers:\n  - Linear: {in_features: 4, out_features: 4}\n  - \
         Linear: {in_features: 4, out_features: 4}\n";
    LayerGraph::from_yaml(text, "model.yaml").expect("a good model")
}

pub(super) fn plan(workers: usize) -> Plan {
    Plan::new(&graph(), &Cuts::Auto, workers, Placement::Plain).expect("a good cut")
}

pub(super) struct Boss {
    pub(super) session: BossSession,
    pub(super) effects: Vec<BossEffect>,
    pub(super) requests: u64,
    pub(super) command: u64,
    pub(super) now: u64,
}

/// A message or a tensor head from a worker to the boss.
pub(super) enum Said {
    Message(ToBoss),
    Tensors(TensorHead),
}

impl From<ToBoss> for Said {
    fn from(message: ToBoss) -> Self {
        Said::Message(message)
    }
}

impl From<TensorHead> for Said {
    fn from(head: TensorHead) -> Self {
        Said::Tensors(head)
    }
}

impl Boss {
    /// Two workers, at most two batches waiting, the model distributed.
    pub(super) fn ready() -> Self {
        let setup = Setup { max_pending_batches: 2, ..Setup::new(plan(2)) };
        let session = BossSession::new(setup);
        let mut boss = Boss { session, effects: Vec::new(), requests: 0, command: 0, now: 0 };
        boss.ask(Instruction::Distribute);
        boss.both_done();
        boss.reply().expect("it is carried out");
        boss
    }

    pub(super) fn ask(&mut self, request: impl IntoRequest) {
        let request = request.into_request();
        self.requests += 1;
        self.session.on_request(Micros(self.now), self.requests, request);
        self.drain();
    }

    pub(super) fn hear(&mut self, worker: u16, said: impl Into<Said>, slots: &[u64]) {
        let (now, from) = (Micros(self.now), WorkerId(worker));
        match said.into() {
            Said::Message(message) => self.session.on_message(now, from, message),
            Said::Tensors(head) => {
                let slots = slots.iter().map(|s| Slot(*s)).collect();
                self.session.on_frame(now, from, Frame { route: None, head, slots });
            }
        }
        self.drain();
    }

    pub(super) fn done(&mut self, worker: u16, sent: u32) {
        let (losses, received, answered) = (Vec::new(), Micros(0), Micros(0));
        let head =
            ToBoss::Done { id: self.command, losses, sent, received, answered, spans: Vec::new() };
        self.hear(worker, head, &[]);
    }

    pub(super) fn both_done(&mut self) {
        self.done(0, 0);
        self.done(1, 0);
    }

    pub(super) fn drain(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            if let BossEffect::Tell(to) = &effect {
                if let Some(ToWorker::Command { id, .. }) = to.first().map(|to| &to.body) {
                    self.command = *id;
                }
            }
            self.effects.push(effect);
        }
    }

    /// The reply to the last request, if there is one.
    pub(super) fn answered(&mut self) -> Option<Result<Answer, Failure>> {
        let is_reply = |e: &BossEffect| {
            matches!(
                e,
                BossEffect::Reply { request, .. } if *request == self.requests
            )
        };
        let at = self.effects.iter().position(is_reply)?;
        match self.effects.remove(at) {
            BossEffect::Reply { result, .. } => Some(result),
            _ => None,
        }
    }

    pub(super) fn reply(&mut self) -> Result<Answer, Failure> {
        self.answered().expect("a reply")
    }

    pub(super) fn results(&mut self) -> RoundResults {
        let answer = self.reply().expect("it is carried out");
        *Box::<RunRequest>::read(answer).expect("the results of a round")
    }

    pub(super) fn refusal(&mut self, request: impl IntoRequest) -> String {
        self.ask(request);
        self.reply().expect_err("it cannot be").to_string()
    }

    /// The reason why it disconnected this worker. The driver then reports the worker as lost.
    pub(super) fn hangup(&mut self, worker: u16) -> String {
        let mut reasons = self.effects.drain(..).filter_map(|e| match e {
            BossEffect::Hangup { worker: of, reason } if of == WorkerId(worker) => Some(reason),
            _ => None,
        });
        let reason = reasons.next().expect("a hangup");
        drop(reasons);
        self.session.on_lost(Micros(self.now), WorkerId(worker), &reason);
        self.drain();
        self.reply().expect_err("the worker is lost");
        reason
    }
}

pub(super) fn run(actions: Vec<Vec<Action>>) -> RunRequest {
    RunRequest { step: 1, mode: Mode::Train, ..RunRequest::of(1, actions, Reduction::default()) }
}

pub(super) fn each_stage(action: impl Fn(StageId) -> Action) -> Vec<Vec<Action>> {
    vec![vec![action(StageId(0))], vec![action(StageId(1))]]
}

pub(super) fn forward(batch: u64) -> RunRequest {
    let actions = each_stage(|stage| Action::Forward { stage, microbatch: 0 });
    RunRequest {
        batch,
        outputs: RoundOutputs::All,
        inputs: vec![(0, graph().inputs()[0], Slot(1))],
        ..run(actions)
    }
}

pub(super) fn backward(batch: u64) -> RunRequest {
    let actions = each_stage(|stage| Action::Backward { stage, microbatch: 0 });
    RunRequest {
        batch,
        grads: Some(vec![(0, graph().outputs()[0], vec![Slot(2)])]),
        ..run(actions)
    }
}

pub(super) fn output() -> TensorHead {
    TensorHead::Output { key: MicrobatchKey { batch: 1, index: 0 }, value: graph().outputs()[0] }
}

pub(super) fn request(run: RunRequest) -> Request {
    Request::Run(Box::new(run))
}
