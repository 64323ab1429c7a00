//! The training in one process, to which every other one must be equal to the bit.

use crate::device::{device, is_fake};
use crate::{reference, train, Case, InMemoryCluster, Training};
use pipeline::{Cuts, Placement, Plan, ScheduleKind};
use tch::Device;

/// The most by which the fake GPU may differ from the CPU, as a share of a tensor's largest
/// element.
const TOLERANCE: f64 = 1e-5;
/// The same for real GPUs. They sum in another order, and Adam and batch norms amplify that from
/// step to step: 1.01e-3 was seen after 20.
const TOLERANCE_REAL: f64 = 3e-3;

/// A bias before a batch norm, which subtracts it again. Its gradient is rounding noise, and Adam
/// makes its steps as large as others. The running mean follows the bias.
const NOISE: [&str; 2] = ["conv1.bias", "norm1.running_mean"];

/// Trains a case in one process.
///
/// On the CPU this is the slow reference. On another device it is one worker with one stage, which
/// must be close to the reference.
pub fn one_process(case: &Case, microbatches: u32) -> Training {
    let reference = reference::train(case, microbatches);
    let device = device();
    if device == Device::Cpu {
        return reference;
    }
    let plan = Plan::new(case.model.graph(), &Cuts::Auto, 1, Placement::Plain).unwrap();
    let mut cluster = InMemoryCluster::new(plan.clone(), case.seed, 0);
    let training = train(case, &plan, ScheduleKind::OneFOneB, microbatches, &mut cluster);
    // GPUs draw other random numbers than the CPU. The fake can draw the same.
    let drops = case.model.graph().layers().iter().any(|layer| layer.kind.name() == "Dropout");
    if drops && std::env::var_os("FAKECUDA_RANDOM_AS_CPU").is_none() {
        return training;
    }
    let what = format!("{} on {} and on the CPU", case.name, tensor::device::name(device));
    let tolerance = if is_fake() { TOLERANCE } else { TOLERANCE_REAL };
    reference.assert_close(&training, tolerance, &NOISE, &what);
    training
}
