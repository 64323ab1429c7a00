//! Tests that no files of a crate import each other in a circle. Nobody can read, test or move one
//! file of a circle without all others. A type that shares its file with methods of the object that
//! uses it begins one.
//!
//! ```text
//! code (tokens without tests) -> imports (of a file) -> modules (of a crate) -> graph (circles)
//! ```

mod code;
mod graph;
mod imports;
mod modules;

use crate::writing::{root, sources};
use graph::largest_circle;
use modules::Crate;
use std::path::Path;

/// The folders with the files of each crate.
const CRATES: [&str; 10] = [
    "layerspec/src",
    "crates/pipeline/src",
    "crates/shm/src",
    "crates/link/src",
    "crates/runtime/src",
    "crates/tensor/src",
    "crates/data/src",
    "crates/simulator/tests/it",
    "worker/src",
    "bossman/src",
];

/// The files in the largest circle of a crate, by its folder, if it may have one. The numbers only
/// fall.
const ALLOWED: &[(&str, usize)] = &[];

/// Reads the files of a crate.
fn read(folder: &str) -> Crate {
    let src = root().join(folder);
    let name = |path: &Path| path.strip_prefix(&src).unwrap().to_string_lossy().replace('\\', "/");
    Crate::of(sources(&src).into_iter().map(|(path, text)| (name(&path), text)))
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    for folder in CRATES {
        let allowed = ALLOWED.iter().find(|(of, _)| *of == folder).map_or(0, |(_, size)| *size);
        let circle = largest_circle(&read(folder));
        let size = circle.files.len();
        assert!(
            size <= allowed,
            "{size} files of {folder} import each other in a circle, and {allowed} may. Move a \
             value apart from the code that uses it, into a file below both. The imports:\n{}",
            circle.arrows.join("\n")
        );
        assert!(
            size == allowed,
            "the largest circle of {folder} has {size} files: lower its number in `ALLOWED` in \
             tests/tests/it/circles/mod.rs from {allowed} to {size}"
        );
    }
}

/// The objects whose methods are spread over files, and how many of these files define types that
/// other files use, beside the one that defines the object. The numbers only fall.
const OBJECTS: [(&str, usize); 2] = [("BossMan", 0), ("Trainer", 0)];

/// Whether a file of code has methods of the object, and defines a type that other files use.
fn mixes(object: &str, text: &str) -> bool {
    let begins = |line: &str, words: &[&str]| words.iter().any(|word| line.starts_with(word));
    let is_impl = |line: &str| line.starts_with(&format!("impl {object} "));
    let is_type = |line: &str| {
        let (visible, rest) = line.split_once(' ').unwrap_or_default();
        visible.starts_with("pub") && begins(rest, &["struct ", "enum "])
    };
    let defines_it = text.lines().any(|line| line.ends_with(&format!("struct {object} {{")));
    !defines_it && text.lines().any(is_impl) && text.lines().any(is_type)
}

#[test]
fn a_file_holds_a_type_or_methods_of_the_object_that_uses_it() {
    let files = sources(&root().join("bossman/src"));
    for (object, allowed) in OBJECTS {
        let mixed = files.iter().filter(|(_, text)| mixes(object, text));
        let mixed: Vec<_> = mixed.map(|(path, _)| path.display().to_string()).collect();
        assert!(
            mixed.len() == allowed,
            "{} files define a type beside `impl {object}`, and {allowed} may. Move the type into \
             a file of its own, or lower the number in tests/tests/it/circles/mod.rs: {mixed:?}",
            mixed.len()
        );
    }
}

#[test]
fn a_type_beside_methods_of_an_object_is_found() {
    let methods = "impl BossMan {\n}\n";
    for (text, expected) in [
        (format!("pub(crate) struct Step {{\n}}\n{methods}"), true),
        (format!("pub enum Step {{\n}}\n{methods}"), true),
        (format!("struct Own;\n{methods}"), false),
        (format!("pub struct BossMan {{\n}}\npub struct Step;\n{methods}"), false),
        ("pub struct Step;\nimpl Step {\n}\n".to_string(), false),
    ] {
        assert_eq!(mixes("BossMan", &text), expected, "{text}");
    }
}

/// Returns the largest circle of a crate with these files.
fn circle(files: &[(&str, &str)]) -> Vec<String> {
    let sources = files.iter().map(|(name, text)| (name.to_string(), text.to_string()));
    largest_circle(&Crate::of(sources)).files.into_iter().collect()
}

#[test]
fn a_circle_is_found() {
    let a = ("a.rs", "use crate::b::B;\npub struct A(B);");
    let b = ("b.rs", "use crate::c::C;\npub struct B(C);");
    let c = ("c.rs", "use crate::a::A;\npub struct C(Box<A>);");
    assert_eq!(circle(&[a, b, c]), ["a.rs", "b.rs", "c.rs"]);
    assert!(circle(&[a, b, ("c.rs", "pub struct C;")]).is_empty());
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let root = ("lib.rs", "mod a;\nmod b;\npub use b::B;");
    let a = ("a.rs", "use crate::B;\npub struct A(B);");
    let b = ("b/mod.rs", "mod inner;\npub(crate) use inner::Inner as B;");
    let inner = ("b/inner.rs", "use crate::a::A;\npub struct Inner(Box<A>);");
    assert_eq!(circle(&[root, a, b, inner]), ["a.rs", "b/inner.rs"]);
    let all = ("b/mod.rs", "mod inner;\npub use inner::*;");
    let a = ("a.rs", "use super::b::Inner;\npub struct A(Inner);");
    assert_eq!(circle(&[root, a, all, inner]), ["a.rs", "b/inner.rs"]);
}

#[test]
fn a_path_in_code_counts() {
    let a = ("a.rs", "use crate::b;\npub fn a() { b::b() }");
    let b = ("b.rs", "pub fn b() { crate::a::a() }");
    assert_eq!(circle(&[a, b]), ["a.rs", "b.rs"]);
}

#[test]
fn every_part_of_an_import_counts() {
    let a = ("a.rs", "use crate::{b::{self, inner::B as C}, c};\npub struct A(C);");
    let b = ("b/inner.rs", "use crate::a::*;\npub struct B;");
    assert_eq!(circle(&[a, ("b/mod.rs", "mod inner;"), b]), ["a.rs", "b/inner.rs"]);
}

#[test]
fn arrows_between_parent_and_child_do_not_count() {
    let root = ("lib.rs", "mod a;\nuse a::A;\npub struct Root;");
    let a = ("a/mod.rs", "mod b;\nuse b::B;\nuse crate::Root;\npub struct A;");
    let b = ("a/b.rs", "use super::A;\npub struct B;");
    assert!(circle(&[root, a, b]).is_empty());
}

/// Asserts that a part of a file is no import, and that an import after it counts.
fn assert_unseen(part: &str) {
    let a = ("a.rs", "use crate::b::B;\npub struct A;");
    let alone = format!("{part}\npub struct B;");
    assert!(circle(&[a, ("b.rs", alone.as_str())]).is_empty(), "{part}");
    let before = format!("{part}\nuse crate::a::A;\npub struct B;");
    assert_eq!(circle(&[a, ("b.rs", before.as_str())]), ["a.rs", "b.rs"], "{part}");
}

#[test]
fn other_crates_do_not_count() {
    assert_unseen("use ::a::A;");
    assert_unseen("use a::A;");
}

#[test]
fn test_code_does_not_count() {
    assert_unseen("#[cfg(test)]\nuse crate::a::A;");
    assert_unseen("#[cfg(test)]\nmod tests { use crate::a::A; fn f() { if true {} } }");
    assert_unseen("#[cfg(all(test, unix))]\nfn f(of: [u8; 2]) { crate::a::A }");
    assert_unseen("#[cfg(doc)]\nuse crate::a::A;");
    let a = ("a.rs", "use crate::b::B;\npub struct A;");
    let tests = ("b/tests.rs", "use crate::a::A;\nuse super::B;");
    assert!(circle(&[a, ("b.rs", "mod tests;\npub struct B;"), tests]).is_empty());
}

#[test]
fn comments_and_texts_do_not_count() {
    assert_unseen("// crate::a::A");
    assert_unseen("/* crate::a::A */");
    assert_unseen(r#"const T: &str = "\" crate::a::A";"#);
    assert_unseen("const T: &str = r#\"\" crate::a::A\"#;");
    assert_unseen(r#"const T: [char; 3] = ['"', '\'', '\u{22}'];"#);
    assert_unseen("fn f<'a>(text: &'a str) -> &'static str { text }");
}
