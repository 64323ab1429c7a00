//! The functions of `cpp/shim.cpp` and `cpp/transfer.cpp`, and how to call them: errors turned,
//! lists laid out.

use crate::TensorError;
// Has the functions.
use std::ffi::{c_char, c_void, CStr};
use tch::{Device, Tensor};
use tensor_cpp as _;
use torch_sys::C_tensor;

/// A C++ `at::Generator`.
#[repr(C)]
pub(crate) struct Generator {
    _opaque: [u8; 0],
}

/// A C++ `c10::Event`.
#[repr(C)]
pub(crate) struct Event {
    _opaque: [u8; 0],
}

/// A message to free, or null for success.
pub(crate) type Status = *mut c_char;
type List = *const *const C_tensor;

extern "C" {
    pub(crate) fn bm_libtorch_cpu_path() -> *const c_char;
    pub(crate) fn bm_libtorch_version() -> *const c_char;
    pub(crate) fn bm_set_interop_threads(threads: i32) -> Status;
    pub(crate) fn bm_choose_kernels(deterministic: i32, tf32: i32) -> Status;
    pub(crate) fn bm_kernels_are_deterministic(they_are: *mut i32) -> Status;
    pub(crate) fn bm_device_memory(
        kind: i32,
        index: i32,
        free: *mut u64,
        total: *mut u64,
    ) -> Status;
    pub(crate) fn bm_peak_memory(kind: i32, index: i32, bytes: *mut u64) -> Status;
    pub(crate) fn bm_empty_cache(kind: i32, index: i32) -> Status;
    pub(crate) fn bm_use_device(kind: i32, index: i32) -> Status;
    pub(crate) fn bm_synchronize(kind: i32, index: i32) -> Status;
    pub(crate) fn bm_is_idle(kind: i32, index: i32, idle: *mut bool) -> Status;
    pub(crate) fn bm_event_record(index: i32, out: *mut *mut Event) -> Status;
    pub(crate) fn bm_event_wait(event: *const Event) -> Status;
    pub(crate) fn bm_event_free(event: *mut Event);
    pub(crate) fn bm_download(
        from: *const C_tensor,
        ready: *const Event,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_begin_download(from: *const C_tensor, out: *mut *mut C_tensor) -> Status;
    pub(crate) fn bm_upload(from: *const C_tensor, index: i32, out: *mut *mut C_tensor) -> Status;
    pub(crate) fn bm_floats(
        tensor: *const C_tensor,
        kind: i32,
        index: i32,
        data: *mut *mut c_void,
        count: *mut usize,
    ) -> Status;
    pub(crate) fn bm_from_blob(
        data: *mut c_void,
        sizes: *const i64,
        rank: usize,
        scalar_type: i8,
        drop: extern "C" fn(*mut c_void),
        owner: *mut c_void,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_grad(
        outputs: List,
        output_grads: List,
        output_count: usize,
        inputs: List,
        input_count: usize,
        grads: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_layer_norm_backward(
        grad: *const C_tensor,
        input: *const C_tensor,
        mean: *const C_tensor,
        rstd: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        shape: *const i64,
        rank: usize,
        wanted: u8,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_activation(
        which: u8,
        input: *const C_tensor,
        a: f64,
        b: f64,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_conv_backward(
        grad: *const C_tensor,
        input: *const C_tensor,
        weight: *const C_tensor,
        sizes: *const i64,
        dims: usize,
        transposed: bool,
        groups: i64,
        wanted: u8,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn bm_is_alone(tensor: *const C_tensor) -> bool;
    pub(crate) fn bm_is_plain(tensor: *const C_tensor) -> bool;
    pub(crate) fn bm_storage(tensor: *const C_tensor, data: *mut *const c_void, bytes: *mut u64);
    pub(crate) fn bm_squares_of_blocks(
        tensor: *const C_tensor,
        block: usize,
        sums: *mut f64,
        blocks: usize,
    ) -> Status;
    pub(crate) fn bm_keep_freed_memory(largest_block: usize, keep: usize) -> bool;
    pub(crate) fn bm_return_large_blocks(block: usize, keep: usize) -> bool;
    pub(crate) fn bm_multiply_each(tensors: List, count: usize, factor: f64) -> Status;
    pub(crate) fn bm_add_to_each(tensors: List, count: usize, number: f64) -> Status;
    pub(crate) fn bm_fused_sgd(
        params: List,
        grads: List,
        momentum_buffers: List,
        count: usize,
        buffer_count: usize,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        first_step: bool,
    ) -> Status;
    pub(crate) fn bm_fused_adam(
        params: List,
        grads: List,
        exp_avgs: List,
        exp_avg_sqs: List,
        steps: List,
        count: usize,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        decoupled: bool,
    ) -> Status;
    pub(crate) fn bm_generator_new(
        kind: i32,
        index: i32,
        seed: u64,
        out: *mut *mut Generator,
    ) -> Status;
    pub(crate) fn bm_generator_free(generator: *mut Generator);
    pub(crate) fn bm_uniform_(
        tensor: *mut C_tensor,
        generator: *mut Generator,
        low: f64,
        high: f64,
    ) -> Status;
    pub(crate) fn bm_normal_(
        tensor: *mut C_tensor,
        generator: *mut Generator,
        mean: f64,
        std: f64,
    ) -> Status;
    pub(crate) fn bm_bernoulli_(tensor: *mut C_tensor, generator: *mut Generator, p: f64)
        -> Status;
}

/// Turns a status of the shim into a result.
pub(crate) fn check(attempted: &str, status: Status) -> Result<(), TensorError> {
    check_by(attempted, status, str::to_owned)
}

/// The same, with the relevant part of the message.
pub(crate) fn check_by(
    attempted: &str,
    status: Status,
    pick: fn(&str) -> String,
) -> Result<(), TensorError> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null is a NUL-terminated string from `strdup`, ours to free,
    // and it is copied before it is freed.
    let message = unsafe {
        let message = CStr::from_ptr(status).to_string_lossy().into_owned();
        libc::free(status.cast());
        message
    };
    Err(TensorError::libtorch(attempted, &pick(&message)))
}

/// The pointers of a list of tensors. They hold as long as the tensors are borrowed.
pub(crate) fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

/// Takes a tensor that C++ hands out.
///
/// C++ must be given a `Vec<Tensor>` as `taker`, which nothing else uses during the call, and hand
/// out new tensors alone.
pub(crate) extern "C" fn push_output(taker: *mut c_void, tensor: *mut C_tensor) {
    // SAFETY: `taker` is the caller's list, `tensor` a new C++ tensor that is ours.
    unsafe { (*taker.cast::<Vec<Tensor>>()).push(Tensor::from_ptr(tensor)) }
}

/// A device as the shim writes it: kind, then index.
pub(crate) fn device_code(device: Device) -> (i32, i32) {
    match device {
        Device::Cpu => (0, 0),
        Device::Cuda(index) => (1, i32::try_from(index).unwrap_or(i32::MAX)),
        Device::Mps => (2, 0),
        Device::Vulkan => (3, 0),
    }
}
