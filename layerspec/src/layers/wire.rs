//! The form in which a layer travels: the name of its kind, then its arguments in the order of its
//! declaration.
//!
//! All kinds share one visitor. Derived implementations have a few thousand lines of code for each
//! kind and format, and took about a third of the time to build `pipeline`.

use super::LayerKind;
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The arguments of a kind of layer, as they travel. `layer!` writes it.
pub(crate) trait TravellingArguments: Sized {
    fn write<S: SerializeSeq>(&self, to: &mut S) -> Result<(), S::Error>;

    fn take<'de, A: SeqAccess<'de>>(from: &mut A) -> Result<Self, A::Error>;
}

/// Writes the name of a kind and this many arguments.
pub(super) fn write<S: Serializer>(
    name: &str,
    arguments: usize,
    layer: &impl TravellingArguments,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut to = serializer.serialize_seq(Some(1 + arguments))?;
    to.serialize_element(name)?;
    layer.write(&mut to)?;
    to.end()
}

/// The next argument.
pub(super) fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    from: &mut A,
) -> Result<T, A::Error> {
    from.next_element()?.ok_or_else(|| A::Error::custom("a layer with too few arguments"))
}

impl Serialize for LayerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.write(serializer)
    }
}

impl<'de> Deserialize<'de> for LayerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyKind;

        impl<'de> Visitor<'de> for AnyKind {
            type Value = LayerKind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a layer, and its arguments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<LayerKind, A::Error> {
                let name: String = next(&mut from)?;
                LayerKind::take(&name, &mut from)
            }
        }

        deserializer.deserialize_seq(AnyKind)
    }
}
