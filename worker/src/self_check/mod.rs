//! `worker --self-check`: checks a device without a boss, a ticket or a network.
//!
//! ```text
//!     program/run.rs -> mod.rs -> report.rs      the lines of the sections
//!                        |-> driver.rs           the driver, libtorch, memory
//!                        |-> transfers.rs        events, copies and their speed
//!                        |-> memory.rs           a device that is full
//!                        |-> products.rs         the speed of products of matrices
//!                        |-> layers.rs           every kind of layer
//!                              |-> comparison.rs   a layer on recorded tensors, and its errors
//!                              |-> kernels.rs      those that give equal bits, or else others
//!                              |-> records.rs      what PyTorch computes; worker/build.rs packs it
//! ```
//!
//! The tests of the engine compare layers in the same way.

pub(crate) mod comparison;
mod driver;
pub(crate) mod kernels;
mod layers;
mod memory;
mod products;
pub(crate) mod records;
mod report;
mod transfers;

use crate::program::chosen_device::set_threads;
use crate::program::options::Options;
use crate::self_check::report::Report;
use anyhow::Result;

/// Checks the device that the options name, and prints a line for each section as soon as it ends.
///
/// # Errors
/// A section failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    set_threads(options)?;
    tensor::threads::apply_to_this_thread();
    let mut report = Report::new(options.json);
    let mut found = None;
    report.section("driver", || {
        let (device, findings) = driver::check(options)?;
        found = Some(device);
        Ok(findings)
    });
    // Nothing is checked without a device, so it does not matter which one.
    let device = found.unwrap_or(tch::Device::Cpu);
    report.section("streams", || transfers::check_streams(device));
    report.section("copies", || transfers::check_copies(device));
    report.section("memory", || memory::check(device));
    report.section("layers", || layers::check(device));
    report.section("products", || products::check(device));
    report.end()
}
