//! Arithmetic within `${...}`: numbers, names, `+ - * / // %` and parentheses.

use std::fmt;

/// A whole or a real number.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
}

/// Why an expression has no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("unknown variable `{0}`")]
    Unknown(String),
    #[error("expected {expected}, found {found}")]
    Syntax { expected: &'static str, found: String },
    #[error("division by zero")]
    DivisionByZero,
    #[error("the result is out of range")]
    OutOfRange,
    #[error("the expression is too long")]
    TooLong,
}

/// The longest expression. This also bounds the recursion into parentheses.
const MAX_BYTES: usize = 256;

/// The value of `text`; `lookup` gives the values of names.
pub(crate) fn eval(text: &str, lookup: &dyn Fn(&str) -> Option<Number>) -> Result<Number, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::TooLong);
    }
    let mut parser = Parser { rest: text.trim_start(), lookup };
    let value = parser.sum()?;
    match parser.rest {
        "" => Ok(value),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

/// Recursive descent: a sum of products of signed atoms.
struct Parser<'a> {
    rest: &'a str,
    lookup: &'a dyn Fn(&str) -> Option<Number>,
}

impl Parser<'_> {
    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Result<Number, Error> {
        let mut value = self.product()?;
        loop {
            if self.take("+") {
                value = value.combine(self.product()?, i64::checked_add, |a, b| a + b)?;
            } else if self.take("-") {
                value = value.combine(self.product()?, i64::checked_sub, |a, b| a - b)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<Number, Error> {
        let mut value = self.signed()?;
        loop {
            if self.take("*") {
                value = value.combine(self.signed()?, i64::checked_mul, |a, b| a * b)?;
            } else if self.take("//") {
                let divisor = self.divisor()?;
                value = value.combine(divisor, floor_div, |a, b| (a / b).floor())?;
            } else if self.take("/") {
                value = value.divided_by(self.divisor()?)?;
            } else if self.take("%") {
                let divisor = self.divisor()?;
                let floored = |a: f64, b: f64| a - b * (a / b).floor();
                value = value.combine(divisor, floor_mod, floored)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn divisor(&mut self) -> Result<Number, Error> {
        match self.signed()? {
            number if number.as_f64() == 0.0 => Err(Error::DivisionByZero),
            number => Ok(number),
        }
    }

    fn signed(&mut self) -> Result<Number, Error> {
        if self.take("-") {
            return Number::Int(0).combine(self.signed()?, i64::checked_sub, |a, b| a - b);
        }
        self.atom()
    }

    fn atom(&mut self) -> Result<Number, Error> {
        if self.take("(") {
            let value = self.sum()?;
            return if self.take(")") { Ok(value) } else { Err(self.unexpected("`)`")) };
        }
        let in_word =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        let end = self.rest.find(|letter| !in_word(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word.chars().next() {
            None => return Err(self.unexpected("a number, a variable or `(`")),
            Some(first) if first.is_ascii_digit() || first == '.' => {
                let int = word.parse().map(Number::Int).ok();
                let float = || word.parse().ok().filter(|float: &f64| float.is_finite());
                int.or_else(|| float().map(Number::Float))
                    .ok_or_else(|| self.unexpected("a number"))?
            }
            Some(_) => (self.lookup)(word).ok_or_else(|| Error::Unknown(word.to_owned()))?,
        };
        self.rest = rest.trim_start();
        Ok(value)
    }

    fn unexpected(&self, expected: &'static str) -> Error {
        let found =
            if self.rest.is_empty() { "the end".into() } else { format!("`{}`", self.rest) };
        Error::Syntax { expected, found }
    }
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
        }
    }

    /// Whole numbers stay whole, and exact; with a real number the result is real.
    fn combine(
        self,
        other: Number,
        whole: fn(i64, i64) -> Option<i64>,
        real: fn(f64, f64) -> f64,
    ) -> Result<Number, Error> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => {
                whole(a, b).map(Number::Int).ok_or(Error::OutOfRange)
            }
            _ => Number::real(real(self.as_f64(), other.as_f64())),
        }
    }

    /// `/` gives a whole number if it divides without remainder, so that `${d_model / heads}` is a
    /// size.
    fn divided_by(self, divisor: Number) -> Result<Number, Error> {
        match (self, divisor) {
            (Number::Int(a), Number::Int(b)) if a.checked_rem(b) == Some(0) => {
                Ok(Number::Int(a / b))
            }
            _ => Number::real(self.as_f64() / divisor.as_f64()),
        }
    }

    fn real(value: f64) -> Result<Number, Error> {
        if value.is_finite() {
            Ok(Number::Float(value))
        } else {
            Err(Error::OutOfRange)
        }
    }
}

/// Division rounded down, as Python's `//`.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    if a % b != 0 && (a < 0) != (b < 0) {
        return quotient.checked_sub(1);
    }
    Some(quotient)
}

/// The remainder of floor division, with the divisor's sign, like Python's `%`.
fn floor_mod(a: i64, b: i64) -> Option<i64> {
    a.checked_sub(floor_div(a, b)?.checked_mul(b)?)
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(int) => write!(f, "{int}"),
            Number::Float(float) => write!(f, "{float}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Number, Error> {
        eval(text, &|name| (name == "d").then_some(Number::Int(512)))
    }

    #[test]
    fn computes_as_python_does() {
        for (text, expected) in [
            ("d", 512),
            ("4 * d", 2048),
            ("d / 8", 64),
            ("-7 // 2", -4),
            ("7 // -2", -4),
            ("-7 % 3", 2),
            ("2 + 3 * (4 - 1) - -1", 12),
            ("d*4//3", 682),
        ] {
            assert_eq!(value(text), Ok(Number::Int(expected)), "{text}");
        }
        assert_eq!(value("1 / 8"), Ok(Number::Float(0.125)));
        assert_eq!(value("0.5 * d"), Ok(Number::Float(256.0)));
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, expected) in [
            ("q + 1", "unknown variable `q`"),
            ("1 +", "expected a number, a variable or `(`, found the end"),
            ("(1", "expected `)`, found the end"),
            ("1 2", "expected an operator or the end, found `2`"),
            ("1..2", "expected a number, found `1..2`"),
            ("d % (4 - 4)", "division by zero"),
            ("9223372036854775807 + 1", "the result is out of range"),
            ("(-9223372036854775807 - 1) // -1", "the result is out of range"),
            ("(-9223372036854775807 - 1) % -1", "the result is out of range"),
        ] {
            assert_eq!(value(text).unwrap_err().to_string(), expected, "{text}");
        }
        assert_eq!(value(&"(".repeat(300)), Err(Error::TooLong));
        assert_eq!(
            value(&"(".repeat(256)).unwrap_err().to_string(),
            "expected a number, a variable or `(`, found the end"
        );
    }
}
