//! NCCL's functions, as nccl.h declares them, found in the library when it is loaded.

use crate::nccl::error::NcclError;
use crate::nccl::version::{MIN_VERSION, UNIQUE_ID_BYTES};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::path::Path;

/// `ncclResult_t`: what was asked for is done, or under way.
pub(super) const SUCCESS: c_int = 0;
/// `ncclResult_t`: another process has ended, or the network to it fails.
const REMOTE_ERROR: c_int = 6;
/// `ncclResult_t`: a communicator whose calls do not block is still at the last one.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclDataType_t`: float32.
pub(super) const FLOAT: c_int = 7;
/// `ncclRedOp_t`: the sum.
pub(super) const SUM: c_int = 0;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct UniqueId {
    pub(super) bytes: [u8; UNIQUE_ID_BYTES],
}

/// `ncclConfig_t` as of 2.14. Later versions have more at its end, and take what is not there from
/// their defaults, by its size.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    /// Calls do not block.
    pub(super) fn asynchronous() -> Self {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: MIN_VERSION, blocking: 0 }
    }
}

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Comm,
    stream: *mut c_void,
) -> c_int;
type AsyncError = unsafe extern "C" fn(Comm, *mut c_int) -> c_int;
type Abort = unsafe extern "C" fn(Comm) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type LastError = unsafe extern "C" fn(Comm) -> *const c_char;

/// The functions that are used.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) get_version: GetVersion,
    pub(super) get_unique_id: GetUniqueId,
    pub(super) init_rank: InitRank,
    pub(super) all_reduce: AllReduce,
    pub(super) async_error: AsyncError,
    pub(super) abort: Abort,
    error_string: ErrorString,
    last_error: LastError,
}

impl Symbols {
    pub(super) fn load(file: &Path) -> Result<Self, NcclError> {
        // SAFETY: the library's initialisers run here. The user who named it or set up the loader's
        // path vouches that it is NCCL, which is made to be loaded this way.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let library = library
            .map_err(|e| NcclError::Load { file: file.to_path_buf(), reason: explain(&e) })?;
        let found = |symbol: &'static str| {
            // SAFETY: only its address is taken here.
            let address = unsafe { library.get::<*mut c_void>(symbol.as_bytes()) };
            let address =
                address.ok().map(|address| address.into_raw()).filter(|address| !address.is_null());
            address.ok_or_else(|| NcclError::Symbol { file: file.to_path_buf(), symbol })
        };
        // SAFETY: each address is that of NCCL's function of that name, whose declaration in nccl.h
        // is the type here, the same in every version from 2.14 on; and an address is as large as a
        // pointer to a function.
        let symbols = unsafe {
            Symbols {
                get_version: std::mem::transmute::<*mut c_void, GetVersion>(found(
                    "ncclGetVersion",
                )?),
                get_unique_id: std::mem::transmute::<*mut c_void, GetUniqueId>(found(
                    "ncclGetUniqueId",
                )?),
                init_rank: std::mem::transmute::<*mut c_void, InitRank>(found(
                    "ncclCommInitRankConfig",
                )?),
                all_reduce: std::mem::transmute::<*mut c_void, AllReduce>(found("ncclAllReduce")?),
                async_error: std::mem::transmute::<*mut c_void, AsyncError>(found(
                    "ncclCommGetAsyncError",
                )?),
                abort: std::mem::transmute::<*mut c_void, Abort>(found("ncclCommAbort")?),
                error_string: std::mem::transmute::<*mut c_void, ErrorString>(found(
                    "ncclGetErrorString",
                )?),
                last_error: std::mem::transmute::<*mut c_void, LastError>(found(
                    "ncclGetLastError",
                )?),
            }
        };
        // It has threads of its own, so it stays for the life of the process.
        std::mem::forget(library);
        Ok(symbols)
    }

    /// Turns what a call gave into a result.
    pub(super) fn check(&self, attempted: &'static str, status: c_int) -> Result<(), NcclError> {
        match status {
            SUCCESS => Ok(()),
            REMOTE_ERROR => Err(NcclError::Remote { attempted, reason: self.message(status) }),
            failed => Err(NcclError::Call { attempted, reason: self.message(failed) }),
        }
    }

    fn message(&self, status: c_int) -> String {
        // SAFETY: the first gives a constant string for every number, the second null or a string
        // that NCCL keeps until the thread's next call; it takes no communicator, as the error may
        // be of making one.
        let [general, last] = unsafe {
            [(self.error_string)(status), (self.last_error)(std::ptr::null_mut())].map(|text| {
                let text = (!text.is_null())
                    .then(|| CStr::from_ptr(text).to_string_lossy().trim().to_string());
                text.unwrap_or_default()
            })
        };
        match last.lines().next() {
            Some(last) if !last.is_empty() => format!("{general} ({last})"),
            _ => general,
        }
    }
}

fn explain(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(reason) => reason.to_string(),
        None => error.to_string(),
    }
}
