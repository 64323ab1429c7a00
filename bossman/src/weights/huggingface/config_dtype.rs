//! The type of weights that a `config.json` names. Everything else in it stays as it is, to the
//! letter.

use layerspec::DType;
use serde_json::{Map, Value};
use std::ops::Range;

/// The keys of the type, of newer and of older versions of transformers.
const KEYS: [&str; 2] = ["\"dtype\"", "\"torch_dtype\""];

/// The text of a configuration with another type. A text that names none gets the older key, which
/// every version reads.
///
/// # Errors
/// The text is no mapping in JSON.
pub(super) fn with_dtype(text: &str, dtype: DType) -> Result<String, String> {
    let keys: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| format!("is no mapping in JSON: {e}"))?;
    let (mut changed, mut done) = (String::new(), 0);
    for value in values(text) {
        changed.push_str(text.get(done..value.start).unwrap_or_default());
        changed.push_str(&format!("\"{dtype}\""));
        done = value.end;
    }
    let rest = text.get(done..).unwrap_or_default();
    match rest.split_once('{') {
        Some((before, after)) if done == 0 => {
            let comma = if keys.is_empty() { "" } else { "," };
            Ok(format!("{before}{{\n  \"torch_dtype\": \"{dtype}\"{comma}{after}"))
        }
        _ => Ok(changed + rest),
    }
}

/// The places of the values of [`KEYS`] in a valid text. Only keys of the outermost mapping count.
fn values(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut depth) = (Vec::new(), 0usize);
    // The key, and the place after its colon.
    let (mut key, mut begin) = ("", None);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        if depth == 1 && matches!(letter, ',' | '}') {
            if let Some(value) = begin.take().filter(|_| KEYS.contains(&key)) {
                found.push(trimmed(text, value..at));
            }
        }
        match letter {
            '"' => {
                let end = end_of_text(&mut letters);
                if depth == 1 && begin.is_none() {
                    key = text.get(at..end).unwrap_or_default();
                }
            }
            ':' if depth == 1 => begin = begin.or(Some(at + 1)),
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

/// Reads on to the quote that ends a text. Returns the place after it.
fn end_of_text(letters: &mut std::str::CharIndices<'_>) -> usize {
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return at + 1,
            '\\' => {
                letters.next();
            }
            _ => {}
        }
    }
    letters.offset()
}

/// A place without the spaces around its text.
fn trimmed(text: &str, place: Range<usize>) -> Range<usize> {
    let value = text.get(place.clone()).unwrap_or_default();
    let begin = place.start + (value.len() - value.trim_start().len());
    begin..begin + value.trim().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_type_is_changed() {
        let cases = [
            (
                "{\n  \"b\": 1e-05,\n  \"dtype\": \"float32\",\n  \"a\": {\"dtype\": \"x\"}\n}\n",
                "{\n  \"b\": 1e-05,\n  \"dtype\": \"bfloat16\",\n  \"a\": {\"dtype\": \"x\"}\n}\n",
            ),
            (r#"{"torch_dtype" : null }"#, r#"{"torch_dtype" : "bfloat16" }"#),
            (
                r#"{"x":["dtype","}",2],"é\"":"torch_dtype","dtype":"a\","}"#,
                r#"{"x":["dtype","}",2],"é\"":"torch_dtype","dtype":"bfloat16"}"#,
            ),
            ("{\n  \"a\": 1\n}", "{\n  \"torch_dtype\": \"bfloat16\",\n  \"a\": 1\n}"),
            ("{}", "{\n  \"torch_dtype\": \"bfloat16\"}"),
        ];
        for (before, after) in cases {
            assert_eq!(with_dtype(before, DType::BFloat16).unwrap(), after);
            serde_json::from_str::<Value>(after).unwrap();
        }
        for wrong in ["", "[1]", "{\"a\": }", "{\"dtype\": \"x"] {
            let error = with_dtype(wrong, DType::Float16).unwrap_err();
            assert!(error.starts_with("is no mapping in JSON"), "{error}");
        }
    }
}
