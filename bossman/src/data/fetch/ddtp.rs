//! Descriptions of Debian's packages, as its description translation project has them: apt's lists `Translation-en` and
//! `Translation-de`, in which an original and its translation have the same `Description-md5`.

use super::files;
use super::package::LISTS;
use super::prose::{by_sentence, single_spaced, Pair};
use crate::BossManError;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn pairs(from: &Path) -> Result<Vec<Pair>, BossManError> {
    let [english, german] = ["en", "de"].map(|language| lists(&from.join(LISTS), language));
    Ok(together(&english?, &german?))
}

/// All lists of a language, one after the other: there is one for each part of each archive.
fn lists(folder: &Path, language: &str) -> Result<String, BossManError> {
    let mut all = String::new();
    for path in files::ending(folder, &format!("i18n_Translation-{language}"))? {
        all.push_str(&files::text(&path)?);
        all.push_str("\n\n");
    }
    if all.is_empty() {
        return Err(BossManError::file(folder, format!("apt's sources have no descriptions in `{language}`")));
    }
    Ok(all)
}

fn together(english: &str, german: &str) -> Vec<Pair> {
    let english = descriptions(english, "en");
    let mut pairs = Vec::new();
    for (sum, german) in descriptions(german, "de") {
        let Some(english) = english.get(sum) else { continue };
        let (ours, theirs) = (paragraphs(english), paragraphs(german));
        // A translation that is not done has this in place of what is missing.
        if ours.len() != theirs.len() || german.contains("<trans>") {
            continue;
        }
        for both in ours.into_iter().zip(theirs) {
            if let (Some(one), Some(other)) = both {
                pairs.extend(by_sentence(&one, &other));
            }
        }
    }
    pairs
}

/// By the sum of the original.
fn descriptions<'a>(lists: &'a str, language: &str) -> BTreeMap<&'a str, &'a str> {
    let field = format!("Description-{language}: ");
    let stanza = |stanza: &'a str| {
        let (_, rest) = stanza.split_once("Description-md5: ")?;
        let (sum, rest) = rest.split_once('\n')?;
        Some((sum.trim(), rest.strip_prefix(&field)?))
    };
    lists.split("\n\n").filter_map(stanza).collect()
}

/// After the title, which is no sentence; none for what is no running text, as a list of points. Every line is indented by
/// a space, and a line with a dot is between two paragraphs.
fn paragraphs(description: &str) -> Vec<Option<String>> {
    let lines: Vec<&str> = description.lines().skip(1).map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let paragraph = |lines: &[&str]| {
        let text = single_spaced(&lines.join(" "));
        let points = lines.iter().any(|line| line.starts_with([' ', '-', '*']));
        Some(text).filter(|text| !points && !text.is_empty())
    };
    lines.split(|line| line.trim() == ".").map(paragraph).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGLISH: &str = "Package: a\nDescription-md5: 01\nDescription-en: short title\n It reads\n mail. It is small.\n .\n \
                           Features:\n  * many\n .\n Last one.\n\nPackage: b\nDescription-md5: 02\nDescription-en: other\n Text.\n";

    #[test]
    fn descriptions_meet_by_their_sum() {
        let german = "Package: a\nDescription-md5: 01\nDescription-de: Titel\n Es liest Post. Es\n ist klein.\n .\n Merkmale:\n  \
                      * viele\n .\n Letzter.\n\nDescription-md5: 03\nDescription-de: Titel\n Anderes.\n";
        let expected =
            [("It reads mail.", "Es liest Post."), ("It is small.", "Es ist klein."), ("Last one.", "Letzter.")];
        assert_eq!(together(ENGLISH, german), expected.map(|(en, de)| (en.to_string(), de.to_string())));
    }

    #[test]
    fn what_is_not_whole_is_left_out() {
        for german in [
            "",
            "Description-md5: 02",
            "Description-md5: 02\n",
            "Description-md5: 02\nDescription-de: Titel",
            "Description-md5: 02\nDescription-fr: Titre\n Texte.",
            "Description-md5: 02\nSection: x\nDescription-de: Titel\n Text.",
            "Description-md5: 02\nDescription-de: Titel\n Text.\n .\n Mehr.",
            "Description-md5: 02\nDescription-de: Titel\n Text <trans>",
            "Description-md5: 02\nDescription-de: Titel\n - Text.",
        ] {
            assert!(together(ENGLISH, german).is_empty(), "{german}");
        }
    }

    #[test]
    fn all_lists_are_read_and_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lists = folder.path().join(LISTS);
        std::fs::create_dir(&lists).unwrap();
        for name in ["x_main_i18n_Translation-en", "y_main_i18n_Translation-en"] {
            let sum = &name[..1];
            std::fs::write(lists.join(name), format!("Description-md5: {sum}\nDescription-en: t\n Text.\n")).unwrap();
        }
        assert!(pairs(folder.path()).unwrap_err().to_string().ends_with("no descriptions in `de`"));
        let german = "Description-md5: x\nDescription-de: t\n Eins.\n\nDescription-md5: y\nDescription-de: t\n Zwei.\n";
        std::fs::write(lists.join("x_main_i18n_Translation-de"), german).unwrap();
        let expected = [("Text.", "Eins."), ("Text.", "Zwei.")];
        assert_eq!(pairs(folder.path()).unwrap(), expected.map(|(en, de)| (en.to_string(), de.to_string())));
    }
}
