//! Compiles the stand-in for NCCL with the compiler that builds our own C++.

use std::path::PathBuf;
use std::process::Command;

/// The source below the repository's root.
pub(crate) const SOURCE: &str = "crates/tensor/tests/fake/nccl.cpp";

/// Compiles the stand-in with these flags: `-DVERSION=..` selects another version, and `-DOLD` one
/// without most functions.
pub fn library(flags: &[&str]) -> PathBuf {
    let source = crate::repository(SOURCE);
    // Compile beside the test's own program. Several tests may do so at the same time.
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let name =
        format!("libfake_nccl{}.so", flags.join("").replace(|c: char| !c.is_alphanumeric(), "_"));
    let made = tempfile::Builder::new().prefix("fake_nccl").tempdir_in(&folder).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(compiler);
    command
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(made.path().join(&name));
    let output = command.arg(source).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Rename it over the old library. A file that is in use is left unchanged.
    let path = folder.join(&name);
    std::fs::rename(made.path().join(&name), &path).unwrap();
    path
}
