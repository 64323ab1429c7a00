//! State that travels to the boss through a window, at both ends.

use layerspec::{DType, LayerGraph};
use pipeline::boss::{Answer, BossSession, Instruction, IntoRequest, SendState, Setup};
use pipeline::effect::{BossEffect, Destination, Frame, Message, Micros, StageEffect};
use pipeline::ids::{Slot, Ticket, WorkerId};
use pipeline::message::{Command, Failure, TensorHead, ToBoss, ToWorker};
use pipeline::stage::StageSession;
use pipeline::task::Outcome;
use pipeline::{Cuts, Placement, Plan, StateForm, TensorMeta};

const NOW: Micros = Micros(0);

fn plan() -> Plan {
    let linear = "  - Linear: {in_features: 4, out_features: 4}\n";
    let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{linear}{linear}");
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    Plan::new(&graph, &Cuts::Auto, 2, Placement::Plain).expect("a good cut")
}

fn heads(name: &str) -> Vec<(String, TensorMeta)> {
    vec![(name.to_string(), TensorMeta { dtype: DType::Float32, shape: vec![100] })]
}

/// A boss with two workers, of which it has asked for their state.
struct Boss {
    session: BossSession,
    command: u64,
}

/// The request for state.
const FETCH: u64 = 2;

impl Boss {
    fn fetching() -> Self {
        let mut boss = Boss { session: BossSession::new(Setup::new(plan())), command: 0 };
        boss.ask(1, Instruction::Distribute);
        (0..2).for_each(|worker| drop(boss.done(worker, 0)));
        let state = SendState { stage: None, optimizer: false, form: StateForm::Slices };
        let told = boss.ask(FETCH, state);
        assert!(told.iter().all(|line| line == "tell SendState 8"), "{told:?}");
        boss
    }

    fn ask(&mut self, number: u64, request: impl IntoRequest) -> Vec<String> {
        self.session.on_request(NOW, number, request.into_request());
        self.drain()
    }

    fn hear(&mut self, worker: u16, message: ToBoss) -> Vec<String> {
        self.session.on_message(NOW, WorkerId(worker), message);
        self.drain()
    }

    fn done(&mut self, worker: u16, sent: u32) -> Vec<String> {
        let (id, losses, spans) = (self.command, Vec::new(), Vec::new());
        self.hear(worker, ToBoss::Done { id, losses, sent, received: NOW, answered: NOW, spans })
    }

    fn announce(&mut self, worker: u16, name: &str) -> Vec<String> {
        let id = self.command;
        self.hear(worker, ToBoss::StateHeads { id, heads: heads(name) })
    }

    fn frame(&mut self, id: u64, worker: u16, name: &str, slot: u64) -> Vec<String> {
        let head = TensorHead::State { id, name: name.into() };
        let frame = Frame { route: None, head, slots: vec![Slot(slot)] };
        self.session.on_frame(NOW, WorkerId(worker), frame);
        self.drain()
    }

    fn taken(&mut self, worker: u16) -> Vec<String> {
        self.session.on_state_taken(FETCH, WorkerId(worker));
        self.drain()
    }

    /// The effects, one a line. Of messages to several workers there is one line for each.
    fn drain(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                BossEffect::Tell(to) => {
                    for Message { to, body } in to {
                        lines.push(match body {
                            ToWorker::Command { id, body } => {
                                self.command = id;
                                match body {
                                    Command::SendState { window, .. } => {
                                        format!("tell SendState {window}")
                                    }
                                    _ => "tell a command".to_string(),
                                }
                            }
                            ToWorker::MoreState { frames, .. } => format!("{to}: {frames} more"),
                            ToWorker::Abort { id, .. } => format!("{to}: abort {id}"),
                            other => format!("{other:?}"),
                        });
                    }
                }
                BossEffect::StateHeads { request, heads } => {
                    let names: Vec<&str> = heads.iter().map(|(_, name, _)| &name[..]).collect();
                    lines.push(format!("{request}: heads {}", names.join(" ")));
                }
                BossEffect::State { request, worker, name, slot } => {
                    lines.push(format!("{request}: {name} of {worker} in {slot}"));
                }
                BossEffect::Reply { request, result: Ok(Answer::SendState(())) } => {
                    lines.push(format!("{request}: all"));
                }
                BossEffect::Reply { request, result } => {
                    lines.push(format!(
                        "{request}: {}",
                        if result.is_ok() { "ok" } else { "failed" }
                    ));
                }
                BossEffect::Drop(slots) => lines.push(format!("drop {}", slots.len())),
                other => lines.push(format!("{other:?}")),
            }
        }
        lines
    }
}

#[test]
fn frames_pass_through_once_all_workers_have_answered() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    assert!(boss.frame(id, 1, "slice/b[7]", 1).is_empty(), "before its head");
    assert!(boss.announce(1, "b").is_empty());
    assert!(boss.done(1, 10).is_empty());
    assert!(boss.announce(0, "a").is_empty());
    let lines = ["2: heads a b", "2: slice/b[7] of worker 1 in slot 1"];
    assert_eq!(boss.done(0, 1), lines);
    assert_eq!(boss.frame(id, 0, "a", 2), ["2: a of worker 0 in slot 2"]);
    assert!(boss.taken(0).is_empty(), "worker 0 has sent all");
    assert_eq!(boss.taken(1), ["worker 1: 1 more"]);
    assert!(boss.taken(1).is_empty(), "the caller has no other frame");
    // In the background, too.
    assert_eq!(boss.ask(3, Instruction::Discard { batch: 9 }).len(), 2);
    for slot in 3..11 {
        let lines = boss.frame(id, 1, &format!("slice/b[{}]", slot + 5), slot);
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
    assert_eq!(boss.taken(1), ["worker 1: 1 more"]);
    let lines = ["2: slice/b[20] of worker 1 in slot 11", "2: all"];
    assert_eq!(boss.frame(id, 1, "slice/b[20]", 11), lines);
    assert!(boss.taken(1).is_empty(), "it is over");
}

#[test]
fn a_lost_worker_lets_the_others_free_what_waits() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    for (worker, name) in [(0, "a"), (1, "b")] {
        boss.announce(worker, name);
        boss.done(worker, 10);
    }
    assert_eq!(boss.frame(id, 0, "slice/a[0]", 1).len(), 1);
    boss.session.on_lost(NOW, WorkerId(1), "gone");
    assert_eq!(boss.drain(), [format!("worker 0: abort {id}"), "2: failed".to_string()]);
    assert_eq!(boss.frame(id, 0, "slice/a[1]", 2), ["drop 1"]);
    assert!(boss.taken(0).is_empty());
}

#[test]
fn state_that_a_worker_cannot_read_fails_its_request_alone() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    for (worker, name, frames) in [(0, "a", 10), (1, "b", 1)] {
        boss.announce(worker, name);
        boss.done(worker, frames);
    }
    boss.frame(id, 1, "b", 1);
    let failed = || ToBoss::Failed { id, failure: Failure::new("out of memory") };
    assert!(boss.hear(1, failed()).is_empty(), "it has sent all");
    let lines = boss.hear(0, failed());
    assert_eq!(lines, [format!("worker 0: abort {id}"), "2: failed".to_string()]);
    assert!(boss.hear(0, failed()).is_empty(), "it is over");
    assert_eq!(boss.ask(3, Instruction::Discard { batch: 9 }).len(), 2);
}

#[test]
fn workers_free_what_nobody_receives() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    boss.session.cancel_fetch(FETCH);
    assert!(boss.drain().is_empty(), "the workers have not answered yet");
    for (worker, name) in [(0, "a"), (1, "b")] {
        boss.announce(worker, name);
        boss.done(worker, 10);
    }
    boss.session.cancel_fetch(FETCH);
    let aborts = [0, 1].map(|worker| format!("worker {worker}: abort {id}"));
    assert_eq!(boss.drain(), [&aborts[..], &["2: failed".to_string()]].concat());
    assert_eq!(boss.frame(id, 0, "slice/a[1]", 2), ["drop 1"]);
    boss.session.cancel_fetch(FETCH);
    assert!(boss.drain().is_empty(), "it is over");
}

#[test]
fn a_worker_that_leaves_sends_its_state_first() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    for (worker, name) in [(0, "a"), (1, "b")] {
        boss.announce(worker, name);
        boss.done(worker, 1);
    }
    assert!(boss.hear(0, ToBoss::Leaving).is_empty());
    assert_eq!(boss.frame(id, 1, "b", 1).len(), 1);
    let lines = boss.frame(id, 0, "a", 2);
    assert_eq!(lines[..2], ["2: a of worker 0 in slot 2", "2: all"]);
    assert!(lines[2].starts_with("Dismiss"), "{lines:?}");
}

#[test]
fn kept_frames_of_a_failed_request_are_dropped() {
    let mut boss = Boss::fetching();
    let id = boss.command;
    assert!(boss.frame(id, 0, "a", 1).is_empty());
    boss.session.on_lost(NOW, WorkerId(1), "gone");
    let lines = boss.drain();
    assert!(lines.contains(&"drop 1".to_string()), "{lines:?}");
}

/// The name of each message to the boss, and of each frame.
fn drain(session: &mut StageSession) -> (Vec<String>, Vec<Ticket>) {
    let (mut lines, mut tickets) = (Vec::new(), Vec::new());
    while let Some(effect) = session.poll_effect() {
        match effect {
            StageEffect::Tell(ToBoss::StateHeads { heads, .. }) => {
                lines.push(format!("{} heads", heads.len()));
            }
            StageEffect::Tell(ToBoss::Done { sent, .. }) => lines.push(format!("done, {sent}")),
            StageEffect::Tell(ToBoss::Aborted { id, .. }) => lines.push(format!("aborted {id}")),
            StageEffect::Send { to, .. } => {
                for Destination { head, .. } in to {
                    match head {
                        TensorHead::State { name, .. } => lines.push(name),
                        other => lines.push(format!("{other:?}")),
                    }
                }
            }
            StageEffect::Compute { ticket, .. } => tickets.push(ticket),
            StageEffect::Drop(slots) => lines.push(format!("drop {}", slots.len())),
            other => lines.push(format!("{other:?}")),
        }
    }
    (lines, tickets)
}

/// A worker that has sent the first two of five frames.
fn sending() -> StageSession {
    let mut session = StageSession::new();
    let (optimizer, form) = (false, StateForm::Slices);
    let body = Command::SendState { stage: None, optimizer, form, window: 2 };
    session.on_message(NOW, ToWorker::Command { id: 1, body });
    let (_, tickets) = drain(&mut session);
    let tensors = (0..5).map(|number| (format!("slice/a[{number}]"), Slot(number))).collect();
    let outcome = Outcome::State { heads: heads("a"), tensors };
    session.on_done(NOW, tickets[0], Ok(outcome), (NOW, NOW));
    assert_eq!(drain(&mut session).0, ["1 heads", "done, 5", "slice/a[0]", "slice/a[1]"]);
    session
}

#[test]
fn a_worker_sends_more_once_the_boss_has_taken_some() {
    let mut session = sending();
    session.on_message(NOW, ToWorker::Command { id: 2, body: Command::Digest });
    let (lines, tickets) = drain(&mut session);
    assert_eq!((lines.len(), tickets.len()), (0, 1), "the next command begins");
    session.on_message(NOW, ToWorker::MoreState { id: 1, frames: 1 });
    assert_eq!(drain(&mut session).0, ["slice/a[2]"]);
    session.on_message(NOW, ToWorker::MoreState { id: 1, frames: 2 });
    assert_eq!(drain(&mut session).0, ["slice/a[3]", "slice/a[4]"]);
    session.on_message(NOW, ToWorker::MoreState { id: 1, frames: 9 });
    assert!(drain(&mut session).0.is_empty(), "all are sent");
}

#[test]
fn state_that_cannot_be_read_frees_what_waits() {
    let mut session = sending();
    session.on_state_unreadable(1, Failure::new("out of memory"));
    let (lines, _) = drain(&mut session);
    assert_eq!(lines[0], "drop 3");
    assert!(lines[1].contains("Failed") && lines[1].contains("out of memory"), "{lines:?}");
    session.on_message(NOW, ToWorker::MoreState { id: 1, frames: 2 });
    assert!(drain(&mut session).0.is_empty());
}

#[test]
fn an_abort_and_the_end_free_what_waits() {
    let mut session = sending();
    session.on_message(NOW, ToWorker::Abort { id: 1, batch: None, gradients: false });
    assert_eq!(drain(&mut session).0, ["drop 3", "aborted 1"]);
    let mut session = sending();
    session.on_message(NOW, ToWorker::Stop);
    assert_eq!(drain(&mut session).0[0], "drop 3");
}
