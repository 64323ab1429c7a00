//! Optimizers, by PyTorch's names and with its defaults.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The optimizer that every worker applies to its own parameters after a step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum OptimizerSpec {
    /// `torch.optim.SGD`.
    SGD {
        /// Learning rate.
        lr: f64,
        /// Momentum factor; 0 keeps no state.
        momentum: f64,
        /// Dampening of the momentum.
        dampening: f64,
        /// L2 penalty.
        weight_decay: f64,
        /// Nesterov momentum.
        nesterov: bool,
    },
    /// `torch.optim.Adam`.
    Adam(AdamArgs),
    /// `torch.optim.AdamW`: Adam with decoupled weight decay.
    AdamW(AdamArgs),
}

/// The arguments of Adam and AdamW.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdamArgs {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the running averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty (Adam) or decoupled decay (AdamW).
    pub weight_decay: f64,
}

impl OptimizerSpec {
    /// PyTorch's name of it.
    pub fn name(&self) -> &'static str {
        match self {
            OptimizerSpec::SGD { .. } => "SGD",
            OptimizerSpec::Adam(_) => "Adam",
            OptimizerSpec::AdamW(_) => "AdamW",
        }
    }

    /// Plain SGD.
    pub const fn sgd(lr: f64) -> Self {
        OptimizerSpec::SGD { lr, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// SGD with momentum.
    pub const fn sgd_momentum(lr: f64, momentum: f64) -> Self {
        OptimizerSpec::SGD { lr, momentum, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// Adam with PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8, no weight decay.
    pub const fn adam(lr: f64) -> Self {
        OptimizerSpec::Adam(AdamArgs { lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 })
    }

    /// AdamW with PyTorch's defaults: as Adam, weight decay 0.01.
    pub const fn adamw(lr: f64) -> Self {
        OptimizerSpec::AdamW(AdamArgs { lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 })
    }

    /// Its learning rate.
    pub fn lr(&self) -> f64 {
        match *self {
            OptimizerSpec::SGD { lr, .. } => lr,
            OptimizerSpec::Adam(args) | OptimizerSpec::AdamW(args) => args.lr,
        }
    }

    /// The size of its state, in copies of the parameters.
    pub fn state_copies(&self) -> u64 {
        match *self {
            OptimizerSpec::SGD { momentum, .. } => u64::from(momentum != 0.0),
            OptimizerSpec::Adam(_) | OptimizerSpec::AdamW(_) => 2,
        }
    }

    /// The kinds of its state for a parameter, by PyTorch's names. `step` is a number. The others
    /// have the parameter's shape.
    pub fn state_kinds(&self) -> &'static [&'static str] {
        match *self {
            OptimizerSpec::SGD { momentum: 0.0, .. } => &[],
            OptimizerSpec::SGD { .. } => &["momentum_buffer"],
            OptimizerSpec::Adam(_) | OptimizerSpec::AdamW(_) => &["exp_avg", "exp_avg_sq", "step"],
        }
    }

    /// Refuses what PyTorch refuses, in its words.
    pub fn check(&self) -> Result<(), String> {
        let not_negative = |name: &str, value: f64| {
            if value.is_finite() && value >= 0.0 {
                Ok(())
            } else {
                Err(format!("invalid {name}: {value}; expected a number of at least 0"))
            }
        };
        match *self {
            OptimizerSpec::SGD { lr, momentum, dampening, weight_decay, nesterov } => {
                not_negative("lr", lr)?;
                not_negative("momentum", momentum)?;
                not_negative("weight_decay", weight_decay)?;
                if !dampening.is_finite() {
                    return Err(format!("invalid dampening: {dampening}"));
                }
                if nesterov && (momentum <= 0.0 || dampening != 0.0) {
                    return Err("nesterov requires a momentum and zero dampening".into());
                }
                Ok(())
            }
            OptimizerSpec::Adam(args) | OptimizerSpec::AdamW(args) => {
                not_negative("lr", args.lr)?;
                not_negative("eps", args.eps)?;
                not_negative("weight_decay", args.weight_decay)?;
                for beta in [args.betas.0, args.betas.1] {
                    if !(0.0..1.0).contains(&beta) {
                        return Err(format!("invalid beta: {beta}; expected 0 <= beta < 1"));
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptimizerSpec::SGD { lr, .. } => write!(f, "SGD (lr {lr})"),
            OptimizerSpec::Adam(args) => write!(f, "Adam (lr {})", args.lr),
            OptimizerSpec::AdamW(args) => write!(f, "AdamW (lr {})", args.lr),
        }
    }
}
