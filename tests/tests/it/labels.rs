//! Tests that the pages of formats and the tests name the same invariants.
//!
//! A page in `docs/reference/formats/` defines a label at the beginning of a point of a list, in
//! bold. Comments of tests cite the labels.

use crate::writing::{root, sources};
use std::collections::{BTreeMap, BTreeSet};

const PAGES: &str = "docs/reference/formats";
/// The folders whose code may cite labels.
const CODE: [&str; 7] = ["bench", "bossman", "crates", "examples", "layerspec", "tests", "worker"];

/// Returns the prefix of a label: capital letters before a hyphen and a number.
fn prefix(word: &str) -> Option<&str> {
    let (prefix, number) = word.split_once('-')?;
    let is_label = !prefix.is_empty()
        && prefix.chars().all(|c| c.is_ascii_uppercase())
        && !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit());
    is_label.then_some(prefix)
}

/// Returns the words of a text that may be labels.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
}

/// Returns the pages, by their names.
fn pages() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(root().join(PAGES)).unwrap();
    let page = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        (path.file_name().unwrap().to_str().unwrap().to_string(), text)
    };
    entries.map(page).collect()
}

/// Returns the labels that the pages define.
fn defined(pages: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let mut labels = BTreeSet::new();
    for (page, text) in pages {
        let begins = text.lines().filter_map(|line| line.strip_prefix("- **"));
        for label in begins.filter_map(|rest| rest.split(' ').next()) {
            assert!(prefix(label).is_some(), "{page}: `{label}` is no label");
            assert!(labels.insert(label), "{page}: {label} is defined twice");
        }
    }
    labels
}

/// Returns the tests in a source: all of a file of tests, or the part that only tests have.
fn tests_of<'a>(path: &str, text: &'a str) -> &'a str {
    if path.split('/').any(|part| part == "tests" || part == "tests.rs") {
        return text;
    }
    let marks = ["#[cfg(test)]", "#[cfg(all(test"];
    marks.iter().find_map(|mark| text.split_once(*mark)).map_or("", |(_, tests)| tests)
}

/// Returns the comments of a source.
fn comments(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_start).filter(|line| line.starts_with("//"))
}

#[test]
fn tests_cite_every_label_and_no_other() {
    let pages = pages();
    let labels = defined(&pages);
    assert!(labels.len() > 30, "{labels:?}");
    let prefixes: BTreeSet<&str> = labels.iter().filter_map(|label| prefix(label)).collect();
    let is_cited = |word: &&str| prefix(word).is_some_and(|prefix| prefixes.contains(prefix));
    for (page, text) in &pages {
        let strange = words(text).filter(is_cited).find(|word| !labels.contains(word));
        assert_eq!(strange, None, "{page} names a label that no page defines");
    }
    let mut uncited = labels.clone();
    for (path, text) in CODE.iter().flat_map(|folder| sources(&root().join(folder))) {
        let path = path.strip_prefix(root()).unwrap().display().to_string();
        let strange =
            comments(&text).flat_map(words).filter(is_cited).find(|word| !labels.contains(word));
        assert_eq!(strange, None, "{path} cites a label that no page defines");
        for word in comments(tests_of(&path, &text)).flat_map(words) {
            uncited.remove(word);
        }
    }
    assert!(uncited.is_empty(), "no test cites {uncited:?}");
}
