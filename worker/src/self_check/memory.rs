//! Checks that a device which is full says so, and goes on.

use crate::self_check::report::{Findings, Problem};
use tch::{Device, Kind, Tensor};
use tensor::{Attempt, TensorError};

/// How many times the device's memory is asked for. Some drivers lend the host's memory, too.
const TOO_OFTEN: u64 = 8;
/// Numbers in a small tensor.
const SMALL: i64 = 1000;

/// Asks for more memory than there is, and then for a little.
///
/// # Errors
/// The device gives more than it has, the error is not the one of too little memory, or the device
/// gives nothing afterwards.
pub(crate) fn check(device: Device) -> Result<Findings, Problem> {
    match device {
        Device::Cuda(_) => {}
        Device::Cpu => {
            let reason = "not needed on a CPU: the system may promise more memory than it has";
            return Ok(Findings::skipped(reason));
        }
        other => {
            let name = tensor::device::name(other);
            return Ok(Findings::skipped(format!("not needed on {name}")));
        }
    }
    let memory = tensor::device::memory(device);
    let memory = memory.ok_or_else(|| Problem::new("the device does not tell its memory"))?;
    let asked = memory.total.saturating_mul(TOO_OFTEN);
    let size = i64::try_from(asked).unwrap_or(i64::MAX);
    let refused = match Tensor::f_empty([size], (Kind::Uint8, device)).attempt("an allocation") {
        Err(error) if error.is_out_of_memory() => error,
        Err(error) => return Err(error.into()),
        Ok(_) => {
            return Err(Problem::new(format!(
                "the device has {} bytes of memory, and gave {asked}; update its driver",
                memory.total
            )))
        }
    };
    tensor::device::empty_cache(device)?;
    if sum_of_ones(device)? != SMALL as f64 {
        return Err(Problem::new(
            "after an allocation that failed, results are wrong; update the driver",
        ));
    }
    Ok(Findings::new("an allocation that is too large fails, and the next one works")
        .figure("asked", asked)
        .figure("refusal", refused.to_string()))
}

fn sum_of_ones(device: Device) -> Result<f64, TensorError> {
    let ones = Tensor::f_ones([SMALL], (Kind::Float, device)).attempt("a small allocation")?;
    Ok(ones.f_sum(Kind::Double)?.f_double_value(&[])?)
}
