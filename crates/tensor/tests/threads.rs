//! The number of compute threads belongs to the whole process, so this test has one to itself.
#![allow(clippy::unwrap_used)] // a test

use tch::{Device, Kind, Tensor};
use tensor::optim::{self, Adam, AdamState, Sgd};
use tensor::{random::Key, threads};

/// Long enough that libtorch splits it over threads, and no multiple of a vector register.
const SIZE: i64 = 1_000_003;

fn normal(number: u64) -> Tensor {
    Key::new(number).stream(Device::Cpu).unwrap().normal(&[SIZE], Kind::Float, 0.0, 1.0).unwrap()
}

fn run(threads: usize) -> (Tensor, Tensor) {
    threads::set_count(threads);
    assert_eq!(threads::count(), threads);
    let zeros = || Tensor::zeros([SIZE], (Kind::Float, Device::Cpu));

    let adam =
        Adam { lr: 3e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, decoupled: true };
    let (by_adam, exp_avg, exp_avg_sq) = (normal(0), zeros(), zeros());
    for step in 1..=3u64 {
        let count = Tensor::from(step as f32);
        let state = AdamState { exp_avg: &[&exp_avg], exp_avg_sq: &[&exp_avg_sq], step: &[&count] };
        optim::adam(&[&by_adam], &[&normal(step)], state, &adam).unwrap();
    }

    let sgd = Sgd { lr: 0.1, momentum: 0.9, dampening: 0.1, weight_decay: 0.1, nesterov: false };
    let (by_sgd, buffer) = (normal(0), zeros());
    for step in 1..=3u64 {
        optim::sgd(&[&by_sgd], &[&normal(step)], &[&buffer], step == 1, &sgd).unwrap();
    }
    (by_adam, by_sgd)
}

#[test]
fn the_number_of_threads_does_not_show_in_the_optimizers() {
    let one = run(1);
    for threads in [2, 3, 7] {
        let many = run(threads);
        assert!(one.0.equal(&many.0) && one.1.equal(&many.1), "{threads} threads");
    }
    threads::set_count(0);
    assert_eq!(threads::count(), 1);
}

#[test]
fn setting_the_interop_threads_twice_is_an_error_not_a_panic() {
    threads::set_interop_count(1).unwrap();
    assert!(threads::set_interop_count(1).is_err());
}
