//! Checks events and copies beside kernels, and measures copies.

use crate::self_check::report::{Findings, Problem};
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use tensor::transfer::{self, Event};
use tensor::{Attempt, TensorError};

/// The sums of as many sums of these numbers are exact in float32: they are below 2^24.
const NUMBERS: i64 = 1 << 16;
const ADDITIONS: usize = 16;

/// How often a check is repeated, because a missing wait does not always show.
const ROUNDS: usize = 4;

/// The bytes of a copy that is measured, and the share of free memory that they may take.
const COPY_BYTES: u64 = 64 << 20;
const COPY_SHARE: u64 = 16;
/// Copies for a median.
const REPETITIONS: usize = 5;

/// Checks that an event comes after the work before it, that a download has the work's result, and
/// that the source of an upload may change at once.
///
/// # Errors
/// A result is wrong, or the device fails.
pub(crate) fn check_streams(device: Device) -> Result<Findings, Problem> {
    if let Some(skipped) = skipped(device) {
        return Ok(skipped);
    }
    let expected = sum_of(&numbers(NUMBERS)?)?;
    for _ in 0..ROUNDS {
        let sum = sum_of(&numbers(NUMBERS)?.f_to_device(device).attempt("a copy")?)?;
        let ready = event(device)?;
        let found = transfer::download(&sum, &ready)?;
        expect_equal(&found, &expected, "a result that was copied beside kernels")?;
        let sum = sum_of(&sum)?;
        event(device)?.wait()?;
        let found = sum.f_to_device(Device::Cpu).attempt("a copy")?;
        expect_equal(&found, &sum_of(&expected)?, "a result after an event")?;
        let mut source = numbers(NUMBERS)?;
        let uploaded = transfer::to_device(&source, device)?;
        drop(source.f_zero_().attempt("zeros")?);
        drop(source);
        let found = sum_of(&uploaded)?.f_to_device(Device::Cpu).attempt("a copy")?;
        expect_equal(&found, &expected, "a sum of numbers whose source was freed")?;
    }
    Ok(Findings::new("events, downloads and uploads are right").figure("rounds", ROUNDS))
}

/// Measures copies between host and device, from usual memory and from pinned memory.
///
/// # Errors
/// A copy differs from its source, or the device fails.
pub(crate) fn check_copies(device: Device) -> Result<Findings, Problem> {
    if let Some(skipped) = skipped(device) {
        return Ok(skipped);
    }
    let free = tensor::device::memory(device).map(|memory| memory.free);
    let bytes = free.map_or(COPY_BYTES, |free| COPY_BYTES.min(free / COPY_SHARE)).max(4);
    let host = numbers(i64::try_from(bytes / 4).unwrap_or(NUMBERS))?;
    let on_device = host.f_to_device(device).attempt("a copy to the device")?;
    let ready = event(device)?;
    let rate = |copy: &dyn Fn() -> Result<Tensor, TensorError>| {
        // The first copy takes memory that later ones have.
        let first = copy()?.f_to_device(Device::Cpu).attempt("a copy")?;
        expect_equal(&first, &host, "a copy of many bytes")?;
        Ok::<_, Problem>(bytes as f64 / seconds(device, copy)? / 1e9)
    };
    let to_device = rate(&|| host.f_to_device(device).attempt("a copy to the device"))?;
    let to_host = rate(&|| on_device.f_to_device(Device::Cpu).attempt("a copy to the host"))?;
    let to_device_pinned = rate(&|| transfer::to_device(&host, device))?;
    let to_host_pinned = rate(&|| transfer::download(&on_device, &ready))?;
    let text = format!(
        "to the device {to_device:.1} GB/s, with pinned memory {to_device_pinned:.1}; back \
         {to_host:.1}, with pinned memory {to_host_pinned:.1}"
    );
    Ok(Findings::new(text)
        .figure("bytes", bytes)
        .figure("to_device_gb_s", to_device)
        .figure("to_host_gb_s", to_host)
        .figure("to_device_pinned_gb_s", to_device_pinned)
        .figure("to_host_pinned_gb_s", to_host_pinned))
}

/// The result for a device whose work is done when a call returns.
fn skipped(device: Device) -> Option<Findings> {
    match device {
        Device::Cuda(_) => None,
        Device::Cpu => Some(Findings::skipped("not needed on a CPU")),
        other => Some(Findings::skipped(format!("not needed on {}", tensor::device::name(other)))),
    }
}

/// The median time of a copy, with the device's part of it.
fn seconds(
    device: Device,
    copy: &dyn Fn() -> Result<Tensor, TensorError>,
) -> Result<f64, TensorError> {
    let mut all = Vec::new();
    for _ in 0..REPETITIONS {
        tensor::device::synchronize(device)?;
        let begin = Instant::now();
        let _copied = copy()?;
        tensor::device::synchronize(device)?;
        all.push(begin.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    // A clock may be too coarse.
    Ok(all[all.len() / 2].max(1e-9))
}

/// Numbers on the host.
fn numbers(count: i64) -> Result<Tensor, TensorError> {
    Tensor::f_arange(count, (Kind::Float, Device::Cpu)).attempt("numbers")
}

fn sum_of(numbers: &Tensor) -> Result<Tensor, TensorError> {
    let mut sum = numbers.f_zeros_like()?;
    for _ in 0..ADDITIONS {
        sum = sum.f_add(numbers)?;
    }
    Ok(sum)
}

/// An event after the work so far.
fn event(device: Device) -> Result<Event, TensorError> {
    let missing = || TensorError::invalid("an event", "the device has none");
    Event::record(device)?.ok_or_else(missing)
}

fn expect_equal(found: &Tensor, expected: &Tensor, what: &str) -> Result<(), Problem> {
    match found.f_equal(expected).attempt("comparing")? {
        true => Ok(()),
        false => Err(Problem::new(format!(
            "{what} is wrong; do not train on this device: update its driver and check again, and \
             test the GPU's memory if this stays"
        ))),
    }
}
