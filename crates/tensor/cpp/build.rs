//! Compiles the C++ files against the libtorch that torch-sys was built with.

use std::path::Path;

fn main() {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    // torch-sys hands its library folder on to the crates that depend on it.
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        fail("torch-sys did not say where libtorch is; run `make setup`");
    };
    let include = Path::new(&lib).join("../include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .opt_level(2)
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .file("all.cpp")
        .compile("bossman_shim");
}

const FILES: [&str; 7] =
    ["all.cpp", "aten.cpp", "shim.cpp", "script.cpp", "transfer.cpp", "guarded.h", "patches.h"];

fn fail(message: &str) -> ! {
    println!("cargo:warning={message}");
    std::process::exit(1);
}
