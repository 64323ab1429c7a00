//! Formats of numbers in the JSON of events.

use serde::{Deserialize, Deserializer, Serializer};
use std::time::Duration;

/// A number that may be NaN, which JSON writes as `null`.
pub(crate) fn null_as_nan<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(from)?.unwrap_or_else(|| f32::NAN.into()))
}

/// A time in milliseconds, with three decimals.
pub(crate) mod milliseconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64((time.as_secs_f64() * 1e6).round() / 1e3)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let milliseconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(milliseconds / 1e3).map_err(serde::de::Error::custom)
    }
}
