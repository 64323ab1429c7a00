//! Tests that README.md, ARCHITECTURE.md and docs are true.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const CRATES: [&str; 12] = [
    "layerspec",
    "crates/pipeline",
    "crates/shm",
    "crates/link",
    "crates/runtime",
    "crates/tensor",
    "crates/data",
    "worker",
    "bossman",
    "examples",
    "tests",
    "bench",
];

/// The crates of the programs.
const PROGRAM: [&str; 9] = ["layerspec", "pipeline", "shm", "link", "runtime", "tensor", "data", "worker", "bossman"];

/// Returns a crate's name from its folder.
fn name(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap()
}

/// Every `path/like/this` between backticks, and every link target, exists.
#[test]
fn every_file_that_is_named_exists() {
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "ARCHITECTURE.md",
        "docs/model-file.md",
        "docs/run-file.md",
        "docs/commands.md",
        "docs/pool.md",
        "docs/performance.md",
    ] {
        let text = read(page);
        let folder = root().join(page).parent().unwrap().to_path_buf();
        let quoted =
            text.split('`').skip(1).step_by(2).filter(|t| t.contains('/') && !t.contains([' ', '*', ':', '$']));
        for name in quoted.filter(|t| t.ends_with('/') || t.rsplit('/').next().is_some_and(|f| f.contains('.'))) {
            assert!(root().join(name).exists(), "{page} names `{name}`, which does not exist");
        }
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !target.starts_with("http") {
                let file = target.split('#').next().unwrap();
                assert!(folder.join(file).exists(), "{page} links to {target}, which does not exist");
            }
        }
    }
}

/// The dependencies between our crates are those that the page's arrows allow.
#[test]
fn imports_run_one_way() {
    let allowed = |name: &str| -> &[&str] {
        match name {
            "layerspec" | "shm" => &[],
            "pipeline" | "tensor" => &["layerspec"],
            "data" => &["layerspec", "pipeline", "tensor"],
            "link" => &["layerspec", "pipeline", "shm"],
            "runtime" => &["layerspec", "pipeline", "link"],
            "worker" | "bossman" => &["layerspec", "pipeline", "link", "runtime", "tensor", "data"],
            _ => &["layerspec", "pipeline", "shm", "link", "runtime", "tensor", "data", "worker", "bossman", "testkit"],
        }
    };
    for folder in CRATES {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let normal = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap();
        let ours = |used: &&str| CRATES.iter().any(|folder| name(folder) == *used) || *used == "testkit";
        let used: BTreeSet<&str> =
            normal.lines().filter_map(|l| l.split(['.', ' ', '=']).next()).filter(ours).collect();
        for dependency in used {
            assert!(allowed(name(folder)).contains(&dependency), "{folder} depends on {dependency}");
        }
    }
}

/// Returns whether a line has a word, or a word that begins with it. The end of a longer word does
/// not count.
fn has(line: &str, word: &str) -> bool {
    let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| begins(at))
}

/// The section "What is nowhere" holds.
#[test]
fn forbidden_words_are_absent() {
    let absent = [
        ("unsafe ", &["layerspec", "pipeline", "link", "runtime", "data", "worker", "bossman"][..]),
        ("std::time", &["layerspec", "pipeline"]),
        ("Instant", &["layerspec", "pipeline"]),
        ("rand::", &["layerspec", "pipeline"]),
        ("UdpSocket", &["layerspec", "pipeline", "runtime", "tensor", "data", "worker", "bossman"]),
        ("TcpStream", &PROGRAM),
        ("tch::", &["layerspec", "pipeline", "link", "runtime"]),
        ("StageSession", &["layerspec", "link", "tensor", "data", "bossman"]),
        ("BossSession", &["layerspec", "link", "tensor", "data", "worker"]),
        ("pickle", &PROGRAM),
    ];
    for (word, crates) in absent {
        for folder in CRATES.iter().filter(|folder| crates.contains(&name(folder))) {
            for (path, text) in sources(&root().join(folder).join("src")) {
                let code = text.split("#[cfg(test)]").next().unwrap();
                let found = code.lines().find(|line| has(line, word) && !line.trim_start().starts_with("//"));
                assert!(found.is_none(), "`{word}` in {}: {}", path.display(), found.unwrap_or_default());
            }
        }
    }
}

/// Every `make` target and every flag of our programs that a page shows in a command exists.
#[test]
fn every_command_that_is_shown_exists() {
    let makefile = read("Makefile");
    let command: String = sources(&root().join("bossman/src/cli")).into_iter().map(|(_, text)| text).collect();
    for page in ["README.md", "CONTRIBUTING.md", "docs/run-file.md", "docs/commands.md", "docs/pool.md"] {
        let text = read(page);
        let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
        for line in blocks.flat_map(str::lines) {
            let words: Vec<&str> = line.split_whitespace().skip_while(|w| w.contains('=')).collect();
            let program = words[0].rsplit('/').next().unwrap();
            match program {
                "make" => assert!(makefile.contains(&format!("\n{}:", words[1])), "{page}: no target for `{line}`"),
                "bossman" => {
                    for flag in words.iter().filter_map(|w| w.strip_prefix("--")) {
                        let field = flag.replace('-', "_");
                        assert!(command.contains(&format!("{field}:")), "{page}: no flag for `{line}`");
                    }
                    for file in words.iter().filter(|w| w.contains("examples/")) {
                        assert!(root().join(file).exists(), "{page}: no file for `{line}`");
                    }
                }
                // The page shows the command as the boss prints it.
                "worker" => {
                    assert!(
                        read("bossman/src/workers/host.rs").contains(&format!(" {}\"", words[0])),
                        "{page}: `{line}`"
                    );
                    for flag in words.iter().filter_map(|w| w.strip_prefix("--")) {
                        let field = format!("{}:", flag.replace('-', "_"));
                        assert!(read("worker/src/options.rs").contains(&field), "{page}: no flag for `{line}`");
                    }
                }
                other => panic!("{page}: `{other}` is not a program of ours"),
            }
        }
    }
}

/// A file that is too long for one reader is split before it lands.
#[test]
fn no_source_file_is_very_long() {
    for name in CRATES {
        for (path, text) in sources(&root().join(name)) {
            let lines = text.lines().count();
            assert!(lines <= 600, "{} has {lines} lines; is it two ideas?", path.display());
        }
    }
}

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}
