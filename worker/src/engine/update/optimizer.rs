//! The optimizer of a stage: which parameters take part in a step, and the state of each.

use pipeline::optimizer::{AdamArgs, OptimizerSpec};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use tch::{Device, Kind, Tensor};
use tensor::optim::{self, Adam, AdamState, Sgd};
use tensor::{foreach, TensorError};

/// The kind of Adam's state that counts a parameter's steps. It is a scalar. Other kinds have a
/// number for each element.
pub(crate) const STEP: &str = "step";

/// An optimizer with its state for each parameter, by place in the stage. A parameter has no state
/// before its first step.
#[derive(Debug)]
pub(crate) enum Optimizer {
    Sgd { args: Sgd, momentum: HashMap<usize, Tensor> },
    Adam { args: Adam, moments: HashMap<usize, AdamMoments> },
}

/// Adam's state for one parameter.
#[derive(Debug)]
pub(crate) struct AdamMoments {
    step: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

/// A trained parameter that has a gradient.
pub(crate) struct ParamUpdate<'a> {
    /// Its place in the stage.
    pub(crate) index: usize,
    /// The parameter, or the shard of it that is updated here.
    pub(crate) tensor: Tensor,
    pub(crate) grad: &'a Tensor,
}

impl Optimizer {
    pub(crate) fn new(spec: OptimizerSpec) -> Self {
        let adam = |args, decoupled| Optimizer::Adam {
            args: adam_args(args, decoupled),
            moments: HashMap::new(),
        };
        match spec {
            OptimizerSpec::SGD { lr, momentum, dampening, weight_decay, nesterov } => {
                let args = Sgd { lr, momentum, dampening, weight_decay, nesterov };
                Optimizer::Sgd { args, momentum: HashMap::new() }
            }
            OptimizerSpec::Adam(args) => adam(args, false),
            OptimizerSpec::AdamW(args) => adam(args, true),
        }
    }

    pub(crate) fn step(&mut self, due: Vec<ParamUpdate<'_>>, lr: f64) -> Result<(), TensorError> {
        match self {
            Optimizer::Sgd { args, momentum } => sgd_step(&Sgd { lr, ..*args }, momentum, due),
            Optimizer::Adam { args, moments } => adam_step(&Adam { lr, ..*args }, moments, &due),
        }
    }

    /// Sets the state of one parameter, or of a shard of this size, as [`Optimizer::state`]
    /// returned it elsewhere.
    ///
    /// # Errors
    /// It is not this optimizer's state of such a parameter.
    pub(crate) fn set_state(
        &mut self,
        index: usize,
        size: &[i64],
        mut parts: HashMap<String, Tensor>,
    ) -> Result<(), String> {
        let mut part = |name: &str, size: &[i64]| {
            let tensor = parts.remove(name).ok_or_else(|| format!("{name} is missing"))?;
            let fits =
                tensor.size() == size && tensor.f_kind().is_ok_and(|kind| kind == Kind::Float);
            fits.then_some(tensor).ok_or_else(|| format!("{name} has another size or type"))
        };
        match self {
            Optimizer::Sgd { momentum, .. } => {
                drop(momentum.insert(index, part("momentum_buffer", size)?))
            }
            Optimizer::Adam { moments, .. } => {
                let step = part(STEP, &[])?;
                let (exp_avg, exp_avg_sq) = (part("exp_avg", size)?, part("exp_avg_sq", size)?);
                moments.insert(index, AdamMoments { step, exp_avg, exp_avg_sq });
            }
        }
        match parts.into_keys().next() {
            Some(other) => Err(format!("{other} is unexpected")),
            None => Ok(()),
        }
    }

    /// The kinds of state that a parameter has after a step, under PyTorch's names.
    pub(crate) fn kinds(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { args, .. } if args.momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum_buffer"],
            Optimizer::Adam { .. } => &[STEP, "exp_avg", "exp_avg_sq"],
        }
    }

    /// Makes the state of a parameter, or of a shard of this size, if it has none: zeros. Its next
    /// step is then not its first.
    pub(crate) fn begin_state(
        &mut self,
        index: usize,
        size: &[i64],
        device: Device,
    ) -> Result<(), TensorError> {
        match self {
            Optimizer::Sgd { momentum, .. } => {
                if let Entry::Vacant(place) = momentum.entry(index) {
                    place.insert(Tensor::f_zeros(size, (Kind::Float, device))?);
                }
            }
            Optimizer::Adam { moments, .. } => {
                if let Entry::Vacant(place) = moments.entry(index) {
                    place.insert(AdamMoments::zeros(size, device)?);
                }
            }
        }
        Ok(())
    }

    /// Forgets the state of all parameters.
    pub(crate) fn clear(&mut self) {
        match self {
            Optimizer::Sgd { momentum, .. } => momentum.clear(),
            Optimizer::Adam { moments, .. } => moments.clear(),
        }
    }

    /// The state of one parameter, under PyTorch's names.
    pub(crate) fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)> {
        match self {
            Optimizer::Sgd { momentum, .. } => {
                momentum.get(&index).map(|buffer| ("momentum_buffer", buffer)).into_iter().collect()
            }
            Optimizer::Adam { moments, .. } => match moments.get(&index) {
                Some(AdamMoments { step, exp_avg, exp_avg_sq }) => {
                    vec![(STEP, step), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)]
                }
                None => Vec::new(),
            },
        }
    }
}

fn lists<'a>(due: &'a [ParamUpdate<'_>]) -> (Vec<&'a Tensor>, Vec<&'a Tensor>) {
    due.iter().map(|due| (&due.tensor, due.grad)).unzip()
}

fn sgd_step(
    args: &Sgd,
    momentum: &mut HashMap<usize, Tensor>,
    due: Vec<ParamUpdate<'_>>,
) -> Result<(), TensorError> {
    if args.momentum == 0.0 {
        let (params, grads) = lists(&due);
        return optim::sgd(&params, &grads, &[], false, args);
    }
    // A parameter's first step sets its buffer to the gradient, so first steps are separate calls.
    let (first, later): (Vec<_>, Vec<_>) =
        due.into_iter().partition(|due| !momentum.contains_key(&due.index));
    for due in &first {
        momentum.insert(due.index, due.tensor.f_detach()?.f_zeros_like()?);
    }
    for (due, first_step) in [(first, true), (later, false)] {
        let buffers: Vec<&Tensor> = due.iter().filter_map(|due| momentum.get(&due.index)).collect();
        let (params, grads) = lists(&due);
        optim::sgd(&params, &grads, &buffers, first_step, args)?;
    }
    Ok(())
}

fn adam_step(
    args: &Adam,
    moments: &mut HashMap<usize, AdamMoments>,
    due: &[ParamUpdate<'_>],
) -> Result<(), TensorError> {
    for due in due {
        if let Entry::Vacant(place) = moments.entry(due.index) {
            place.insert(AdamMoments::new(&due.tensor)?);
        }
    }
    let moments: Vec<&AdamMoments> = due.iter().filter_map(|due| moments.get(&due.index)).collect();
    let list = |part: fn(&AdamMoments) -> &Tensor| {
        moments.iter().map(|moments| part(moments)).collect::<Vec<_>>()
    };
    let (exp_avg, exp_avg_sq) =
        (list(|moments| &moments.exp_avg), list(|moments| &moments.exp_avg_sq));
    let step = list(|moments| &moments.step);
    foreach::add(&step, 1.0)?;
    let (params, grads) = lists(due);
    optim::adam(
        &params,
        &grads,
        AdamState { exp_avg: &exp_avg, exp_avg_sq: &exp_avg_sq, step: &step },
        args,
    )
}

impl AdamMoments {
    fn new(param: &Tensor) -> Result<Self, TensorError> {
        let param = param.f_detach()?;
        Ok(AdamMoments {
            step: Tensor::f_zeros([0i64; 0], (Kind::Float, param.device()))?,
            exp_avg: param.f_zeros_like()?,
            exp_avg_sq: param.f_zeros_like()?,
        })
    }

    fn zeros(size: &[i64], device: Device) -> Result<Self, TensorError> {
        let options = (Kind::Float, device);
        Ok(AdamMoments {
            step: Tensor::f_zeros([0i64; 0], options)?,
            exp_avg: Tensor::f_zeros(size, options)?,
            exp_avg_sq: Tensor::f_zeros(size, options)?,
        })
    }
}

fn adam_args(args: AdamArgs, decoupled: bool) -> Adam {
    let AdamArgs { lr, betas: (beta1, beta2), eps, weight_decay } = args;
    Adam { lr, beta1, beta2, eps, weight_decay, decoupled }
}
