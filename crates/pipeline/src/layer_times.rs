//! What a worker measures of one layer: times, and the memory that it keeps.

use serde::{Deserialize, Serialize};

/// Times and memory of a layer on one worker for one microbatch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerTimes {
    /// Nanoseconds of its forward pass.
    pub forward: u64,
    /// Nanoseconds of its backward pass, both halves at once.
    pub backward: u64,
    /// Nanoseconds of the half for its inputs.
    pub backward_input: u64,
    /// Nanoseconds of the half for its parameters.
    pub backward_weight: u64,
    /// Nanoseconds of an optimizer step over its parameters.
    pub optim_step: u64,
    /// Bytes kept from forward to backward, without those of inputs and outputs.
    pub saved_bytes: u64,
    /// Bytes kept from the first half of backward to the second, without those of inputs.
    pub saved_bytes_between: u64,
    /// What it keeps in the memory of its inputs and outputs, which other layers may keep, too.
    pub saved_ports: SavedPorts,
}

/// The inputs and outputs of a layer whose memory it keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedPorts {
    /// The inputs that it keeps from forward to backward.
    pub inputs: Ports,
    /// The outputs that it keeps from forward to backward.
    pub outputs: Ports,
    /// The inputs that it keeps from the first half of backward to the second.
    pub inputs_between: Ports,
    /// The outputs that lie in the memory of the first input.
    pub views: Ports,
}

/// Some of the first 64 inputs or outputs of a layer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ports(u64);

impl Ports {
    /// The number of ports that can be among them.
    pub const MOST: usize = u64::BITS as usize;

    /// Whether this port is one of them.
    pub fn contains(self, port: usize) -> bool {
        port < Self::MOST && self.0 & (1 << port) != 0
    }
}

/// Leaves out ports from the 64th on.
impl FromIterator<usize> for Ports {
    fn from_iter<I: IntoIterator<Item = usize>>(ports: I) -> Self {
        let ports = ports.into_iter().filter(|port| *port < Self::MOST);
        Ports(ports.fold(0, |all, port| all | 1 << port))
    }
}

/// An hour in nanoseconds, also used as a limit for bytes. Sums of such numbers never overflow.
const MOST: u64 = 3_600_000_000_000;

impl LayerTimes {
    /// Bounds the figures, which come from another machine and enter calculations.
    pub(crate) fn bounded(&self) -> Self {
        LayerTimes {
            forward: self.forward.min(MOST),
            backward: self.backward.min(MOST),
            backward_input: self.backward_input.min(MOST),
            backward_weight: self.backward_weight.min(MOST),
            optim_step: self.optim_step.min(MOST),
            saved_bytes: self.saved_bytes.min(MOST),
            saved_bytes_between: self.saved_bytes_between.min(MOST),
            saved_ports: self.saved_ports,
        }
    }
}
