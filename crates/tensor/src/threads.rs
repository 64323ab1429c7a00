//! The number of threads with which libtorch computes.

use crate::{ffi, TensorError};

/// The threads that one operation is split over.
pub fn count() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1)
}

/// Has the calling thread split operations over as many threads as were [set](set_count).
///
/// OpenMP has a number for each thread. libtorch sets it where it first splits an operation there itself; until then matrix
/// products, which MKL splits, would go over all cores, and on some processors round in another way than later ones.
pub fn apply_to_this_thread() {
    set_count(count());
}

/// Sets the threads that one operation is split over. Zero counts as one.
pub fn set_count(threads: usize) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
}

/// Sets the threads that run operations beside each other. A stage computes one operation at a
/// time, so one is enough. libtorch takes this once, before the first such work; after that it is
/// an error that changes nothing.
pub fn set_interop_count(threads: usize) -> Result<(), TensorError> {
    let threads = i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
    // SAFETY: the argument is a plain number.
    ffi::check("setting the inter-operation threads", unsafe { ffi::bm_set_interop_threads(threads) })
}
