//! The choice of a worker's next action: one rule for the session, which runs it, and the timeline,
//! which predicts it.

use super::{Action, Order};
use crate::ids::StageId;
use crate::replicas::MicrobatchOrder;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The actions of a worker that are still to be started.
///
/// With [`Order::Listed`] the next action is the first of the list. With [`Order::Ready`] it is the
/// first of these that is ready: 1. a gradient of inputs (or a whole backward pass) that another
/// stage waits for and whose 2. a forward pass, likewise, of a stage that may have one more in
/// flight and hold one more; 3. a gradient of parameters whose other half was; 4. a gradient of
/// inputs that no stage waits for, as that of the first stage; 5. once all these are done, the rest
/// of the list in its order.
///
/// "Lowest" means the first in [`MicrobatchOrder`]: with replicas, microbatches do not start in the
/// order of their numbers. A stage takes forward passes in that order, so that no two workers fill
/// up with different microbatches and wait for each other. It also takes gradients of parameters
/// and whole backward passes in that order, because gradients may be summed in it.
#[derive(Clone, Debug)]
pub struct Picker {
    listed: bool,
    microbatch_order: MicrobatchOrder,
    stages: BTreeMap<StageId, Stage>,
    /// In listed order, all actions. Otherwise the actions after all passes.
    rest: VecDeque<Action>,
    /// The most microbatches that all stages of the worker hold together.
    most: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct Stage {
    /// Whether another stage waits for the gradients of its inputs.
    urgent: bool,
    forward: VecDeque<u32>,
    /// Whole backward passes.
    backward: VecDeque<u32>,
    backward_input: BTreeSet<u32>,
    backward_weight: VecDeque<u32>,
    /// Forward passes of the list that are not started. A forward pass that is not in the list ran
    /// in an earlier round.
    unmade: BTreeSet<u32>,
    in_flight: u32,
    held: u32,
    most_in_flight: u32,
    most_held: u32,
}

impl Picker {
    /// For the actions of one worker. `awaited` tells whether another stage waits for the gradients
    /// of a stage's inputs.
    pub fn new(
        actions: &[Action],
        order: &Order,
        microbatch_order: &MicrobatchOrder,
        awaited: impl Fn(StageId) -> bool,
    ) -> Self {
        let Order::Ready { in_flight, held } = order else {
            let rest = actions.iter().copied().collect();
            return Picker {
                listed: true,
                microbatch_order: MicrobatchOrder::default(),
                stages: BTreeMap::new(),
                rest,
                most: None,
            };
        };
        let mut stages: BTreeMap<StageId, Stage> = BTreeMap::new();
        let mut rest = VecDeque::new();
        for action in actions.iter().map(|action| action.on(|m| microbatch_order.of(m))) {
            let limit =
                |limits: &[u32]| limits.get(action.stage().0 as usize).copied().unwrap_or(1).max(1);
            let stage = stages.entry(action.stage()).or_insert_with(|| Stage {
                urgent: awaited(action.stage()),
                most_in_flight: limit(in_flight),
                most_held: limit(held),
                ..Stage::default()
            });
            match action {
                Action::Forward { microbatch, .. } => {
                    stage.forward.push_back(microbatch);
                    stage.unmade.insert(microbatch);
                }
                Action::Backward { microbatch, .. } => stage.backward.push_back(microbatch),
                Action::BackwardInput { microbatch, .. } => {
                    stage.backward_input.insert(microbatch);
                }
                Action::BackwardWeight { microbatch, .. } => {
                    stage.backward_weight.push_back(microbatch)
                }
                _ => rest.push_back(action),
            }
        }
        for stage in stages.values_mut() {
            stage.forward.make_contiguous().sort_unstable();
            stage.backward.make_contiguous().sort_unstable();
            stage.backward_weight.make_contiguous().sort_unstable();
        }
        Picker {
            listed: false,
            microbatch_order: microbatch_order.clone(),
            stages,
            rest,
            most: None,
        }
    }

    /// The same with a limit on the microbatches that all stages of the worker hold together. Each
    /// stage leaves room for one microbatch on every later stage. Otherwise the pipeline would not
    /// drain.
    pub(super) fn holding_at_most(self, most: u32) -> Self {
        Picker { most: Some(most.max(self.stages.len() as u32)), ..self }
    }

    /// Whether every action was started.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty() && self.stages.values().all(Stage::is_done)
    }

    /// The next action, if one may be started now. `ready` tells whether an action's tensors have
    /// arrived, and all actions before it on this worker were started.
    pub fn pick(&self, ready: impl Fn(&Action) -> bool) -> Option<Action> {
        if self.listed {
            return self.rest.front().copied().filter(|action| ready(action));
        }
        let ready = |action: &Action| ready(&self.outside(*action));
        let rest = || {
            let action =
                self.rest.front().copied().filter(|_| self.stages.values().all(Stage::is_done));
            action.filter(|action| ready(action))
        };
        let urgent = self.backward(&ready, true).or_else(|| self.forward(&ready));
        let next = urgent
            .or_else(|| self.weight(&ready))
            .or_else(|| self.backward(&ready, false))
            .or_else(rest);
        next.map(|action| self.outside(action))
    }

    /// Converts a turn to a microbatch: within the picker, microbatches are numbered by their
    /// turns.
    fn outside(&self, action: Action) -> Action {
        action.on(|turn| self.microbatch_order.at(turn))
    }

    /// The next action, if no action that may become ready would precede it. It may be given to the
    /// compute thread while another action is at work there.
    pub fn pick_early(&self, ready: impl Fn(&Action) -> bool) -> Option<Action> {
        let urgent = || self.stages.values().any(|s| s.urgent && s.in_flight > 0);
        let forward = || self.stages.values().any(|s| !s.forward.is_empty());
        self.pick(ready).filter(|action| match action {
            _ if self.listed => true,
            Action::Forward { .. } => !urgent(),
            Action::Backward { stage, .. } | Action::BackwardInput { stage, .. } => {
                self.stages.get(stage).is_some_and(|s| s.urgent) || (!urgent() && !forward())
            }
            Action::BackwardWeight { .. } => !urgent() && !forward(),
            _ => true,
        })
    }

    /// The number of actions that compute norms.
    pub(super) fn norms(&self) -> u32 {
        self.rest.iter().filter(|a| matches!(a, Action::GradNorm { .. })).count() as u32
    }

    /// The first action that was not started, if a worker is stuck.
    pub fn first(&self) -> Option<Action> {
        let of_stage = |(stage, s): (&StageId, &Stage)| s.first(*stage);
        let first = self.stages.iter().find_map(of_stage).or_else(|| self.rest.front().copied());
        first.map(|action| self.outside(action))
    }

    /// An action that was picked is started.
    pub fn start(&mut self, action: &Action) {
        if self.listed {
            self.rest.pop_front();
            return;
        }
        let action = action.on(|m| self.microbatch_order.of(m));
        let Some(stage) = self.stages.get_mut(&action.stage()) else { return };
        match action {
            Action::Forward { microbatch, .. } => {
                stage.forward.pop_front();
                stage.unmade.remove(&microbatch);
                stage.in_flight += 1;
                stage.held += 1;
            }
            Action::Backward { .. } => {
                stage.backward.pop_front();
                stage.in_flight = stage.in_flight.saturating_sub(1);
                stage.held = stage.held.saturating_sub(1);
            }
            Action::BackwardInput { microbatch, .. } => {
                stage.backward_input.remove(&microbatch);
                stage.in_flight = stage.in_flight.saturating_sub(1);
            }
            Action::BackwardWeight { .. } => {
                stage.backward_weight.pop_front();
                stage.held = stage.held.saturating_sub(1);
            }
            _ => drop(self.rest.pop_front()),
        }
    }

    fn backward(&self, ready: &impl Fn(&Action) -> bool, urgent: bool) -> Option<Action> {
        let of_stage = |(stage, s): (&StageId, &Stage)| {
            let (stage, made) = (*stage, |m: &u32| !s.unmade.contains(m));
            let whole = s.backward.front().copied().filter(made);
            let whole = whole.map(|microbatch| Action::Backward { stage, microbatch });
            let halves = s.backward_input.iter().copied().filter(made);
            let mut halves = halves.map(|microbatch| Action::BackwardInput { stage, microbatch });
            whole.filter(|a| ready(a)).or_else(|| halves.find(|a| ready(a)))
        };
        first(self.stages.iter().filter(|(_, s)| s.urgent == urgent).filter_map(of_stage))
    }

    fn forward(&self, ready: &impl Fn(&Action) -> bool) -> Option<Action> {
        let mut held: u32 = self.stages.values().map(|s| s.held).sum();
        let mut room = self.stages.len() as u32;
        let mut candidates = Vec::new();
        // From the last stage to the first. `held` is the number of microbatches that this stage
        // and those before it hold.
        for (stage, s) in self.stages.iter().rev() {
            let later = self.stages.len() as u32 - room;
            room -= 1;
            let allowed =
                self.most.is_none_or(|most| held + later < most) && s.in_flight < s.most_in_flight;
            let allowed = allowed && s.held < s.most_held;
            let action =
                s.forward.front().map(|m| Action::Forward { stage: *stage, microbatch: *m });
            candidates.extend(action.filter(|a| allowed && ready(a)));
            held -= s.held;
        }
        if let Some(most) = self.most {
            let all: u32 = self.stages.values().map(|s| s.held).sum();
            candidates.retain(|_| all < most);
        }
        first(candidates)
    }

    fn weight(&self, ready: &impl Fn(&Action) -> bool) -> Option<Action> {
        let of_stage = |(stage, s): (&StageId, &Stage)| {
            let waiting = s.backward_weight.front().filter(|m| !s.backward_input.contains(m));
            waiting
                .map(|m| Action::BackwardWeight { stage: *stage, microbatch: *m })
                .filter(|a| ready(a))
        };
        first(self.stages.iter().filter_map(of_stage))
    }
}

impl Stage {
    fn is_done(&self) -> bool {
        self.forward.is_empty()
            && self.backward.is_empty()
            && self.backward_input.is_empty()
            && self.backward_weight.is_empty()
    }

    fn first(&self, stage: StageId) -> Option<Action> {
        let forward = self.forward.front().map(|m| Action::Forward { stage, microbatch: *m });
        let backward = self.backward.front().map(|m| Action::Backward { stage, microbatch: *m });
        let input =
            self.backward_input.first().map(|m| Action::BackwardInput { stage, microbatch: *m });
        let weight =
            self.backward_weight.front().map(|m| Action::BackwardWeight { stage, microbatch: *m });
        forward.or(backward).or(input).or(weight)
    }
}

/// The lowest microbatch first, and of one microbatch the last stage.
fn first(actions: impl IntoIterator<Item = Action>) -> Option<Action> {
    actions.into_iter().min_by_key(|action| (action.microbatch(), Reverse(action.stage())))
}
