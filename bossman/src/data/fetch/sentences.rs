//! Sentences and phrases of the Ding dictionary, whose lines are `de | de :: en | en`.

use super::files;
use super::prose::{ends, single_spaced, Pair};
use crate::BossManError;
use std::path::Path;

/// The first way to say it of every entry.
pub(super) fn phrases(from: &Path) -> Result<Vec<Pair>, BossManError> {
    each_entry(from, |english, german, pairs| pairs.extend(english.first().cloned().zip(german.first().cloned())))
}

/// Whole sentences only, and of these all ways that both languages have.
pub(super) fn sentences(from: &Path) -> Result<Vec<Pair>, BossManError> {
    each_entry(from, |english, german, pairs| {
        let both = english.into_iter().zip(german);
        pairs.extend(both.filter(|(one, other)| ends(one) && ends(other)));
    })
}

fn each_entry(from: &Path, take: fn(Vec<String>, Vec<String>, &mut Vec<Pair>)) -> Result<Vec<Pair>, BossManError> {
    let text = files::text(&from.join("usr/share/trans/de-en"))?;
    let mut pairs = Vec::new();
    for (english, german) in text.lines().filter(|line| !line.starts_with('#')).flat_map(entries) {
        take(english, german, &mut pairs);
    }
    Ok(pairs)
}

/// The entries of a line, where both languages have as many: the ways to say it in English, and in German.
fn entries(line: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let Some((german, english)) = line.split_once("::") else { return Vec::new() };
    let entries = |text: &str| text.split('|').map(|entry| entry.split(';').map(plain).collect()).collect::<Vec<_>>();
    let (german, english) = (entries(german), entries(english));
    if german.len() != english.len() {
        return Vec::new();
    }
    english.into_iter().zip(german).collect()
}

/// Without remarks in brackets, and with single spaces.
fn plain(entry: &str) -> String {
    let mut text = String::with_capacity(entry.len());
    let mut rest = entry;
    while let Some(open) = rest.find(['{', '[', '<', '(']) {
        let close = match rest.as_bytes()[open] {
            b'{' => '}',
            b'[' => ']',
            b'<' => '>',
            _ => ')',
        };
        text.push_str(&rest[..open]);
        text.push(' ');
        let end = rest[open..].find(close).map_or(rest.len(), |length| open + length + 1);
        rest = &rest[end..];
    }
    text.push_str(rest);
    single_spaced(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_dictionary_gives_its_entries() {
        let folder = tempfile::tempdir().unwrap();
        assert!(phrases(folder.path()).is_err());
        std::fs::create_dir_all(folder.path().join("usr/share/trans")).unwrap();
        let lines = "# Der Kopf. :: The head.\n\
                     Hund {m} [zool.]; Köter {m} | Der Hund (da) bellt.; Er bellt.; Laut. :: dog; cur | The dog  barks.; It barks.\n\
                     eins | zwei :: one\nnothing\n::\n";
        std::fs::write(folder.path().join("usr/share/trans/de-en"), lines).unwrap();
        let [dog, barks, it] = [("dog", "Hund"), ("The dog barks.", "Der Hund bellt."), ("It barks.", "Er bellt.")]
            .map(|(en, de)| (en.to_string(), de.to_string()));
        assert_eq!(phrases(folder.path()).unwrap(), [dog, barks.clone(), Default::default()]);
        assert_eq!(sentences(folder.path()).unwrap(), [barks, it]);
        assert_eq!(plain("open (to the end"), "open");
    }
}
