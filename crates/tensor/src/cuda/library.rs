//! Libraries of the dynamic loader, and their functions.

use std::ffi::{c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A loaded library. It stays for the life of the process, because libraries of CUDA register
/// themselves with others.
#[derive(Debug)]
pub(super) struct Library(*mut c_void);

// SAFETY: the handle is only given to `dlsym`, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a library. The error is the loader's reason.
    pub(super) fn open(library: &Path) -> Result<Self, String> {
        let name =
            CString::new(library.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: `name` is NUL-terminated. The library's initialisers run here; these are made to
        // be loaded this way. `dlerror` is read on the thread that failed.
        unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            if handle.is_null() {
                let message = libc::dlerror();
                return Err(if message.is_null() {
                    "no reason given".into()
                } else {
                    CStr::from_ptr(message).to_string_lossy().into_owned()
                });
            }
            Ok(Library(handle))
        }
    }

    /// The address of a function of this library, or of those that it was loaded with.
    pub(super) fn function(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is open, and the name ends with NUL.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_gives_the_loaders_reason() {
        let reason = Library::open(Path::new("/nowhere/libtorch_cuda.so")).unwrap_err();
        assert!(reason.contains("/nowhere/libtorch_cuda.so"), "{reason}");
    }

    #[test]
    fn a_function_is_found_by_its_name() {
        let folder = crate::cuda::libtorch_folder().unwrap();
        let ending = if cfg!(target_os = "macos") { "dylib" } else { "so" };
        let library = Library::open(&folder.join(format!("libc10.{ending}"))).unwrap();
        assert!(library.function(c"malloc").is_some());
        assert!(library.function(c"no_such_function").is_none());
    }
}
