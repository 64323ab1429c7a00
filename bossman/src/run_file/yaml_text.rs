//! YAML as text: blocks at the top, flow inside.

use std::fmt::Write as _;

/// The depth from which mappings are written in a line.
const FLOW_DEPTH: usize = 2;

/// A value to write.
#[derive(Clone, Debug)]
pub(crate) enum Yaml {
    Text(String),
    /// A number or a flag, as it is written.
    Plain(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl From<&str> for Yaml {
    fn from(text: &str) -> Self {
        Yaml::Text(text.into())
    }
}

impl From<bool> for Yaml {
    fn from(flag: bool) -> Self {
        Yaml::Plain(flag.to_string())
    }
}

impl From<u64> for Yaml {
    fn from(number: u64) -> Self {
        Yaml::Plain(number.to_string())
    }
}

impl From<f64> for Yaml {
    /// The shortest decimal that reads back as the same number.
    fn from(number: f64) -> Self {
        Yaml::Plain(match number {
            f64::INFINITY => ".inf".into(),
            f64::NEG_INFINITY => "-.inf".into(),
            number if number.is_nan() => ".nan".into(),
            number => format!("{number:?}"),
        })
    }
}

/// A mapping of these entries.
pub(crate) fn map<const N: usize>(entries: [(&str, Yaml); N]) -> Yaml {
    Yaml::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// A list of such values.
pub(crate) fn list<T: Into<Yaml>>(values: impl IntoIterator<Item = T>) -> Yaml {
    Yaml::List(values.into_iter().map(Into::into).collect())
}

/// The only text, or a list of several. `None` if there is none.
pub(crate) fn one_or_list(texts: &[String]) -> Option<Yaml> {
    match texts {
        [] => None,
        [text] => Some(text.as_str().into()),
        texts => Some(list(texts.iter().map(String::as_str))),
    }
}

/// Writes the entries of a document.
pub(crate) fn document(entries: &[(String, Yaml)]) -> String {
    let mut text = String::new();
    block(&mut text, entries, 0);
    text
}

/// Writes a value in a line.
pub(crate) fn flow_text(value: &Yaml) -> String {
    let mut text = String::new();
    flow(&mut text, value);
    text
}

fn block(text: &mut String, entries: &[(String, Yaml)], depth: usize) {
    for (key, value) in entries {
        write!(text, "{:1$}{2}:", "", 2 * depth, scalar(key)).ok();
        match value {
            Yaml::Map(inner) if depth + 1 < FLOW_DEPTH && !inner.is_empty() => {
                text.push('\n');
                block(text, inner, depth + 1);
            }
            value => {
                text.push(' ');
                flow(text, value);
                text.push('\n');
            }
        }
    }
}

fn flow(text: &mut String, value: &Yaml) {
    let comma = |number: usize| if number > 0 { ", " } else { "" };
    match value {
        Yaml::Text(word) => text.push_str(&scalar(word)),
        Yaml::Plain(word) => text.push_str(word),
        Yaml::List(items) => {
            text.push('[');
            for (number, item) in items.iter().enumerate() {
                text.push_str(comma(number));
                flow(text, item);
            }
            text.push(']');
        }
        Yaml::Map(entries) => {
            text.push('{');
            for (number, (key, value)) in entries.iter().enumerate() {
                text.push_str(comma(number));
                text.push_str(&scalar(key));
                text.push_str(": ");
                flow(text, value);
            }
            text.push('}');
        }
    }
}

/// A text that YAML reads as text, in quotes if it needs some.
pub(crate) fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    if is_plain && !is_word {
        return text.into();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                write!(quoted, "\\U{:08X}", u32::from(c)).ok();
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
