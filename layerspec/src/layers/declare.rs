//! Declaring a kind of layer: its arguments, how they are read, and what the manual says of them.

use super::Rules;
use crate::yaml::{Choice, Mapping};
use crate::Diagnostic;

/// A kind's name, arguments and documentation; `layer!` writes it.
pub(crate) trait Declaration: Sized + Rules {
    const NAME: &'static str;
    const DOC: &'static str;
    const ARGUMENTS: &'static [Argument];
    /// Arguments that PyTorch has and this layer refuses.
    const UNSUPPORTED: &'static [UnsupportedArgument];

    fn read(arguments: &Mapping<'_>) -> Result<Self, Diagnostic>;
}

/// One argument of a kind of layer.
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) expected: &'static str,
    /// The default as a file would write it; None if the argument must be given.
    pub(crate) default: Option<&'static str>,
}

/// An argument of PyTorch's that a layer does not take, and what to do instead.
#[derive(Debug)]
pub(crate) struct UnsupportedArgument {
    pub(crate) name: &'static str,
    pub(crate) instead: &'static str,
}

/// Everything the reference manual says of a kind.
#[derive(Debug)]
pub(crate) struct Manual {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) arguments: &'static [Argument],
    pub(crate) refused: &'static [UnsupportedArgument],
}

impl Manual {
    pub(crate) fn of<L: Declaration>() -> Manual {
        Manual { name: L::NAME, doc: L::DOC, arguments: L::ARGUMENTS, refused: L::UNSUPPORTED }
    }
}

/// Reads and checks the arguments of one kind of layer.
pub(crate) fn read_layer<L: Declaration>(choice: &Choice<'_>) -> Result<L, Diagnostic> {
    let known: Vec<&str> = L::ARGUMENTS.iter().map(|argument| argument.name).collect();
    for refused in L::UNSUPPORTED {
        if let Some(key) = choice.argument(refused.name) {
            let message =
                format!("argument `{}` is not supported: {}", refused.name, refused.instead);
            return Err(Diagnostic::new(key.location, message));
        }
    }
    let arguments = choice.arguments(&known)?;
    let layer = L::read(&arguments)?;
    layer.check().map_err(|bad| {
        let location = arguments.get(bad.name).map_or(choice.location, |node| node.location);
        Diagnostic::new(location, format!("`{}`: expected {}", bad.name, bad.expected))
    })?;
    Ok(layer)
}

/// Declares a kind of layer: its struct, and its arguments with how each is read. The comments
/// are the reference manual's words.
///
/// ```text
/// layer! {
///     /// What it computes.
///     Name {
///         /// What it is.
///         required: u64 = SIZE;
///         /// What it is; the default as a file writes it follows where Rust writes it otherwise.
///         optional: [u64; 2] = PAIR, or [1, 1] => "1";
///     }
///     unsupported { other: "what to do instead"; }       // may be left out
/// }
/// ```
macro_rules! layer {
    (
        $(#[doc = $doc:literal])+
        $Name:ident {
            $(
                $(#[doc = $field_doc:literal])+
                $field:ident: $Type:ty = $reader:expr $(, or $default:expr $(=> $shown:literal)?)?;
            )*
        }
        $(unsupported { $($refused:ident: $instead:literal;)* })?
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Debug)]
        pub struct $Name {
            $($(#[doc = $field_doc])+ pub $field: $Type,)*
        }

        impl $crate::layers::Declaration for $Name {
            const NAME: &'static str = stringify!($Name);
            const DOC: &'static str = concat!($($doc),+);
            const ARGUMENTS: &'static [$crate::layers::Argument] = &[$(
                $crate::layers::Argument {
                    name: stringify!($field),
                    doc: concat!($($field_doc),+),
                    expected: $reader.expected,
                    default: layer!(@shown $($default $(=> $shown)?)?),
                }
            ),*];
            const UNSUPPORTED: &'static [$crate::layers::UnsupportedArgument] = &[$($(
                $crate::layers::UnsupportedArgument {
                    name: stringify!($refused),
                    instead: $instead,
                }
            ),*)?];

            #[allow(unused_variables)] // a layer without arguments reads none
            fn read(arguments: &$crate::yaml::Mapping<'_>) -> Result<Self, $crate::Diagnostic> {
                $(let $field: $Type = layer!(@read arguments, $field, $reader $(, $default)?);)*
                Ok($Name { $($field),* })
            }
        }

        #[allow(unused_variables)] // a layer without arguments has none to write or take
        impl $crate::layers::TravellingArguments for $Name {
            fn write<S: serde::ser::SerializeSeq>(&self, to: &mut S) -> Result<(), S::Error> {
                $(to.serialize_element(&self.$field)?;)*
                Ok(())
            }

            fn take<'de, A: serde::de::SeqAccess<'de>>(from: &mut A) -> Result<Self, A::Error> {
                Ok($Name { $($field: $crate::layers::wire::next(from)?),* })
            }
        }
    };
    (@shown) => { None };
    (@shown $default:expr) => { Some(stringify!($default)) };
    (@shown $default:expr => $shown:literal) => { Some($shown) };
    (@read $arguments:ident, $field:ident, $reader:expr) => {
        $arguments.required(stringify!($field), &$reader)?
    };
    (@read $arguments:ident, $field:ident, $reader:expr, $default:expr) => {
        match $arguments.optional(stringify!($field), &$reader)? {
            Some(value) => value,
            None => $default,
        }
    };
}
pub(super) use layer;
