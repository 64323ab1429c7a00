//! Sentences and phrases of the Ding dictionary, whose lines are `de | de :: en | en`.

use crate::BossManError;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Shorter ones are words rather than phrases.
const FEWEST: usize = 3;
const MOST: usize = 60;
/// One in so many is to test.
const TEST: u64 = 20;

pub(super) fn en_de(from: &Path, to: &Path) -> Result<(), BossManError> {
    let path = from.join("usr/share/trans/de-en");
    let text = std::fs::read_to_string(&path).map_err(|e| BossManError::file(&path, e))?;
    let open = |name: &str| {
        let path = to.join(name);
        File::create(&path).map(BufWriter::new).map_err(|e| BossManError::file(&path, e))
    };
    let (mut train, mut test) = (open("train.tsv")?, open("test.tsv")?);
    let mut seen = BTreeSet::new();
    let error = |e: std::io::Error| BossManError::file(to, e);
    for (english, german) in text.lines().filter(|line| !line.starts_with('#')).flat_map(pairs) {
        if suits(&english, &german) && seen.insert((english.clone(), german.clone())) {
            // Sentences that begin alike are on the same side, so that none is tested on that is nearly known.
            let file = if lot(&english).is_multiple_of(TEST) { &mut test } else { &mut train };
            writeln!(file, "{english}\t{german}").map_err(error)?;
        }
    }
    train.flush().and_then(|()| test.flush()).map_err(error)
}

/// The entries of a line, where both languages have as many.
fn pairs(line: &str) -> Vec<(String, String)> {
    let Some((german, english)) = line.split_once("::") else { return Vec::new() };
    let entries = |text: &str| text.split('|').map(str::to_string).collect::<Vec<_>>();
    let (german, english) = (entries(german), entries(english));
    if german.len() != english.len() {
        return Vec::new();
    }
    // Of several ways to say it the first.
    let first = |entry: &String| plain(entry.split(';').next().unwrap_or(entry));
    english.iter().map(first).zip(german.iter().map(first)).collect()
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
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn suits(english: &str, german: &str) -> bool {
    let words = |text: &str| (FEWEST..=MOST).contains(&text.split_whitespace().count());
    let (one, other) = (english.chars().count(), german.chars().count());
    words(english) && words(german) && english != german && one <= 3 * other && other <= 3 * one
}

/// The same number for sentences whose first six words are the same: FNV-1a.
fn lot(english: &str) -> u64 {
    let words = english.split(' ').take(6).collect::<Vec<_>>().join(" ");
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    words.bytes().fold(0xcbf2_9ce4_8422_2325, step) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_dictionary_gives_its_entries() {
        let line = "Hund {m} [zool.]; Köter {m} | Der Hund (da) bellt. :: dog; cur | The dog  barks.";
        let expected = [("dog", "Hund"), ("The dog barks.", "Der Hund bellt.")];
        assert_eq!(pairs(line), expected.map(|(en, de)| (en.to_string(), de.to_string())));
        assert!(suits("The dog barks.", "Der Hund bellt.") && !suits("dog", "Hund"));
        assert!(pairs("eins | zwei :: one").is_empty() && pairs("nothing").is_empty());
        assert_eq!(plain("open (to the end"), "open");
    }
}
