//! The C++ functions that `crates/tensor/src/ffi.rs` declares.
//!
//! This package is outside the workspace, because clippy runs the build scripts of a workspace's
//! members anew: it would compile the C++ a second time, a minute and more.
