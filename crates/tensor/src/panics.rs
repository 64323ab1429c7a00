//! Errors of libtorch that tch turns into panics.
//!
//! tch's functions with an argument of type `Scalar` free it before they read libtorch's error.
//! `Scalar`'s `drop` finds the error first, and panics with it, in tch 0.24.

use crate::TensorError;
use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// How the message of such a panic begins.
const BEGINNING: &str = "called `Result::unwrap()` on an `Err` value: Torch(\"";

/// Runs `work`, and returns an error of libtorch that tch turned into a panic. Other panics go on.
///
/// # Errors
/// libtorch failed.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, TensorError> {
    catch_unwind(AssertUnwindSafe(work)).or_else(|payload| {
        libtorch_error(payload.as_ref()).map_or_else(|| resume_unwind(payload), Err)
    })
}

/// The error of libtorch in a panic's payload, if it is one.
fn libtorch_error(payload: &(dyn Any + Send)) -> Option<TensorError> {
    let text = payload.downcast_ref::<String>()?.strip_prefix(BEGINNING)?;
    // The text is escaped. The rest after the first line is a C++ backtrace.
    let message = text.split("\\n").next().unwrap_or(text).trim_end_matches("\")");
    Some(TensorError::libtorch("libtorch", &message.replace("\\\"", "\"")))
}

/// Prints no message for panics that [`catch`] turns into errors. For programs alone: the hook is
/// the process's.
pub fn quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        if !text.is_some_and(|text| text.starts_with(BEGINNING)) {
            usual(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attempt;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn a_failed_operation_with_a_scalar_is_an_error() {
        let [three, four] = [3, 4].map(|size| Tensor::zeros([size], (Kind::Float, Device::Cpu)));
        let failed = || three.f_threshold_backward(&four, 0.0).attempt("backward");
        let error = catch(failed).and_then(|result| result).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("The size of tensor a (3) must match"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn other_panics_go_on() {
        let panicked = catch_unwind(|| catch(|| panic!("a defect")));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"a defect"));
    }
}
