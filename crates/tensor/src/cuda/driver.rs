//! NVIDIA's driver, asked directly. libtorch only says that there are no GPUs, whatever the reason.

use super::library::Library;
use std::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::path::Path;

const NAME: &str = "libcuda.so.1";
const SUCCESS: i32 = 0;

/// A version of CUDA, such as 13.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl CudaVersion {
    /// Reads a version as CUDA's functions give it: 13000 for 13.0.
    pub(super) fn from_number(number: i32) -> Self {
        let number = number.unsigned_abs();
        CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What the driver says about itself and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA that it supports.
    pub cuda: CudaVersion,
    /// The names of its GPUs, in CUDA's order. `CUDA_VISIBLE_DEVICES` hides others.
    pub gpus: Vec<String>,
}

/// Why a driver cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DriverError {
    /// There is none.
    Missing,
    /// It is there, but does not work. The reason is its own.
    Broken(String),
}

/// The functions of the driver that are used here, as CUDA's headers declare them.
struct Functions {
    init: unsafe extern "C" fn(u32) -> i32,
    version: unsafe extern "C" fn(*mut i32) -> i32,
    count: unsafe extern "C" fn(*mut i32) -> i32,
    get: unsafe extern "C" fn(*mut i32, i32) -> i32,
    name: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
    error_text: unsafe extern "C" fn(i32, *mut *const c_char) -> i32,
}

impl Driver {
    /// Asks the driver of this machine. `CUDA_ERROR_NO_DEVICE` is no error: there are no GPUs.
    pub(super) fn ask() -> Result<Self, DriverError> {
        let library = Library::open(Path::new(NAME)).map_err(|_| DriverError::Missing)?;
        let functions = Functions::of(&library).map_err(DriverError::Broken)?;
        const NO_DEVICE: i32 = 100;
        let mut number = 0;
        // SAFETY: the pointers are to live integers. `cuInit` takes no other flags than 0.
        unsafe {
            functions.check("asking for its version", (functions.version)(&mut number))?;
            let cuda = CudaVersion::from_number(number);
            let status = (functions.init)(0);
            if status == NO_DEVICE {
                return Ok(Driver { cuda, gpus: Vec::new() });
            }
            functions.check("starting it", status)?;
            functions.check("counting its GPUs", (functions.count)(&mut number))?;
            let gpus = (0..number).map(|gpu| functions.name_of(gpu)).collect();
            Ok(Driver { cuda, gpus })
        }
    }
}

impl Functions {
    fn of(library: &Library) -> Result<Self, String> {
        let function = |name: &CStr| {
            let missing = || format!("{NAME} has no {}", name.to_string_lossy());
            library.function(name).ok_or_else(missing)
        };
        type Pointer = *mut c_void;
        // SAFETY: these are the types of the functions of these names in CUDA's headers.
        unsafe {
            Ok(Functions {
                init: std::mem::transmute::<Pointer, unsafe extern "C" fn(u32) -> i32>(function(
                    c"cuInit",
                )?),
                version: std::mem::transmute::<Pointer, unsafe extern "C" fn(*mut i32) -> i32>(
                    function(c"cuDriverGetVersion")?,
                ),
                count: std::mem::transmute::<Pointer, unsafe extern "C" fn(*mut i32) -> i32>(
                    function(c"cuDeviceGetCount")?,
                ),
                get: std::mem::transmute::<Pointer, unsafe extern "C" fn(*mut i32, i32) -> i32>(
                    function(c"cuDeviceGet")?,
                ),
                name: std::mem::transmute::<
                    Pointer,
                    unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
                >(function(c"cuDeviceGetName")?),
                error_text: std::mem::transmute::<
                    Pointer,
                    unsafe extern "C" fn(i32, *mut *const c_char) -> i32,
                >(function(c"cuGetErrorString")?),
            })
        }
    }

    fn check(&self, doing: &str, status: i32) -> Result<(), DriverError> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the pointer is to a live pointer. The text it is set to is never freed.
        let text = unsafe {
            (self.error_text)(status, &mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let text = text.unwrap_or_else(|| "an unknown error".into());
        Err(DriverError::Broken(format!("{doing}: {text} (CUDA error {status})")))
    }

    fn name_of(&self, gpu: i32) -> String {
        let mut name = [0u8; 128];
        let mut device = 0;
        // SAFETY: the pointers are to a live integer and to a buffer of the given number of bytes,
        // of which the last one stays 0.
        let status = unsafe {
            match (self.get)(&mut device, gpu) {
                SUCCESS => (self.name)(name.as_mut_ptr().cast(), name.len() as i32 - 1, device),
                failed => failed,
            }
        };
        let text = CStr::from_bytes_until_nul(&name).ok().filter(|_| status == SUCCESS);
        text.map_or_else(|| "a GPU without a name".into(), |name| name.to_string_lossy().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_cuda_numbers_them() {
        assert_eq!(CudaVersion::from_number(13000).to_string(), "13.0");
        assert_eq!(CudaVersion::from_number(12080).to_string(), "12.8");
        assert!(CudaVersion::from_number(12080) < CudaVersion::from_number(13000));
    }
}
