//! The collective operation by which replicas sum their gradients.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The means by which the gradients of replicas are summed.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Collective {
    /// NCCL if all replicas are on one machine and have it, otherwise frames.
    #[default]
    Auto,
    /// Frames between workers over QUIC.
    Quic,
    /// NCCL, whose connections between machines are neither encrypted nor authenticated.
    Nccl,
}

impl Collective {
    /// Every value, with its name in run files.
    pub const NAMES: [(&'static str, Collective); 3] =
        [("auto", Collective::Auto), ("quic", Collective::Quic), ("nccl", Collective::Nccl)];
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, way)| way == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Collective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, way)| *way);
        found.ok_or_else(|| {
            format!("`{text}` is no way to sum gradients: expected auto, quic or nccl")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, way) in Collective::NAMES {
            assert_eq!((way.to_string().as_str(), name.parse()), (name, Ok(way)));
        }
        assert!("mpi".parse::<Collective>().unwrap_err().contains("auto, quic or nccl"));
    }
}
