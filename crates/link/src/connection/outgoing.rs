//! Turns a session's send into bytes for each receiver.

use crate::memory::payload::{Payload, Slots};
use pipeline::effect::Destination;
use pipeline::frame::{encode, Envelope};
use pipeline::ids::Slot;

/// Takes the tensors of a send out of their slots.
pub fn take_payloads(slots: &Slots, numbers: &[Slot]) -> Result<Vec<Payload>, String> {
    let missing = |slot: &Slot| format!("{slot} holds no tensor; please report it");
    numbers.iter().map(|slot| slots.remove(*slot).ok_or_else(|| missing(slot))).collect()
}

/// How a frame goes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Channel {
    /// On the ordered stream.
    Control,
    /// On a stream of its own if it is large.
    Data,
    /// The same, when nothing else wants to go.
    Background,
}

/// The encoded head for one receiver, and how the frame goes.
pub fn encode_head(to: &Destination, tensors: &[Payload]) -> Result<(Channel, Vec<u8>), String> {
    let envelope =
        Envelope { route: to.route, head: to.head.clone(), tensors: tensors.iter().map(|t| t.meta.clone()).collect() };
    let way = match (to.head.is_data(), to.head.can_wait()) {
        (false, _) => Channel::Control,
        (true, false) => Channel::Data,
        (true, true) => Channel::Background,
    };
    Ok((way, encode(&envelope).map_err(|e| e.to_string())?))
}
