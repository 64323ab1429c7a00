//! Guards against training that fails silently: numbers that are not finite, layers that learn
//! nothing, a loss that stays at chance level.

use crate::events::Remark;
use crate::settings::guards::{Guards, NonFinite};
use crate::BossManError;
use layerspec::{LayerGraph, LayerId};
use pipeline::watch::{FiniteCheck, LayerHealth, Watch};
use pipeline::LossSpec;
use std::collections::{BTreeSet, VecDeque};

/// The number of skipped steps in a row that ends the run.
const MAX_SKIPPED_STEPS: u32 = 10;
/// The optimizer step of the first, early check of layers.
const FIRST_LAYER_CHECK: u64 = 10;
/// The number of steps over which the mean loss is compared with chance level, and the relative
/// margin.
const LOSS_WINDOW: usize = 50;
const CHANCE_TOLERANCE: f64 = 0.01;
/// The most layers that a warning names.
const MAX_NAMED_LAYERS: usize = 5;

/// The figures of a completed step that the guards check.
pub(crate) struct StepHealth {
    /// `None` if the program computed the loss.
    pub(crate) loss: Option<f32>,
    /// `None` if no parameter changed.
    pub(crate) lr: Option<f64>,
    pub(crate) layers: Vec<LayerHealth>,
}

/// The state of the guards during a run.
#[derive(Default)]
pub(crate) struct LearningMonitor {
    guards: Guards,
    /// Warnings already shown, which are not repeated.
    warned: BTreeSet<(LayerId, LayerProblem)>,
    skipped: u32,
    losses: VecDeque<f32>,
    /// Whether a loss below its least value was told of.
    told_of_negative: bool,
    /// Whether a step without a target that counts was told of.
    told_of_nothing_learned: bool,
}

/// A fault of a layer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerProblem {
    NoGradient,
    Unchanged,
}

impl LearningMonitor {
    pub(crate) fn new(guards: Guards) -> Self {
        LearningMonitor { guards, ..LearningMonitor::default() }
    }

    /// Restarts the counts, because training continues from another state.
    pub(crate) fn reset(&mut self) {
        *self = LearningMonitor::new(self.guards);
    }

    pub(crate) fn skips(&self) -> bool {
        self.guards.nonfinite == NonFinite::Skip
    }

    /// The checks of workers in the step before this update, if any. An overflow of a scaled loss
    /// is no error.
    pub(crate) fn checks_of_step(&self, update: Option<u64>, scaled: bool) -> Watch {
        let every = self.guards.layers_every;
        let looks =
            |update: u64| update == FIRST_LAYER_CHECK.min(every) || update.is_multiple_of(every);
        let finite = if scaled || self.skips() { FiniteCheck::Off } else { FiniteCheck::Loss };
        Watch { finite, health: every > 0 && update.is_some_and(looks) }
    }

    /// The warning about the health of layers after this step, with this learning rate.
    ///
    /// # Errors
    /// Layers were updated with gradients that are not finite.
    pub(super) fn layer_warnings(
        &mut self,
        graph: &LayerGraph,
        step: u64,
        lr: f64,
        health: &[LayerHealth],
    ) -> Result<Vec<Remark>, String> {
        let of = |wanted: fn(&LayerHealth) -> bool| {
            health.iter().filter(move |seen| wanted(seen)).map(|seen| seen.layer)
        };
        let broken: Vec<LayerId> = of(|seen| !seen.finite).collect();
        if !broken.is_empty() {
            return Err(format!(
                "step {step}: gradients of {} are no finite numbers, and weights have changed by \
                 them; go on from a checkpoint before this step with a lower learning rate or \
                 `clip_grad_norm`, or set `guards: {{nonfinite: skip}}`",
                named(graph, &broken)
            ));
        }
        let mut new = |problem, layers: &mut dyn Iterator<Item = LayerId>| {
            let layers: Vec<LayerId> =
                layers.filter(|layer| self.warned.insert((*layer, problem))).collect();
            (!layers.is_empty()).then_some(layers)
        };
        let idle = new(LayerProblem::NoGradient, &mut of(|seen| !seen.has_gradient));
        // A rate that changes nothing on purpose, for example at the end of a schedule, is no
        // fault.
        let fixed = new(
            LayerProblem::Unchanged,
            &mut of(|seen| seen.has_gradient && !seen.changed).filter(|_| lr != 0.0),
        );
        let about = |text: String, layers: &[LayerId]| {
            let named = layers.iter().take(MAX_NAMED_LAYERS);
            let names = named.map(|layer| graph.layer(*layer).name.to_string());
            Remark::from(text).of_layers(names.collect())
        };
        let idle = idle.map(|layers| {
            let text = format!(
                "step {step}: all gradients of {} are 0, so nothing is learned there: what comes \
                 after is dead (as ReLUs whose inputs are all negative), or the loss does not \
                 depend on it",
                named(graph, &layers)
            );
            about(text, &layers)
        });
        let fixed = fixed.map(|layers| {
            let text = format!(
                "step {step}: the weights of {} have not changed though there are gradients: the \
                 learning rate ({lr:.1e}) is too small beside the weights",
                named(graph, &layers)
            );
            about(text, &layers)
        });
        Ok(idle.into_iter().chain(fixed).collect())
    }

    /// The warning about the loss after this step.
    pub(super) fn loss_warning(
        &mut self,
        step: u64,
        loss: f32,
        chance: impl FnOnce() -> Option<f64>,
    ) -> Option<String> {
        let after = self.guards.chance_after;
        if after == 0 || step > after {
            self.losses = VecDeque::new();
            return None;
        }
        self.losses.extend(Some(loss).filter(|loss| loss.is_finite()));
        self.losses.drain(..self.losses.len().saturating_sub(LOSS_WINDOW));
        let chance = chance().filter(|_| step == after && !self.losses.is_empty())?;
        let mean =
            self.losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / self.losses.len() as f64;
        ((mean - chance).abs() <= CHANCE_TOLERANCE * chance).then(|| {
            format!(
                "step {step}: the loss ({mean:.4}, the mean of the last {}) is that of \
                 guessing ({chance:.4}): look whether samples and targets belong together, and at \
                 the learning rate",
                self.losses.len()
            )
        })
    }

    /// The warning about a step in which no target counts. It comes once.
    pub(super) fn nothing_learned_warning(&mut self, step: u64) -> Option<String> {
        (!std::mem::replace(&mut self.told_of_nothing_learned, true)).then(|| {
            format!(
                "step {step} changes nothing, because no target counts: each is of the ignored \
                 class, or its class weighs nothing; later steps of this kind are not told"
            )
        })
    }

    /// The warning about a loss below 0, which no loss reaches with the output and targets that it
    /// is made for. It comes once.
    pub(super) fn negative_loss_warning(
        &mut self,
        step: u64,
        loss: f32,
        spec: Option<&LossSpec>,
    ) -> Option<String> {
        // Rounding may bring the least value below 0.
        let spec = spec.filter(|_| loss < -1e-5 && loss.is_finite())?;
        let remedy = match spec {
            LossSpec::NLLLoss { .. } => {
                "the model's output must be logarithms of probabilities: end the model with \
                 LogSoftmax, or use CrossEntropyLoss"
            }
            LossSpec::KLDivLoss { .. } => {
                "the model's output must be logarithms of probabilities, as LogSoftmax gives them, \
                 and the targets of a sample probabilities that sum to 1"
            }
            LossSpec::BCELoss | LossSpec::BCEWithLogitsLoss { .. } => "targets must be from 0 to 1",
            _ => "look at the weights of classes and at the targets",
        };
        (!std::mem::replace(&mut self.told_of_negative, true)).then(|| {
            format!("step {step}: the {spec} is {loss}, and its least value is 0: {remedy}")
        })
    }

    /// Records whether the norm of the gradients was finite. If not, the update was skipped.
    /// Returns the warning.
    ///
    /// # Errors
    /// A skipped update must stop training, or too many updates in a row were skipped.
    pub(crate) fn check_gradient_norm(
        &mut self,
        step: u64,
        finite: bool,
    ) -> Result<Option<String>, BossManError> {
        self.skipped = if finite { 0 } else { self.skipped + 1 };
        match (self.skipped, self.guards.nonfinite) {
            (0, _) => Ok(None),
            (_, NonFinite::Stop) => Err(BossManError::NotFinite(format!(
                "step {step}: the gradients are no finite numbers though the loss is; the step \
                 changed no weights; lower the learning rate, look at the data, or skip such \
                 steps with `guards: {{nonfinite: skip}}`"
            ))),
            (MAX_SKIPPED_STEPS.., NonFinite::Skip) => Err(BossManError::NotFinite(format!(
                "step {step}: the gradients of {MAX_SKIPPED_STEPS} steps in a row were no finite \
                 numbers, so none of these steps changed the weights; lower the learning rate, \
                 clip the gradients, or look for NaN in data and weights"
            ))),
            _ => Ok(Some(format!(
                "step {step}: the gradients are no finite numbers; the step is skipped \
                 and changes nothing"
            ))),
        }
    }
}

/// The loss at chance level: every class is equally likely.
pub(super) fn chance_loss(loss: &LossSpec, graph: &LayerGraph) -> Option<f64> {
    if let Some(of) = loss.classes() {
        let dims = graph.value(*graph.outputs().first()?).ty.dims();
        let classes = dims.get(of.class_dim.position(dims.len())?)?.as_fixed()?;
        return (classes > 1).then(|| (classes as f64).ln());
    }
    match loss {
        LossSpec::BCELoss => Some(2f64.ln()),
        LossSpec::BCEWithLogitsLoss { pos_weight } if pos_weight.is_empty() => Some(2f64.ln()),
        _ => None,
    }
}

fn named(graph: &LayerGraph, layers: &[LayerId]) -> String {
    let name = |layer: &LayerId| {
        let layer = graph.layer(*layer);
        format!("{} ({})", layer.name, layer.kind.name())
    };
    let names: Vec<String> = layers.iter().take(MAX_NAMED_LAYERS).map(name).collect();
    let word = if layers.len() == 1 { "layer" } else { "layers" };
    match layers.len().saturating_sub(MAX_NAMED_LAYERS) {
        0 => format!("{word} {}", names.join(", ")),
        more => format!("{word} {} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "model: m\ninputs: {x: [batch, 4]}\nlayers:\n- Linear: {in_features: 4, \
                         out_features: 8}\n- ReLU\n- Linear: {in_features: 8, out_features: 10}\n";

    fn graph() -> LayerGraph {
        LayerGraph::from_yaml(MODEL, "m.yaml").unwrap()
    }

    fn seen(layer: u32, finite: bool, has_gradient: bool, changed: bool) -> LayerHealth {
        LayerHealth { layer: LayerId(layer), finite, has_gradient, changed }
    }

    #[test]
    fn layers_are_looked_at_early_and_now_and_then() {
        let looks =
            |guards, update| LearningMonitor::new(guards).checks_of_step(update, false).health;
        let looked: Vec<u64> =
            (1..=300).filter(|update| looks(Guards::default(), Some(*update))).collect();
        assert_eq!(looked, [10, 100, 200, 300]);
        assert!(looks(Guards { layers_every: 3, ..Guards::default() }, Some(3)));
        assert!(!looks(Guards::default(), None));
        assert!((0..300)
            .all(|update| !looks(Guards { layers_every: 0, ..Guards::default() }, Some(update))));
    }

    #[test]
    fn a_loss_must_be_finite_but_where_it_is_scaled_or_steps_are_skipped() {
        let monitor = LearningMonitor::default();
        assert_eq!(monitor.checks_of_step(None, false).finite, FiniteCheck::Loss);
        assert_eq!(monitor.checks_of_step(None, true).finite, FiniteCheck::Off);
        let skipping =
            LearningMonitor::new(Guards { nonfinite: NonFinite::Skip, ..Guards::default() });
        assert_eq!(skipping.checks_of_step(None, false).finite, FiniteCheck::Off);
    }

    #[test]
    fn what_is_wrong_with_a_layer_is_said_once_with_its_name() {
        let (graph, mut monitor) = (graph(), LearningMonitor::default());
        let said = monitor
            .layer_warnings(
                &graph,
                10,
                0.1,
                &[seen(0, true, true, true), seen(2, true, false, false)],
            )
            .unwrap();
        assert_eq!(said.len(), 1);
        assert!(
            said[0].message.starts_with("step 10: all gradients of layer 2 (Linear) are 0"),
            "{said:?}"
        );
        assert_eq!(said[0].layers, ["2"]);
        let unchanged = [seen(0, true, true, false), seen(2, true, false, false)];
        // Nothing is to change with a rate of 0.
        assert!(monitor.layer_warnings(&graph, 11, 0.0, &unchanged).unwrap().is_empty());
        let said = monitor.layer_warnings(&graph, 12, 1e-12, &unchanged).unwrap();
        assert!(
            said.len() == 1 && said[0].message.contains("layer 0 (Linear) have not changed"),
            "{said:?}"
        );
        let error =
            monitor.layer_warnings(&graph, 13, 0.1, &[seen(0, false, true, true)]).unwrap_err();
        assert!(
            error.starts_with("step 13: gradients of layer 0 (Linear) are no finite numbers"),
            "{error}"
        );
    }

    #[test]
    fn a_loss_that_stays_that_of_guessing_is_told_of_once() {
        let graph = graph();
        let loss = LossSpec::CrossEntropyLoss { classes: Default::default(), label_smoothing: 0.0 };
        let chance = || chance_loss(&loss, &graph);
        let told = |value: f32| {
            let mut monitor =
                LearningMonitor::new(Guards { chance_after: 60, ..Guards::default() });
            (1..=100)
                .filter_map(|step| {
                    monitor.loss_warning(step, value, chance).map(|text| (step, text))
                })
                .collect::<Vec<_>>()
        };
        let [(60, text)] = &told(2.31)[..] else { panic!("{:?}", told(2.31)) };
        assert!(text.contains("is that of guessing (2.3026)"), "{text}");
        assert!(told(2.2).is_empty());
        assert_eq!(chance_loss(&LossSpec::MSELoss, &graph), None);
    }

    #[test]
    fn a_loss_below_its_least_value_is_told_of_once() {
        let mut monitor = LearningMonitor::new(Guards::default());
        let nll = LossSpec::NLLLoss { classes: Default::default() };
        assert_eq!(monitor.negative_loss_warning(1, -1e-7, Some(&nll)), None);
        let text = monitor.negative_loss_warning(2, -0.5, Some(&nll)).unwrap();
        assert!(
            text.starts_with("step 2: the NLLLoss is -0.5, and its least value is 0"),
            "{text}"
        );
        assert!(text.ends_with("LogSoftmax, or use CrossEntropyLoss"), "{text}");
        assert_eq!(monitor.negative_loss_warning(3, -0.5, Some(&nll)), None);
        let mut monitor = LearningMonitor::new(Guards::default());
        assert_eq!(monitor.negative_loss_warning(1, f32::NEG_INFINITY, Some(&nll)), None);
        assert_eq!(monitor.negative_loss_warning(1, -0.5, None), None);
    }

    #[test]
    fn steps_that_are_skipped_end_the_run_only_where_there_is_no_end() {
        let mut monitor =
            LearningMonitor::new(Guards { nonfinite: NonFinite::Skip, ..Guards::default() });
        for step in 1..=9 {
            assert!(monitor.check_gradient_norm(step, false).unwrap().is_some());
        }
        assert!(monitor.check_gradient_norm(10, true).unwrap().is_none());
        for step in 11..=19 {
            monitor.check_gradient_norm(step, false).unwrap();
        }
        assert!(monitor
            .check_gradient_norm(20, false)
            .unwrap_err()
            .to_string()
            .contains("10 steps in a row"));
    }
}
