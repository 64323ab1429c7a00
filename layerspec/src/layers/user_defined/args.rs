//! Arguments that only the code of an own layer understands.

use crate::spec::is_name;
use crate::yaml::{Kind, Node, Reader};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An argument's value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Arg {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Arg>),
    /// A symbol of the inputs' shapes, in the arguments of `Aten`.
    Size {
        /// The symbol.
        symbol: String,
        /// The input that has this size.
        port: usize,
        /// The dimension of that input.
        dim: usize,
    },
}

impl Arg {
    fn locate(&mut self, find: &dyn Fn(&str) -> Option<(usize, usize)>) {
        match self {
            Arg::Text(text) => {
                if let Some((port, dim)) = find(text) {
                    let symbol = std::mem::take(text);
                    *self = Arg::Size { symbol, port, dim };
                }
            }
            Arg::List(list) => list.iter_mut().for_each(|arg| arg.locate(find)),
            Arg::Flag(_) | Arg::Integer(_) | Arg::Number(_) | Arg::Size { .. } => {}
        }
    }
}

/// Named arguments.
///
/// ```
/// use layerspec::layers::{Arg, Args};
/// let args = Args::from([("beta", Arg::Number(1.5))]);
/// assert_eq!(args.number("beta"), Ok(1.5));
/// let unknown = "unknown argument `beta`: expected one of bete".to_string();
/// assert_eq!(args.known(&["bete"]), Err(unknown));
/// let missing = "missing argument `heads`: expected a whole number".to_string();
/// assert_eq!(args.integer("heads"), Err(missing));
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Args(BTreeMap<String, Arg>);

impl<const N: usize> From<[(&str, Arg); N]> for Args {
    fn from(args: [(&str, Arg); N]) -> Self {
        Args(args.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl Args {
    /// The argument, if the model file gives one.
    pub fn get(&self, name: &str) -> Option<&Arg> {
        self.0.get(name)
    }

    /// All arguments with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arg)> {
        self.0.iter().map(|(name, arg)| (name.as_str(), arg))
    }

    /// Makes sizes of the texts that are symbols.
    pub(super) fn locate(&mut self, find: impl Fn(&str) -> Option<(usize, usize)>) {
        self.0.values_mut().for_each(|arg| arg.locate(&find));
    }

    /// Refuses arguments of other names than these.
    pub fn known(&self, names: &[&str]) -> Result<(), String> {
        match self.0.keys().find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(other) if names.is_empty() => {
                Err(format!("unknown argument `{other}`: expected none"))
            }
            Some(other) => {
                Err(format!("unknown argument `{other}`: expected one of {}", names.join(", ")))
            }
        }
    }

    /// A number, whole or not.
    pub fn number(&self, name: &str) -> Result<f64, String> {
        self.required(name, "a number", |arg| match arg {
            Arg::Number(number) => Some(*number),
            Arg::Integer(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A whole number.
    pub fn integer(&self, name: &str) -> Result<i64, String> {
        self.required(name, "a whole number", |arg| match arg {
            Arg::Integer(number) => Some(*number),
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        self.required(name, "`true` or `false`", |arg| match arg {
            Arg::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Text.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        self.required(name, "text", |arg| match arg {
            Arg::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn required<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: fn(&'a Arg) -> Option<T>,
    ) -> Result<T, String> {
        let arg = self
            .0
            .get(name)
            .ok_or_else(|| format!("missing argument `{name}`: expected {expected}"))?;
        read(arg).ok_or_else(|| format!("argument `{name}`: expected {expected}, found {arg:?}"))
    }
}

fn arg(node: &Node) -> Option<Arg> {
    Some(match &node.kind {
        Kind::Bool(flag) => Arg::Flag(*flag),
        Kind::Int(number) => Arg::Integer(*number),
        Kind::Float(number) => Arg::Number(*number),
        Kind::Text(text) => Arg::Text(text.clone()),
        Kind::List(items) => Arg::List(items.iter().map(arg).collect::<Option<_>>()?),
        Kind::Null | Kind::Map(_) => return None,
    })
}

/// A mapping of names to numbers, words, flags and lists of them.
pub(super) const ARGS: Reader<Args> =
    Reader::new("a mapping of names to numbers, text, `true`, `false` or lists", |node| {
        let Kind::Map(entries) = &node.kind else { return None };
        let mut args = BTreeMap::new();
        for entry in entries {
            let name = Some(&entry.key.text).filter(|name| is_name(name))?;
            if args.insert(name.clone(), arg(&entry.value)?).is_some() {
                return None;
            }
        }
        Some(Args(args))
    });
