//! BLEU of translations (Papineni et al. 2002), as sacreBLEU defines it (Post 2018,
//! arXiv:1804.08771): of a whole corpus, four n-grams, tokenizer 13a, exponential smoothing, case
//! kept.

use std::collections::HashMap;

/// The longest n-grams.
const ORDER: usize = 4;

/// Computes the BLEU of translations with one reference each, from 0 to 100.
///
/// ```
/// let bleu = bossman::bleu(&["the cat is on the mat"], &["the cat sat on the mat"]);
/// assert!((bleu - 37.99).abs() < 0.01);
/// ```
pub fn bleu<S: AsRef<str>, R: AsRef<str>>(translations: &[S], references: &[R]) -> f64 {
    let (mut right, mut all) = ([0u64; ORDER], [0u64; ORDER]);
    let (mut length, mut wanted) = (0usize, 0usize);
    for (translation, reference) in translations.iter().zip(references) {
        let (translation, reference) = (tokens(translation.as_ref()), tokens(reference.as_ref()));
        length += translation.len();
        wanted += reference.len();
        for order in 1..=ORDER {
            let known = counts(&reference, order);
            for (ngram, count) in counts(&translation, order) {
                all[order - 1] += count;
                right[order - 1] += count.min(known.get(&ngram).copied().unwrap_or(0));
            }
        }
    }
    if right[0] == 0 {
        return 0.0;
    }
    let (mut smooth, mut logs, mut orders) = (1.0, 0.0, 0);
    for (right, all) in right.into_iter().zip(all) {
        if all == 0 {
            break;
        }
        orders += 1;
        let precision = match right {
            0 => {
                smooth *= 2.0;
                1.0 / (smooth * all as f64)
            }
            right => right as f64 / all as f64,
        };
        logs += precision.ln();
    }
    // Corpora without a single 4-gram are cut to the orders they have, as with sacreBLEU's
    // `effective_order` off they are 0.
    if orders < ORDER {
        return 0.0;
    }
    let brevity = if length < wanted { (1.0 - wanted as f64 / length as f64).exp() } else { 1.0 };
    100.0 * brevity * (logs / ORDER as f64).exp()
}

fn counts(tokens: &[String], order: usize) -> HashMap<&[String], u64> {
    let mut counts = HashMap::new();
    for ngram in tokens.windows(order) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}

/// The tokens of a line as in mteval-v13a.pl: punctuation apart, but for that within numbers.
fn tokens(line: &str) -> Vec<String> {
    let line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let line = line
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
        .replace("&lt;", "<")
        .replace("&gt;", ">");
    let characters: Vec<char> = format!(" {line} ").chars().collect();
    let spaced = apart(&characters);
    let spaced = pairs(&spaced, |first, second| {
        (!first.is_ascii_digit() && is_mark(second)).then_some([first, ' ', second, ' '])
    });
    let spaced = pairs(&spaced, |first, second| {
        (is_mark(first) && !second.is_ascii_digit()).then_some([' ', first, ' ', second])
    });
    let spaced = pairs(&spaced, |first, second| {
        (first.is_ascii_digit() && second == '-').then_some([first, ' ', second, ' '])
    });
    spaced.iter().collect::<String>().split_whitespace().map(str::to_string).collect()
}

/// `([\{-\~\[-\` -\&\(-\+\:-\@\/])`: spaces around each.
fn apart(characters: &[char]) -> Vec<char> {
    let stands_apart =
        |c: char| matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/');
    characters
        .iter()
        .flat_map(|c| if stands_apart(*c) { vec![' ', *c, ' '] } else { vec![*c] })
        .collect()
}

fn is_mark(c: char) -> bool {
    matches!(c, '.' | ',')
}

/// Replaces pairs of characters from left to right, each taken once, as a regular expression of two
/// characters does.
fn pairs(characters: &[char], replace: impl Fn(char, char) -> Option<[char; 4]>) -> Vec<char> {
    let mut replaced = Vec::with_capacity(characters.len());
    let mut at = 0;
    while let Some(&first) = characters.get(at) {
        match characters.get(at + 1).and_then(|second| replace(first, *second)) {
            Some(four) => {
                replaced.extend(four);
                at += 2;
            }
            None => {
                replaced.push(first);
                at += 1;
            }
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        translations: Vec<String>,
        references: Vec<String>,
        bleu: f64,
    }

    #[test]
    fn it_is_sacrebleus() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/bleu/cases.json");
        let cases: Vec<Case> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(cases.len() > 10);
        for Case { translations, references, bleu: expected } in cases {
            let found = bleu(&translations, &references);
            assert!(
                (found - expected).abs() < 1e-9,
                "{found} and not {expected}: {translations:?} for {references:?}"
            );
        }
    }
}
