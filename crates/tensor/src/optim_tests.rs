//! Each fused optimizer against PyTorch's formula, written out in f64.

use super::*;
use tch::{Device, Kind};

const STEPS: usize = 5;

/// Sizes around the width of a vector register, and one that is split over threads.
const SIZES: [i64; 4] = [1, 7, 37, 100_003];

fn tensors(seed: u64, steps: u64) -> Vec<Tensor> {
    let key = crate::random::Key::new(seed).number(steps);
    let mut stream = key.stream(Device::Cpu).unwrap();
    SIZES.iter().map(|&size| stream.normal(&[size], Kind::Float, 0.0, 1.0).unwrap()).collect()
}

fn zeros() -> Vec<Tensor> {
    SIZES.iter().map(|&size| Tensor::zeros([size], (Kind::Float, Device::Cpu))).collect()
}

fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

fn doubles(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.to_kind(Kind::Double)).collect()
}

fn run_adam(args: &Adam) -> Vec<Tensor> {
    let params = tensors(0, 0);
    let (exp_avg, exp_avg_sq) = (zeros(), zeros());
    let steps: Vec<Tensor> =
        SIZES.iter().map(|_| Tensor::zeros([0i64; 0], (Kind::Float, Device::Cpu))).collect();
    for step in 1..=STEPS {
        for count in &steps {
            let _ = count.shallow_clone().fill_(step as f64);
        }
        let state = AdamState {
            exp_avg: &refs(&exp_avg),
            exp_avg_sq: &refs(&exp_avg_sq),
            step: &refs(&steps),
        };
        adam(&refs(&params), &refs(&tensors(1, step as u64)), state, args).unwrap();
    }
    params
}

/// PyTorch's `torch.optim.Adam` and `AdamW`, line by line.
fn plain_adam(args: &Adam) -> Vec<Tensor> {
    let mut params = doubles(&tensors(0, 0));
    let (mut m, mut v) = (doubles(&zeros()), doubles(&zeros()));
    for step in 1..=STEPS {
        let grads = doubles(&tensors(1, step as u64));
        let (correction1, correction2) =
            (1.0 - args.beta1.powi(step as i32), 1.0 - args.beta2.powi(step as i32));
        for (i, grad) in grads.iter().enumerate() {
            let grad = if args.decoupled {
                params[i] = &params[i] * (1.0 - args.lr * args.weight_decay);
                grad.shallow_clone()
            } else {
                grad + &params[i] * args.weight_decay
            };
            m[i] = &m[i] * args.beta1 + &grad * (1.0 - args.beta1);
            v[i] = &v[i] * args.beta2 + &grad * &grad * (1.0 - args.beta2);
            let denominator = v[i].sqrt() / correction2.sqrt() + args.eps;
            params[i] = &params[i] - &m[i] / denominator * (args.lr / correction1);
        }
    }
    params
}

fn run_sgd(args: &Sgd) -> Vec<Tensor> {
    let (params, buffers) = (tensors(0, 0), zeros());
    let buffers = if args.momentum == 0.0 { vec![] } else { refs(&buffers) };
    for step in 1..=STEPS {
        sgd(&refs(&params), &refs(&tensors(1, step as u64)), &buffers, step == 1, args).unwrap();
    }
    params
}

/// PyTorch's `torch.optim.SGD`, line by line.
fn plain_sgd(args: &Sgd) -> Vec<Tensor> {
    let mut params = doubles(&tensors(0, 0));
    let mut buffers = doubles(&zeros());
    for step in 1..=STEPS {
        for (i, grad) in doubles(&tensors(1, step as u64)).iter().enumerate() {
            let mut grad = grad + &params[i] * args.weight_decay;
            if args.momentum != 0.0 {
                buffers[i] = match step {
                    1 => grad.shallow_clone(),
                    _ => &buffers[i] * args.momentum + &grad * (1.0 - args.dampening),
                };
                grad = if args.nesterov {
                    grad + &buffers[i] * args.momentum
                } else {
                    buffers[i].shallow_clone()
                };
            }
            params[i] = &params[i] - grad * args.lr;
        }
    }
    params
}

fn assert_close(fused: &[Tensor], plain: &[Tensor]) {
    for (fused, plain) in fused.iter().zip(plain) {
        let fused = fused.to_kind(Kind::Double);
        assert!(fused.allclose(plain, 1e-5, 1e-6, false), "{:?}", (fused - plain).abs().max());
    }
}

#[test]
fn adam_and_adamw_follow_the_formula() {
    let plain =
        Adam { lr: 3e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };
    for weight_decay in [0.0, 0.1] {
        for decoupled in [false, true] {
            let args = Adam { weight_decay, decoupled, ..plain };
            assert_close(&run_adam(&args), &plain_adam(&args));
        }
    }
}

#[test]
fn sgd_follows_the_formula() {
    let plain = Sgd { lr: 0.1, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false };
    for args in [
        plain,
        Sgd { weight_decay: 0.1, ..plain },
        Sgd { momentum: 0.9, ..plain },
        Sgd { momentum: 0.9, dampening: 0.5, weight_decay: 0.01, ..plain },
        Sgd { momentum: 0.9, nesterov: true, ..plain },
    ] {
        assert_close(&run_sgd(&args), &plain_sgd(&args));
    }
}

#[test]
fn lists_of_unequal_length_are_errors() {
    let params = tensors(0, 0);
    let args = Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false };
    let error = sgd(&refs(&params), &refs(&params), &[], true, &args).unwrap_err();
    assert_eq!(error.to_string(), "a step of SGD: expected 4 momentum buffers, got 0");
    assert!(sgd(&refs(&params), &[], &[], true, &args).is_err());
    sgd(&[], &[], &[], true, &args).unwrap();
}
