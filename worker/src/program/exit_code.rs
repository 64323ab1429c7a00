//! The end of the `worker` program, and its exit codes apart from those of signals.

use link::LinkError;
use std::io::Write;

/// The run is over.
pub(crate) const SUCCESS: i32 = 0;
/// An error that a new start does not mend, as a wrong ticket.
pub(crate) const FAILURE: i32 = 1;
/// The device is broken for this process. A new process can use it again.
pub(crate) const DEVICE_BROKEN: i32 = 3;

/// The exit code for an error.
pub(crate) fn of(error: &anyhow::Error) -> i32 {
    match error.downcast_ref::<LinkError>() {
        Some(LinkError::DeviceBroken { .. }) => DEVICE_BROKEN,
        _ => FAILURE,
    }
}

/// Ends the process at once, also while the compute thread works, because its result is not needed.
/// A normal exit runs libtorch's clean-up, which crashes while a thread is at work.
pub(crate) fn exit_now(code: i32) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_device_has_a_code_of_its_own() {
        let broken = LinkError::DeviceBroken { failure: "forward: CUDA error".into() };
        assert_eq!(of(&broken.into()), DEVICE_BROKEN);
        assert_eq!(of(&LinkError::Hung { seconds: 1 }.into()), FAILURE);
        assert_eq!(of(&anyhow::anyhow!("other")), FAILURE);
    }
}
