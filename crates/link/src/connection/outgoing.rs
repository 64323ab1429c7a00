//! Encodes the frames that a session sends, for each receiver.

use crate::memory::payload::Payload;
use pipeline::effect::Destination;
use pipeline::frame::{encode, Envelope, FrameMessage, TensorEnvelope};
use pipeline::message::NoMessage;

/// The way of a frame through a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Channel {
    /// The ordered stream.
    Control,
    /// A stream of its own if the tensors are large.
    Data,
    /// The same, with lower priority than all others.
    Background,
}

/// Encodes the head for one receiver, and chooses the channel of the frame.
///
/// # Errors
/// The head is larger than a frame may have.
pub fn encode_head(to: &Destination, tensors: &[Payload]) -> Result<(Channel, Vec<u8>), String> {
    let envelope = TensorEnvelope {
        route: to.route,
        head: to.head.clone(),
        tensors: tensors.iter().map(|t| t.meta.clone()).collect(),
    };
    let channel = if to.head.can_wait() { Channel::Background } else { Channel::Data };
    let envelope = Envelope::<NoMessage>::Tensors(envelope);
    Ok((channel, encode(&envelope).map_err(|e| e.to_string())?))
}

/// Encodes a message, for [`Channel::Control`].
///
/// # Errors
/// The message is larger than a head may be.
pub fn encode_message<M: FrameMessage>(message: M) -> Result<Vec<u8>, String> {
    encode(&Envelope::Message(message)).map_err(|e| e.to_string())
}
