//! Sizes that may be known only at run time, and exact arithmetic over them.

mod expr;

use expr::Expr;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One size: a number, or an expression over the symbols of the model's inputs (`batch`,
/// `seq*512`).
///
/// Expressions have one canonical form, so `==` tells whether two sizes are always equal (as far as
/// adding, multiplying and whole division go).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dim {
    /// A known size.
    Fixed(u64),
    /// A size that depends on symbols bound at run time. Never a mere number.
    Symbolic(Expr),
}

/// A size or count that leaves 64 bits, drops below zero, or grows into an endless formula.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a size here is below zero, beyond 64 bits or too long a formula")]
pub struct OutOfRange;

impl From<OutOfRange> for String {
    fn from(error: OutOfRange) -> String {
        error.to_string()
    }
}

impl Dim {
    /// The size that the symbol `name` stands for.
    pub fn symbol(name: &str) -> Dim {
        Dim::Symbolic(Expr::symbol(name))
    }

    /// The number, if known.
    pub fn as_fixed(&self) -> Option<u64> {
        match self {
            Dim::Fixed(size) => Some(*size),
            Dim::Symbolic(_) => None,
        }
    }

    /// The symbol, if the size is a single symbol.
    pub fn as_symbol(&self) -> Option<&str> {
        match self {
            Dim::Fixed(_) => None,
            Dim::Symbolic(expr) => expr.as_symbol(),
        }
    }

    /// The number once symbols are bound; None when a symbol is missing or the result is not a
    /// size.
    pub fn eval(&self, bindings: &Bindings) -> Option<u64> {
        match self {
            Dim::Fixed(size) => Some(*size),
            Dim::Symbolic(expr) => u64::try_from(expr.eval(bindings)?).ok(),
        }
    }

    /// The size with the bound symbols replaced by their numbers; other symbols stay.
    pub fn bind(&self, bindings: &Bindings) -> Result<Dim, OutOfRange> {
        match self {
            Dim::Fixed(size) => Ok(Dim::Fixed(*size)),
            Dim::Symbolic(expr) => expr.bind(bindings)?.into_dim(),
        }
    }

    /// Adds every symbol the size depends on to `symbols`.
    pub fn collect_symbols(&self, symbols: &mut BTreeSet<String>) {
        if let Dim::Symbolic(expr) = self {
            expr.collect_symbols(symbols);
        }
    }

    /// `self + other`.
    pub fn plus(&self, other: &Dim) -> Result<Dim, OutOfRange> {
        match (self, other) {
            (Dim::Fixed(a), Dim::Fixed(b)) => a.checked_add(*b).map(Dim::Fixed).ok_or(OutOfRange),
            _ => Expr::of(self)?.plus(&Expr::of(other)?)?.into_dim(),
        }
    }

    /// `self + number`. The number may be negative.
    pub fn plus_number(&self, number: i64) -> Result<Dim, OutOfRange> {
        match self {
            Dim::Fixed(a) => a.checked_add_signed(number).map(Dim::Fixed).ok_or(OutOfRange),
            Dim::Symbolic(expr) => expr.plus(&Expr::number(number))?.into_dim(),
        }
    }

    /// `self * other`.
    pub fn times(&self, other: &Dim) -> Result<Dim, OutOfRange> {
        match (self, other) {
            (Dim::Fixed(a), Dim::Fixed(b)) => a.checked_mul(*b).map(Dim::Fixed).ok_or(OutOfRange),
            _ => Expr::of(self)?.times(&Expr::of(other)?)?.into_dim(),
        }
    }

    /// `self * number`.
    pub fn times_number(&self, number: u64) -> Result<Dim, OutOfRange> {
        self.times(&Dim::Fixed(number))
    }

    /// `self / divisor` if it divides without remainder for every binding; None otherwise.
    pub fn exact_div(&self, divisor: u64) -> Option<Dim> {
        match self {
            Dim::Fixed(a) => (a.checked_rem(divisor)? == 0).then_some(Dim::Fixed(a / divisor)),
            Dim::Symbolic(expr) => expr.exact_div(i64::try_from(divisor).ok()?)?.into_dim().ok(),
        }
    }

    /// `self / divisor`, rounded down.
    pub fn floor_div(&self, divisor: u64) -> Result<Dim, OutOfRange> {
        match self {
            Dim::Fixed(a) => a.checked_div(divisor).map(Dim::Fixed).ok_or(OutOfRange),
            Dim::Symbolic(expr) => {
                expr.floor_div(i64::try_from(divisor).map_err(|_| OutOfRange)?)?.into_dim()
            }
        }
    }

    /// The product of `dims`; 1 for none.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Result<Dim, OutOfRange> {
        dims.into_iter().try_fold(Dim::Fixed(1), |product, dim| product.times(dim))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(f, "{size}"),
            Dim::Symbolic(expr) => write!(f, "{expr}"),
        }
    }
}

/// The values of symbols in one step: `batch` = 32, `seq` = 128.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Bindings(BTreeMap<String, u64>);

impl Bindings {
    /// No symbol bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same bindings with `symbol` standing for `size`.
    #[must_use]
    pub fn with(mut self, symbol: &str, size: u64) -> Self {
        self.set(symbol, size);
        self
    }

    /// Binds `symbol` to `size`, in place of what it stood for.
    pub fn set(&mut self, symbol: &str, size: u64) {
        self.0.insert(symbol.to_owned(), size);
    }

    /// The value of `symbol`.
    pub fn get(&self, symbol: &str) -> Option<u64> {
        self.0.get(symbol).copied()
    }

    /// Every bound symbol with its size, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(symbol, size)| (symbol.as_str(), *size))
    }
}
