//! The number of threads with which libtorch computes.

use crate::{ffi, TensorError};

/// The number of threads over which one operation is split.
pub fn count() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1)
}

/// Makes the calling thread split operations over the [set](set_count) number of threads.
///
/// OpenMP has a number for each thread. libtorch sets it when it first splits an operation there.
/// Until then MKL would split matrix products over all cores, and on some processors they would
/// round differently from later ones.
pub fn apply_to_this_thread() {
    set_count(count());
}

/// Sets the number of threads over which one operation is split. Zero counts as one.
pub fn set_count(threads: usize) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
}

/// Sets the number of threads that run operations in parallel. A stage computes one operation at a
/// time, so one is enough. libtorch accepts this once, before the first such work. Later calls are
/// an error and change nothing.
pub fn set_interop_count(threads: usize) -> Result<(), TensorError> {
    let threads = i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
    // SAFETY: the argument is a plain number.
    ffi::check("setting the inter-operation threads", unsafe {
        ffi::bm_set_interop_threads(threads)
    })
}
