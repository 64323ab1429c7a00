//! Computes with kernels that give equal bits every time, where a layer has them.

use crate::engine::EngineError;
use tch::Device;
use tensor::determinism::{choose_kernels, Kernels};
use tensor::TensorError;

/// Runs `work` with kernels that give equal bits every time or, if one of its operations has no
/// such kernel, with others of full precision. Returns which ones they were. They are chosen for
/// the whole process; those that give equal bits stay chosen.
///
/// # Errors
/// `work` fails, or libtorch refuses the choice.
pub(crate) fn deterministic_if_possible<T>(
    device: Device,
    work: impl Fn() -> Result<T, EngineError>,
) -> Result<(T, Kernels), EngineError> {
    let run = || {
        let found = tensor::panics::catch(&work);
        found.map_err(EngineError::from).and_then(|found| found)
    };
    choose(device, Kernels::Deterministic)?;
    match run() {
        // A property of libtorch, and no fault of this device.
        Err(error) if tensor_error(&error).is_some_and(TensorError::lacks_deterministic_kernel) => {
            choose(device, Kernels::FullPrecision)?;
            let found = run();
            choose(device, Kernels::Deterministic)?;
            Ok((found?, Kernels::FullPrecision))
        }
        found => Ok((found?, Kernels::Deterministic)),
    }
}

/// Other devices have no choice.
fn choose(device: Device, kernels: Kernels) -> Result<(), TensorError> {
    match device {
        Device::Cuda(_) => choose_kernels(kernels),
        _ => Ok(()),
    }
}

/// The error of libtorch, if it is one.
pub(crate) fn tensor_error(error: &EngineError) -> Option<&TensorError> {
    match error {
        EngineError::Layer { source, .. } | EngineError::Loss { source, .. } => Some(source),
        EngineError::Tensor(source) => Some(source),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn lacking() -> EngineError {
        TensorError::Libtorch {
            attempted: "a layer".into(),
            message: "it does not have a deterministic implementation".into(),
        }
        .into()
    }

    #[test]
    fn what_has_no_deterministic_kernel_is_computed_with_others() {
        let calls = Cell::new(0_u32);
        let work = |failures: u32| {
            calls.set(0);
            deterministic_if_possible(Device::Cpu, || {
                calls.set(calls.get() + 1);
                if calls.get() > failures {
                    Ok(calls.get())
                } else {
                    Err(lacking())
                }
            })
        };
        assert_eq!(work(0).unwrap(), (1, Kernels::Deterministic));
        assert_eq!(work(1).unwrap(), (2, Kernels::FullPrecision));
        assert!(work(2).is_err());
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn other_errors_are_not_tried_again() {
        let calls = Cell::new(0_u32);
        let failed = deterministic_if_possible(Device::Cpu, || -> Result<(), EngineError> {
            calls.set(calls.get() + 1);
            Err(TensorError::invalid("a layer", "no").into())
        });
        assert!(failed.is_err());
        assert_eq!(calls.get(), 1);
    }
}
