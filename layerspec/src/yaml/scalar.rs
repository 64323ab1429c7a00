//! The types of unquoted scalars: YAML 1.2's core schema.

use super::Kind;

/// The typed value of a plain (unquoted) scalar.
pub(super) fn plain(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ => number(text).unwrap_or_else(|| Kind::Text(text.to_owned())),
    }
}

fn number(text: &str) -> Option<Kind> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    match unsigned {
        ".inf" | ".Inf" | ".INF" if text.starts_with('-') => {
            return Some(Kind::Float(f64::NEG_INFINITY))
        }
        ".inf" | ".Inf" | ".INF" => return Some(Kind::Float(f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" => return Some(Kind::Float(f64::NAN)),
        _ => {}
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    // Rust's own numbers go further than YAML's ("inf", "nan"): those begin with a letter.
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    text.parse().map(Kind::Int).or_else(|_| text.parse().map(Kind::Float)).ok()
}

fn radix(digits: &str, base: u32) -> Option<Kind> {
    if digits.starts_with(['-', '+']) {
        return None;
    }
    i64::from_str_radix(digits, base).map(Kind::Int).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_of_the_core_schema() {
        assert_eq!(plain("~"), Kind::Null);
        assert_eq!(plain("True"), Kind::Bool(true));
        assert_eq!(plain("-12"), Kind::Int(-12));
        assert_eq!(plain("0x1F"), Kind::Int(31));
        assert_eq!(plain("0o17"), Kind::Int(15));
        assert_eq!(plain("1e-5"), Kind::Float(1e-5));
        assert_eq!(plain(".5"), Kind::Float(0.5));
        assert_eq!(plain("-.inf"), Kind::Float(f64::NEG_INFINITY));
        assert_eq!(plain("99999999999999999999"), Kind::Float(1e20));
        for text in ["yes", "inf", "nan", "1_000", "1-2", "-", ".", "0x", "0x-1", "e5", "12:30"] {
            assert_eq!(plain(text), Kind::Text(text.into()));
        }
    }
}
