//! Polynomials with whole coefficients over symbols and floor divisions, in canonical form.

use super::{Bindings, Dim, OutOfRange};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The most parts of a formula. The bound keeps a file from growing one without end.
const MAX_PARTS: usize = 64;

/// A sum of products: each product of factors (sorted, none for the constant) with its
/// coefficient, which is never zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Expr {
    terms: BTreeMap<Vec<Factor>, i64>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Factor {
    Symbol(Arc<str>),
    /// The expression divided by the number (2 or more), rounded down.
    Floor(Box<Expr>, i64),
}

impl Expr {
    pub(super) fn symbol(name: &str) -> Expr {
        Expr::of_factor(Factor::Symbol(name.into()))
    }

    pub(super) fn number(number: i64) -> Expr {
        let mut terms = BTreeMap::new();
        if number != 0 {
            terms.insert(Vec::new(), number);
        }
        Expr { terms }
    }

    fn of_factor(factor: Factor) -> Expr {
        Expr { terms: BTreeMap::from([(vec![factor], 1)]) }
    }

    pub(super) fn of(dim: &Dim) -> Result<Expr, OutOfRange> {
        match dim {
            Dim::Fixed(size) => Ok(Expr::number(i64::try_from(*size).map_err(|_| OutOfRange)?)),
            Dim::Symbolic(expr) => Ok(expr.clone()),
        }
    }

    /// A plain number becomes [`Dim::Fixed`]. A number below zero is an error.
    pub(super) fn into_dim(self) -> Result<Dim, OutOfRange> {
        match self.as_number() {
            Some(number) => u64::try_from(number).map(Dim::Fixed).map_err(|_| OutOfRange),
            None => Ok(Dim::Symbolic(self)),
        }
    }

    fn as_number(&self) -> Option<i64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Vec::new()).copied(),
            _ => None,
        }
    }

    pub(super) fn as_symbol(&self) -> Option<&str> {
        match self.only_factor()? {
            (Factor::Symbol(symbol), 0) => Some(symbol),
            _ => None,
        }
    }

    /// The factor and the number, if the expression is `factor + number`.
    fn only_factor(&self) -> Option<(&Factor, i64)> {
        let constant = self.terms.get(&Vec::new()).copied();
        if self.terms.len() != 1 + usize::from(constant.is_some()) {
            return None;
        }
        match self.terms.iter().next_back()? {
            (factors, 1) if factors.len() == 1 => Some((&factors[0], constant.unwrap_or(0))),
            _ => None,
        }
    }

    fn add_term(&mut self, factors: Vec<Factor>, coefficient: i64) -> Result<(), OutOfRange> {
        let sum = self.terms.get(&factors).copied().unwrap_or(0).checked_add(coefficient);
        match sum.ok_or(OutOfRange)? {
            0 => self.terms.remove(&factors),
            sum => self.terms.insert(factors, sum),
        };
        Ok(())
    }

    fn bounded(self) -> Result<Expr, OutOfRange> {
        if self.parts() > MAX_PARTS {
            return Err(OutOfRange);
        }
        Ok(self)
    }

    fn parts(&self) -> usize {
        let of_factor = |factor: &Factor| match factor {
            Factor::Symbol(_) => 1,
            Factor::Floor(inner, _) => 1 + inner.parts(),
        };
        self.terms.len() + self.terms.keys().flatten().map(of_factor).sum::<usize>()
    }

    pub(super) fn plus(&self, other: &Expr) -> Result<Expr, OutOfRange> {
        let mut sum = self.clone();
        for (factors, coefficient) in &other.terms {
            sum.add_term(factors.clone(), *coefficient)?;
        }
        sum.bounded()
    }

    pub(super) fn times(&self, other: &Expr) -> Result<Expr, OutOfRange> {
        let mut product = Expr::number(0);
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut factors = [left.as_slice(), right.as_slice()].concat();
                factors.sort();
                product.add_term(factors, a.checked_mul(*b).ok_or(OutOfRange)?)?;
            }
        }
        product.bounded()
    }

    pub(super) fn exact_div(&self, divisor: i64) -> Option<Expr> {
        let mut terms = self.terms.clone();
        for coefficient in terms.values_mut() {
            if coefficient.checked_rem(divisor)? != 0 {
                return None;
            }
            *coefficient /= divisor;
        }
        Some(Expr { terms })
    }

    /// Division rounded down. Multiples of the divisor move out of the floor, and common factors of
    /// all terms are cancelled: `(height + 1)//2 + 1` is found equal to `(height + 3)//2`.
    pub(super) fn floor_div(&self, divisor: i64) -> Result<Expr, OutOfRange> {
        if divisor <= 0 {
            return Err(OutOfRange);
        }
        let mut whole = Expr::number(0);
        let mut rest = Expr::number(0);
        for (factors, coefficient) in &self.terms {
            whole.add_term(factors.clone(), coefficient.div_euclid(divisor))?;
            rest.add_term(factors.clone(), coefficient.rem_euclid(divisor))?;
        }
        if rest.as_number().is_some() {
            return Ok(whole); // a number below the divisor rounds down to nothing
        }
        // floor((floor(x / a) + c) / b) = floor((x + c a) / (a b)): a tower of strided layers
        // stays one division.
        if let Some((Factor::Floor(inner, by), constant)) = rest.only_factor() {
            let shift = constant.checked_mul(*by).ok_or(OutOfRange)?;
            let divisor = by.checked_mul(divisor).ok_or(OutOfRange)?;
            let inner = inner.plus(&Expr::number(shift))?;
            return whole.plus(&inner.floor_div(divisor)?);
        }
        let (rest, divisor) = rest.cancel_common_factor(divisor);
        whole.plus(&Expr::of_factor(Factor::Floor(Box::new(rest), divisor)))
    }

    /// `self // divisor`, with the greatest common factor cancelled from both. The constant is
    /// rounded down on the way, which changes nothing.
    fn cancel_common_factor(mut self, divisor: i64) -> (Expr, i64) {
        let coefficients = self.terms.iter().filter(|(factors, _)| !factors.is_empty());
        let common =
            coefficients.fold(divisor, |common, (_, c)| greatest_common_divisor(common, *c));
        self.terms
            .values_mut()
            .for_each(|coefficient| *coefficient = coefficient.div_euclid(common));
        self.terms.retain(|_, coefficient| *coefficient != 0);
        (self, divisor / common)
    }

    pub(super) fn eval(&self, bindings: &Bindings) -> Option<i64> {
        self.terms.iter().try_fold(0i64, |sum, (factors, coefficient)| {
            let product = factors.iter().try_fold(*coefficient, |product, factor| {
                let value = match factor {
                    Factor::Symbol(symbol) => i64::try_from(bindings.get(symbol)?).ok()?,
                    Factor::Floor(inner, by) => inner.eval(bindings)?.checked_div_euclid(*by)?,
                };
                product.checked_mul(value)
            })?;
            sum.checked_add(product)
        })
    }

    pub(super) fn bind(&self, bindings: &Bindings) -> Result<Expr, OutOfRange> {
        let mut sum = Expr::number(0);
        for (factors, coefficient) in &self.terms {
            let mut product = Expr::number(*coefficient);
            for factor in factors {
                let bound = match factor {
                    Factor::Symbol(symbol) => match bindings.get(symbol) {
                        Some(size) => Expr::of(&Dim::Fixed(size))?,
                        None => Expr::of_factor(factor.clone()),
                    },
                    Factor::Floor(inner, by) => inner.bind(bindings)?.floor_div(*by)?,
                };
                product = product.times(&bound)?;
            }
            sum = sum.plus(&product)?;
        }
        Ok(sum)
    }

    pub(super) fn collect_symbols(&self, symbols: &mut BTreeSet<String>) {
        for factor in self.terms.keys().flatten() {
            match factor {
                Factor::Symbol(symbol) => drop(symbols.insert(symbol.to_string())),
                Factor::Floor(inner, _) => inner.collect_symbols(symbols),
            }
        }
    }
}

/// The greatest common divisor of `a > 0` and `b >= 0`.
fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::Symbol(symbol) => f.write_str(symbol),
            Factor::Floor(inner, by) => match inner.as_symbol() {
                Some(symbol) => write!(f, "({symbol}//{by})"),
                None => write!(f, "(({inner})//{by})"),
            },
        }
    }
}

/// Words first, as one reads it: `seq*512`, `batch*seq + 1`, `((height - 1)//2) + 1`.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        // The constant is the first in order, and read last.
        let (constant, others): (Vec<_>, Vec<_>) =
            self.terms.iter().partition(|(factors, _)| factors.is_empty());
        for (position, (factors, coefficient)) in others.into_iter().chain(constant).enumerate() {
            match (position, *coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let size = coefficient.unsigned_abs();
            let mut parts: Vec<String> = factors.iter().map(Factor::to_string).collect();
            if size != 1 || parts.is_empty() {
                parts.push(size.to_string());
            }
            f.write_str(&parts.join("*"))?;
        }
        Ok(())
    }
}
