//! Compiles the C++ files against the libtorch that torch-sys was built with, and lets our own
//! tests find that libtorch when they run.

#[path = "../../tools/build/libtorch.rs"]
mod libtorch;

use std::path::Path;

fn main() {
    libtorch::main();
    println!("cargo:rerun-if-changed=cpp");
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
        .files(["cpp/aten.cpp", "cpp/shim.cpp", "cpp/script.cpp", "cpp/transfer.cpp"])
        .compile("bossman_shim");
}

fn fail(message: &str) -> ! {
    println!("cargo:warning={message}");
    std::process::exit(1);
}
