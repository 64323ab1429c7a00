//! Tests the projects that `bossman new` writes. Their sources are `examples/hello`, which has
//! tests of its own.

use super::{bossman, example, said};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::assert_golden;

/// A folder with what a build needs of libtorch, as far as `bossman new` looks.
fn libtorch(place: &Path) -> String {
    let suffix = std::env::consts::DLL_SUFFIX;
    std::fs::create_dir_all(place.join("libtorch/include")).unwrap();
    std::fs::create_dir_all(place.join("libtorch/lib")).unwrap();
    std::fs::write(place.join(format!("libtorch/lib/libtorch_cpu{suffix}")), "").unwrap();
    place.join("libtorch").to_str().unwrap().to_string()
}

/// Runs `bossman new` in a temporary folder, and returns the project's folder.
fn project(place: &Path, name: &str, more: &[&str]) -> (PathBuf, String) {
    let (folder, libtorch) = (place.join(name), libtorch(place));
    let arguments = [&["new", folder.to_str().unwrap()], more].concat();
    let (text, _) = said(bossman(&arguments, &[("LIBTORCH", &libtorch)]), 0);
    (folder, text)
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

#[test]
fn a_project_has_the_sources_of_the_example_and_a_manifest_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let git = ["--git", "https://git.test/bossman", "--rev", "abc"];
    let (folder, text) = project(place.path(), "my-model", &git);
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let expected_lines = format!(
        "  bossman   https://git.test/bossman at abc\n  libtorch  {}\n",
        libtorch(place.path())
    );
    assert!(text.contains(&expected_lines), "{text}");

    let config = read(".cargo/config.toml").replace(place.path().to_str().unwrap(), "/PLACE");
    let files = [("Cargo.toml", read("Cargo.toml")), (".cargo/config.toml", config)];
    let files = files.map(|(path, text)| format!("==> {path}\n{text}"));
    assert_golden!("new_project.txt", &files.join("\n"));

    for path in ["build.rs", "model.yaml", "src/main.rs", "src/bin/worker.rs", "tests/learns.rs"] {
        let source = std::fs::read_to_string(example("hello/") + path).unwrap();
        assert_eq!(read(path), source.replace("hello", "my-model"), "{path}");
    }
}

/// The workspace formats its code with settings of its own; a new project has none.
#[test]
fn the_sources_have_the_usual_format() {
    let place = tempfile::tempdir().unwrap();
    let (folder, _) = project(place.path(), "hello", &["--git", "https://git.test/bossman"]);
    let mut format = Command::new(env!("CARGO"));
    format.args(["fmt", "--check"]).current_dir(folder);
    said(format.output().unwrap(), 0);
}

/// Cargo reads the manifest, and finds every crate in the versions of this checkout.
#[test]
fn cargo_resolves_a_project_without_a_network() {
    let place = tempfile::tempdir().unwrap();
    let checkout = checkout();
    let (folder, _) = project(place.path(), "other", &["--path", checkout.to_str().unwrap()]);
    let crates = |folder: &Path| -> BTreeSet<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--workspace", "--prefix=none", "--format={p}"]);
        let (tree, _) = said(cargo.current_dir(folder).output().unwrap(), 0);
        // Crates of a registry; those of a checkout have their folder beside the version.
        tree.lines().filter(|line| !line.contains(['(', '/'])).map(String::from).collect()
    };
    let (used, tested) = (crates(&folder), crates(&checkout));
    let others: Vec<_> = used.difference(&tested).collect();
    assert!(used.len() > 100 && others.is_empty(), "{} crates, {others:?}", used.len());
}

#[test]
fn the_versions_of_a_project_are_those_of_the_workspace() {
    let workspace = std::fs::read_to_string(checkout().join("Cargo.toml")).unwrap();
    let template = "bossman/src/cli/new_project/Cargo.toml.template";
    let template = std::fs::read_to_string(checkout().join(template)).unwrap();
    for crate_name in ["anyhow", "tch"] {
        let line = |text: &str| {
            text.lines()
                .find(|line| line.starts_with(&format!("{crate_name} = ")))
                .unwrap()
                .to_string()
        };
        assert_eq!(line(&template), line(&workspace));
    }
}

#[test]
fn what_cannot_become_a_project_is_refused_before_anything_is_written() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (torch, git) = (libtorch(place.path()), ["--git", "https://git.test/bossman"]);
    let refused = |folder: &str, more: &[&str], torch: &str| {
        let arguments = [&["new", folder], more].concat();
        said(bossman(&arguments, &[("LIBTORCH", torch)]), 1).1
    };
    std::fs::create_dir(file("full")).unwrap();
    std::fs::write(file("full/file"), "").unwrap();
    let errors = [
        (refused(&file("full"), &git, &torch), "is not empty"),
        (refused(&file("2x"), &git, &torch), "`2x` cannot be the name of a program"),
        (refused(&file("x"), &["--name", "worker"], &torch), "`worker` cannot be the name"),
        (
            refused(&file("x"), &["--path", &file("full")], &torch),
            "no checkout of BossMan is there",
        ),
        (refused(&file("x"), &git, "/no/such"), "LIBTORCH=/no/such: no libtorch to build with"),
    ];
    for (error, expected) in errors {
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
    assert!(!place.path().join("x").exists() && !place.path().join("2x").exists());
}
