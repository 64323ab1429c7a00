//! Tests that README.md, ARCHITECTURE.md and docs are true.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const CRATES: [&str; 13] = [
    "layerspec",
    "crates/pipeline",
    "crates/shm",
    "crates/link",
    "crates/runtime",
    "crates/tensor",
    "crates/data",
    "crates/simulator",
    "worker",
    "bossman",
    "examples",
    "tests",
    "bench",
];

/// The crates of the programs.
const PROGRAM: [&str; 9] =
    ["layerspec", "pipeline", "shm", "link", "runtime", "tensor", "data", "worker", "bossman"];

/// Returns a crate's name from its folder.
fn name(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap()
}

/// Returns the pages at the top of the tree and in `docs/`, by their paths from the root.
fn pages() -> Vec<String> {
    let top =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md", "bench/README.md"];
    let docs = files(&root().join("docs"), "md").into_iter();
    let in_docs = docs.map(|path| path.strip_prefix(root()).unwrap().display().to_string());
    top.map(String::from).into_iter().chain(in_docs).collect()
}

/// Returns the anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn headings(text: &str) -> impl Iterator<Item = String> + '_ {
    let outside_code = text.split("```").step_by(2).flat_map(str::lines);
    outside_code
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
}

/// Every `path/like/this` between backticks exists.
#[test]
fn every_file_that_is_named_exists() {
    for page in pages() {
        let text = read(&page);
        let quoted = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|t| t.contains('/') && !t.contains([' ', '*', ':', '$']));
        for name in quoted
            .filter(|t| t.ends_with('/') || t.rsplit('/').next().is_some_and(|f| f.contains('.')))
        {
            let in_bench = page.starts_with("bench/") && root().join("bench").join(name).exists();
            assert!(in_bench || root().join(name).exists(), "{page} names `{name}`: no such file");
        }
    }
}

/// Every file that the comment of a module names exists, seen from the module or from the top.
#[test]
fn every_file_that_a_module_names_exists() {
    for folder in CRATES {
        for (path, text) in sources(&root().join(folder)) {
            let comment: Vec<_> = text.lines().filter(|line| line.starts_with("//!")).collect();
            let comment = comment.join("\n");
            let names = comment.split('`').skip(1).step_by(2).filter(|name| {
                [".rs", ".py", ".md"].iter().any(|ending| name.ends_with(ending))
                    && !name.contains([' ', '*', ':', '$'])
            });
            for name in names {
                let beside = path.parent().unwrap().join(name);
                assert!(
                    beside.exists() || root().join(name).exists(),
                    "{} names `{name}`: no such file",
                    path.display()
                );
            }
        }
    }
}

/// Only the command line and the console print. Everything else emits events.
#[test]
fn the_console_alone_prints() {
    let may_print = ["src/cli/", "src/events/console.rs", "src/output.rs"];
    for (path, text) in sources(&root().join("bossman/src")) {
        let place = path.display().to_string();
        if may_print.iter().any(|part| place.contains(part)) {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap();
        let code: String = code.split_whitespace().collect();
        for printing in ["println!", "stdout()", "stderr()"] {
            assert!(!code.contains(printing), "{place} has `{printing}`: emit an event");
        }
        for used in code.split("output::").skip(1) {
            // A function, or a list of what is imported.
            let used = match used.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap(),
                None => used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap(),
            };
            let printing = used
                .split(',')
                .find(|name| *name == "print" || name.starts_with("print_") || *name == "warn");
            assert_eq!(printing, None, "{place} prints: emit an event");
        }
    }
}

/// Every link leads to a file, and to a heading of it. Pages of the book link to each other only,
/// because the book has no other files.
#[test]
fn every_link_leads_somewhere() {
    for page in pages() {
        let text = read(&page);
        let folder = root().join(&page).parent().unwrap().to_path_buf();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root().join(&page) } else { folder.join(file) };
            let path = path.canonicalize().unwrap_or_else(|e| panic!("{page}: {target}: {e}"));
            let inside = path.starts_with(root().join("docs").canonicalize().unwrap());
            assert!(inside || !page.starts_with("docs/"), "{page}: {target} is not in the book");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(headings(&text).any(|h| h == heading), "{page}: {target}: no such heading");
            }
        }
    }
}

/// The number of layer kinds that README states is the one that was compared with PyTorch.
#[test]
fn the_number_of_layer_kinds_is_counted() {
    let parity = read("docs/reference/parity.md");
    let kinds =
        parity.lines().filter(|line| line.starts_with("| ") && !line.contains("---")).count();
    // One line is the head of the table.
    let stated = format!("{} kinds of layer", kinds - 1);
    assert!(parity.contains(&stated) && read("README.md").contains(&stated), "{stated}");
}

/// Every page of the book is in its table of contents.
#[test]
fn the_book_has_every_page() {
    let summary = read("docs/SUMMARY.md");
    for page in pages() {
        if let Some(name) = page.strip_prefix("docs/").filter(|name| *name != "SUMMARY.md") {
            assert!(summary.contains(&format!("({name})")), "docs/SUMMARY.md leaves out {name}");
        }
    }
}

/// Every message that the page of symptoms quotes is in the code.
#[test]
fn every_message_of_the_symptoms_is_in_the_code() {
    let code: String = PROGRAM
        .iter()
        .map(|program| CRATES.iter().find(|folder| name(folder) == *program).unwrap())
        .flat_map(|folder| sources(&root().join(folder).join("src")))
        .map(|(_, text)| text + &read("tools/build/libtorch.rs"))
        .collect();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = words(&code.replace("\\\n", " "));
    let page = read("docs/guide/troubleshooting.md");
    let symptoms = page.split("**").skip(1).step_by(2);
    for quoted in symptoms.flat_map(|symptom| symptom.split('`').skip(1).step_by(2)) {
        let quoted = words(quoted);
        let parts =
            quoted.split(['.', '(', ')', ':']).flat_map(|part| part.split(char::is_numeric));
        for part in parts.map(str::trim).filter(|part| part.contains(' ')) {
            assert!(code.contains(part), "no message has the words `{part}` of `{quoted}`");
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
            "simulator" => &["layerspec", "pipeline", "testkit"],
            "data" => &["layerspec", "pipeline", "tensor"],
            "link" => &["layerspec", "pipeline", "shm"],
            "runtime" => &["layerspec", "pipeline", "link"],
            "worker" | "bossman" => &["layerspec", "pipeline", "link", "runtime", "tensor", "data"],
            _ => &[
                "layerspec",
                "pipeline",
                "shm",
                "link",
                "runtime",
                "tensor",
                "data",
                "worker",
                "bossman",
                "testkit",
            ],
        }
    };
    for folder in CRATES {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let normal =
            manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap();
        let ours =
            |used: &&str| CRATES.iter().any(|folder| name(folder) == *used) || *used == "testkit";
        let used: BTreeSet<&str> =
            normal.lines().filter_map(|l| l.split(['.', ' ', '=']).next()).filter(ours).collect();
        for dependency in used {
            assert!(
                allowed(name(folder)).contains(&dependency),
                "{folder} depends on {dependency}"
            );
        }
    }
}

/// Returns whether a line has a word, or a word that begins with it. The end of a longer word does
/// not count.
fn has(line: &str, word: &str) -> bool {
    let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| begins(at))
}

/// The section "Absences" of ARCHITECTURE.md holds.
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
                let found = code
                    .lines()
                    .find(|line| has(line, word) && !line.trim_start().starts_with("//"));
                assert!(
                    found.is_none(),
                    "`{word}` in {}: {}",
                    path.display(),
                    found.unwrap_or_default()
                );
            }
        }
    }
}

/// Every `make` target and every flag of our programs that a page shows in a command exists.
#[test]
fn every_command_that_is_shown_exists() {
    for page in pages() {
        let text = read(&page);
        let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
        for line in blocks.flat_map(str::lines) {
            let problem = problem_of(line);
            assert!(problem.is_none(), "{page}: `{line}`: {}", problem.unwrap_or_default());
        }
    }
}

/// Returns why a command of a page cannot be right.
fn problem_of(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().skip_while(|w| w.contains('=')).collect();
    let program = words[0].rsplit('/').next().unwrap();
    // The first file that does not exist.
    let no_file = || words.iter().find(|w| w.contains("examples/") && !root().join(w).exists());
    let flags = words.iter().filter_map(|w| w.strip_prefix("--"));
    let mut flags = flags.map(|flag| flag.split('=').next().unwrap()).filter(|f| !f.is_empty());
    let mut no_flag = |code: &str| {
        let known = |flag: &str| {
            code.contains(&format!("{}:", flag.replace('-', "_")))
                || code.contains(&format!("long = \"{flag}\""))
        };
        flags.find(|flag| !known(flag)).map(str::to_string)
    };
    match program {
        "make" => {
            let target = format!("\n{}:", words[1]);
            (!read("Makefile").contains(&target)).then(|| "no such target".into())
        }
        "bossman" => {
            let code: String = sources(&root().join("bossman/src/cli"))
                .into_iter()
                .map(|(_, text)| text)
                .collect();
            no_file().map(|file| format!("no file {file}")).or_else(|| no_flag(&code))
        }
        "worker" => {
            let is_built = ["target/release/worker", "worker"].contains(&words[0]);
            (!is_built)
                .then(|| "not where `make build` puts it".into())
                .or_else(|| no_flag(&read("worker/src/program/options.rs")))
        }
        "cargo" => {
            let after = |flag: &str| words.iter().skip_while(|w| **w != flag).nth(1);
            let path = after("--path").or(after("-p"))?;
            (!root().join(path).join("Cargo.toml").exists()).then(|| format!("no crate {path}"))
        }
        "cd" => None,
        other => Some(format!("`{other}` is not a program of ours")),
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

/// In code only diagrams of schedules may be longer. [`prose`] says what may be longer in a page.
/// In other files comments end by column 100.
#[test]
fn no_line_is_longer_than_100_columns() {
    let folders = CRATES.iter().chain(&["crates/testkit", "fuzz/fuzz_targets", "tools", "docs"]);
    for folder in folders.map(|folder| root().join(folder)) {
        for path in ["rs", "py"].iter().flat_map(|extension| files(&folder, extension)) {
            let text = std::fs::read_to_string(&path).unwrap();
            let long = |(_, line): &(usize, &str)| {
                line.chars().count() > 100 && !line.starts_with("//! worker ")
            };
            if let Some((number, line)) = text.lines().enumerate().find(long) {
                panic!("{}:{} is longer than 100 columns: {line}", path.display(), number + 1);
            }
        }
    }
    let below = ["bench", "tests", "examples"].map(|folder| files(&root().join(folder), "md"));
    let beside = pages().into_iter().map(|page| root().join(page));
    // `data` folders hold fetched files. `crates/data` and `bossman/src/data` do not.
    let is_ours = |path: &PathBuf| {
        let path = path.strip_prefix(root()).unwrap();
        let is_source = path.starts_with("crates") || path.starts_with("bossman");
        is_source || !path.iter().any(|part| part == "data")
    };
    for path in below.into_iter().flatten().chain(beside).filter(is_ours) {
        let text = std::fs::read_to_string(&path).unwrap();
        let long = prose(&text).find(|line| line.chars().count() > 100).unwrap_or_default();
        assert!(long.is_empty(), "{} is longer than 100 columns: {long}", path.display());
    }
    let folders = CRATES.iter().chain(&["crates/testkit", "examples", "tests"]);
    let commented = folders.map(|folder| root().join(folder)).flat_map(|folder| {
        ["yaml", "toml", "cpp", "h"].iter().flat_map(move |extension| files(&folder, extension))
    });
    let single = ["Cargo.toml", ".cargo/config.toml", "Makefile", ".ci/run"];
    for path in commented.filter(is_ours).chain(single.iter().map(|file| root().join(file))) {
        let text = std::fs::read_to_string(&path).unwrap();
        let is_comment = |line: &&str| ["#", "//"].iter().any(|c| line.trim_start().starts_with(c));
        let long = text.lines().filter(is_comment).find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "{} has a comment beyond column 100", path.display());
    }
}

/// Returns the lines of a page without tables, fenced code, lines that hold only a link or a
/// picture, and the manual of the layers, which comes from comments in Rust.
fn prose(text: &str) -> impl Iterator<Item = &str> + '_ {
    let by_hand = text.split("<!-- layers: ").step_by(2);
    let outside_code = by_hand.flat_map(|part| part.split("```").step_by(2)).flat_map(str::lines);
    outside_code.filter(|line| !line.starts_with('|') && !is_one_link(line))
}

/// Returns whether a line holds only a link or a picture.
fn is_one_link(line: &str) -> bool {
    line.starts_with(['[', '!']) && !line.rsplit("](").next().unwrap().contains(' ')
}

/// Returns every Rust file below a folder, with its text.
pub(crate) fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let text = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
    files(folder, "rs").into_iter().map(text).collect()
}

/// Returns every file below a folder whose name has this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found
}
