//! Sentences and their translations from several sources, a part of them to test on.

use super::prose::Pair;
use super::{ddtp, help, mo, sentences};
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

struct Source {
    /// In a third column, where there are several.
    name: &'static str,
    /// Whether some of its pairs are to test on.
    tested: bool,
    pairs: fn(&Path) -> Result<Vec<Pair>, BossManError>,
}

/// Names of buttons and descriptions that are alike but for a name would flatter a test.
const SOURCES: [Source; 4] = [
    Source { name: "ding", tested: true, pairs: sentences::sentences },
    Source { name: "lo-help", tested: true, pairs: help::pairs },
    Source { name: "lo-ui", tested: false, pairs: mo::pairs },
    Source { name: "ddtp", tested: false, pairs: ddtp::pairs },
];

pub(super) fn en_de(from: &Path, to: &Path) -> Result<(), BossManError> {
    write(&SOURCES, from, to)
}

pub(super) fn en_de_ding(from: &Path, to: &Path) -> Result<(), BossManError> {
    write(&[Source { name: "ding", tested: true, pairs: sentences::phrases }], from, to)
}

fn write(sources: &[Source], from: &Path, to: &Path) -> Result<(), BossManError> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for source in sources {
        let pairs = (source.pairs)(from)?.into_iter().filter(|(english, german)| suits(english, german));
        found.extend(pairs.filter(|pair| seen.insert(pair.clone())).map(|pair| (pair, source)));
    }
    // Sentences that begin alike are on the same side, so that none is tested on that is nearly known.
    let of_test = |lot: &u64| lot.is_multiple_of(TEST);
    let tested = found.iter().filter(|(_, source)| source.tested).map(|((english, _), _)| lot(english));
    let tested: BTreeSet<u64> = tested.filter(of_test).collect();

    let open = |name: &str| {
        let path = to.join(name);
        File::create(&path).map(BufWriter::new).map_err(|e| BossManError::file(&path, e))
    };
    let (mut train, mut test) = (open("train.tsv")?, open("test.tsv")?);
    for ((english, german), source) in &found {
        let file = match (tested.contains(&lot(english)), source.tested) {
            (false, _) => &mut train,
            (true, true) => &mut test,
            (true, false) => continue,
        };
        let name = if sources.len() > 1 { format!("\t{}", source.name) } else { String::new() };
        writeln!(file, "{english}\t{german}{name}").map_err(|e| BossManError::file(to, e))?;
    }
    train.flush().and_then(|()| test.flush()).map_err(|e| BossManError::file(to, e))
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

    fn begins(number: usize) -> String {
        format!("Number {number} begins a sentence like")
    }

    fn first(_: &Path) -> Result<Vec<Pair>, BossManError> {
        Ok((0..200).map(|number| (begins(number) + " this.", format!("Ein Satz mit der Nummer {number}."))).collect())
    }

    fn second(_: &Path) -> Result<Vec<Pair>, BossManError> {
        let pair = |number| (begins(number) + " that.", format!("Ein Satz mit der Nummer {number}."));
        Ok((100..300).map(pair).chain(first(Path::new(""))?).chain([("Yes.".into(), "Ja.".into())]).collect())
    }

    #[test]
    fn pairs_that_begin_alike_are_on_one_side() {
        let folder = tempfile::tempdir().unwrap();
        let sources =
            [Source { name: "a", tested: true, pairs: first }, Source { name: "b", tested: false, pairs: second }];
        write(&sources, Path::new(""), folder.path()).unwrap();
        let lines = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect::<Vec<Vec<_>>>()
        };
        let (train, test) = (lines("train.tsv"), lines("test.tsv"));
        let start = |line: &Vec<String>| line[0].split(' ').take(6).collect::<Vec<_>>().join(" ");
        let starts: BTreeSet<_> = test.iter().map(start).collect();
        assert!(train.iter().all(|line| !starts.contains(&start(line))));
        assert!(test.iter().all(|line| line[2] == "a") && (2..30).contains(&test.len()), "{}", test.len());
        // Those of the second source that only it has are all to train on, and none is there twice.
        let left_out = (100..200).filter(|number| starts.contains(&begins(*number))).count();
        assert_eq!(train.len() + test.len(), 400 - left_out);
        assert_eq!(train.iter().filter(|line| line[2] == "b").count(), 200 - left_out);
    }

    #[test]
    fn words_and_what_is_not_translated_do_not_suit() {
        assert!(suits("The dog barks.", "Der Hund bellt.") && !suits("dog", "Hund"));
        assert!(
            !suits("The same words.", "The same words.") && !suits("It is so.", "Das ist aber wirklich ganz anders.")
        );
    }
}
