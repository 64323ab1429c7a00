//! TorchScript modules: code from a file, which runs with the parameters of each call.
//!
//! Loading a module runs code of its file. The caller of [`Script::load`] must trust the file.

use crate::ffi::{self, Status};
use crate::random::Key;
use crate::TensorError;
use std::ffi::{c_char, c_void, CStr};
use tch::{Device, Tensor};
use torch_sys::C_tensor;

/// A C++ `bm_script`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

extern "C" {
    fn bm_script_load(
        data: *const c_void,
        size: usize,
        kind: i32,
        index: i32,
        out: *mut *mut Handle,
    ) -> Status;
    fn bm_script_free(script: *mut Handle);
    fn bm_script_params(script: *const Handle) -> usize;
    fn bm_script_param_name(script: *const Handle, index: usize) -> *const c_char;
    fn bm_script_param(script: *const Handle, index: usize) -> *mut C_tensor;
    fn bm_script_run(
        script: *mut Handle,
        params: *const *const C_tensor,
        inputs: *const *const C_tensor,
        input_count: usize,
        training: bool,
        seed: *const u64,
        take: extern "C" fn(*mut c_void, *mut C_tensor),
        taker: *mut c_void,
    ) -> Status;
}

/// A module on a device.
#[derive(Debug)]
pub struct Script {
    handle: *mut Handle,
    params: Vec<String>,
}

// SAFETY: the module is owned by this value alone, and a call of it by `&mut self`.
unsafe impl Send for Script {}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: made by `bm_script_load`, freed once.
        unsafe { bm_script_free(self.handle) }
    }
}

impl Script {
    /// Loads a module from the bytes that `torch.jit.save` wrote. May run code of the file.
    pub fn load(file: &[u8], device: Device) -> Result<Self, TensorError> {
        let (kind, index) = ffi::device_code(device);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the bytes are borrowed for the call; on success the pointer is set to a module
        // that is ours.
        let status =
            unsafe { bm_script_load(file.as_ptr().cast(), file.len(), kind, index, &mut handle) };
        check("loading a TorchScript file", status)?;
        let mut script = Script { handle, params: Vec::new() };
        // SAFETY: the handle is live.
        let count = unsafe { bm_script_params(script.handle) };
        script.params = (0..count)
            .map(|i| {
                // SAFETY: the index is below the count, and the name a string that lives as long
                // as the module.
                let name = unsafe { CStr::from_ptr(bm_script_param_name(script.handle, i)) };
                name.to_string_lossy().into_owned()
            })
            .collect();
        Ok(script)
    }

    /// The names of its parameters, as PyTorch's `named_parameters()` has them.
    pub fn param_names(&self) -> &[String] {
        &self.params
    }

    /// The file's values of the parameters, in the order of their names. Do not write to them.
    pub fn initial(&self) -> Vec<Tensor> {
        // SAFETY: each index is below the count; each pointer is to a new C++ tensor that is ours.
        (0..self.params.len())
            .map(|i| unsafe { Tensor::from_ptr(bm_script_param(self.handle, i)) })
            .collect()
    }

    /// The result of its `forward`: one tensor, or those of a tuple or list.
    ///
    /// The given parameters are in the order of [`Script::param_names`], and autograd knows them.
    /// Random draws of the module come from the key. A module that writes to a buffer, or changes
    /// another attribute, is refused.
    pub fn run(
        &mut self,
        params: &[&Tensor],
        inputs: &[&Tensor],
        training: bool,
        random: &Key,
    ) -> Result<Vec<Tensor>, TensorError> {
        if params.len() != self.params.len() {
            let problem =
                format!("{} parameters were given, it has {}", params.len(), self.params.len());
            return Err(TensorError::invalid("a TorchScript module", problem));
        }
        let mut outputs: Vec<Tensor> = Vec::new();
        let seed = random.seed();
        // SAFETY: both lists are as long as stated and borrowed for the call; `push_output` gets
        // its `outputs`, which nothing else uses during the call.
        let status = unsafe {
            bm_script_run(
                self.handle,
                ffi::pointers(params).as_ptr(),
                ffi::pointers(inputs).as_ptr(),
                inputs.len(),
                training,
                &seed,
                ffi::push_output,
                std::ptr::from_mut(&mut outputs).cast(),
            )
        };
        check("the module's forward pass", status)?;
        Ok(outputs)
    }
}

/// An error inside a module has a traceback, whose last line is the message.
fn check(attempted: &str, status: Status) -> Result<(), TensorError> {
    ffi::check_by(attempted, status, |message| {
        let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.next_back().unwrap_or_default().trim_start_matches("RuntimeError: ").to_owned()
    })
}
