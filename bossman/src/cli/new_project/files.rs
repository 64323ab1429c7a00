//! The files of a new project.

use super::dependency::{toml_path, Source};
use anyhow::Result;
use std::path::Path;

/// The name in the sources and templates that becomes the project's.
const NAME: &str = "hello";

/// A file, by its path in the project.
pub(super) struct ProjectFile {
    pub(super) path: &'static str,
    pub(super) text: String,
}

/// The whole project.
pub(super) fn project(name: &str, source: &Source, libtorch: &Path) -> Result<Vec<ProjectFile>> {
    let manifest = include_str!("Cargo.toml.template")
        .replace(NAME, name)
        .replace("RUST_VERSION", env!("CARGO_PKG_RUST_VERSION"))
        .replace("BOSSMAN_SOURCE", &source.keys("bossman")?)
        .replace("WORKER_SOURCE", &source.keys("worker")?);
    let config =
        include_str!("config.toml.template").replace("LIBTORCH_PATH", &toml_path(libtorch)?);
    // The versions of other crates that this BossMan was tested with.
    let lock = include_str!("../../../../Cargo.lock");
    let written =
        [("Cargo.toml", manifest), (".cargo/config.toml", config), ("Cargo.lock", lock.into())];
    let shared = [
        (".gitignore", "/target\n"),
        ("build.rs", include_str!("../../../../examples/hello/build.rs")),
        ("model.yaml", include_str!("../../../../examples/hello/model.yaml")),
        ("src/main.rs", include_str!("../../../../examples/hello/src/main.rs")),
        ("src/bin/worker.rs", include_str!("../../../../examples/hello/src/bin/worker.rs")),
        ("tests/learns.rs", include_str!("../../../../examples/hello/tests/learns.rs")),
    ];
    let shared = shared.map(|(path, text)| (path, text.replace(NAME, name)));
    let all = written.into_iter().chain(shared);
    Ok(all.map(|(path, text)| ProjectFile { path, text }).collect())
}
