//! Turns a session's send into bytes for each receiver.

use crate::payload::{Payload, Slots};
use pipeline::effect::Destination;
use pipeline::frame::{encode, Envelope};
use pipeline::ids::Slot;

/// Takes the tensors of a send out of their slots.
pub(crate) fn take(slots: &Slots, numbers: &[Slot]) -> Result<Vec<Payload>, String> {
    let missing = |slot: &Slot| format!("{slot} holds no tensor; please report it");
    numbers.iter().map(|slot| slots.take(*slot).ok_or_else(|| missing(slot))).collect()
}

/// The encoded head for one receiver, and whether the frame goes on a stream of its own.
pub(crate) fn head(to: &Destination, tensors: &[Payload]) -> Result<(bool, Vec<u8>), String> {
    let envelope =
        Envelope { route: to.route, head: to.head.clone(), tensors: tensors.iter().map(|t| t.meta.clone()).collect() };
    Ok((to.head.is_data(), encode(&envelope).map_err(|e| e.to_string())?))
}
