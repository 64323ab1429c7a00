//! Build script of every crate that makes programs, tests or examples: with it they find libtorch
//! when they start, with no environment variable set. Cargo hands link arguments only to the
//! package whose build script asks for them, so each of these crates names this file: `build =
//! "../tools/build/libtorch.rs"`.

use std::{env, path::Path, process};

pub(crate) fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(named) = env::var("LIBTORCH") else {
        stop("LIBTORCH is not set: build inside the checkout, where .cargo/config.toml sets it");
    };
    let libtorch = Path::new(&named).canonicalize().unwrap_or_else(|problem| {
        stop(&format!(
            "no libtorch at {named} ({problem}): run `make setup`, or set LIBTORCH to a libtorch \
             2.11.0"
        ))
    });
    // `make setup` may point its link at another libtorch later.
    println!("cargo:rerun-if-changed={named}/lib");

    // A program carried to another machine looks beside itself first, then where libtorch lay when
    // it was built.
    let macos = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    let here = if macos { "@loader_path" } else { "$ORIGIN" };
    println!("cargo:rustc-link-arg=-Wl,-rpath,{here}/libtorch/lib");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{here}/../libtorch/lib");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}/lib", libtorch.display());
    // For `bossman new`: its projects are built with the same one.
    println!("cargo:rustc-env=BOSSMAN_BUILT_WITH_LIBTORCH={}", libtorch.display());
}

fn stop(problem: &str) -> ! {
    eprintln!("{problem}");
    process::exit(1);
}
