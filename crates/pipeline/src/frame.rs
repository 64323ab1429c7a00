//! The frame: a MessagePack head of bounded size, then raw tensor bytes.
//!
//! ```text
//! | head length: u32 little-endian | head: MessagePack of Envelope | tensor 0 | tensor 1 | ...
//! ```
//!
//! The head states the length of each tensor. So a reader bounds every size before it allocates
//! memory. The type of the envelope depends on the connection: a peer that sends a message of the
//! wrong direction sends a head that cannot be decoded.

use crate::ids::WorkerId;
use crate::message::{NoMessage, ToBoss, ToWorker};
use crate::tensor_head::TensorHead;
use crate::tensor_meta::TensorMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most bytes of a head. The largest real head is an assignment with all layers of a model.
pub const MAX_HEAD_BYTES: usize = 16 << 20;
/// The most bytes of tensors in one frame.
pub const MAX_BODY_BYTES: u64 = 16 << 30;

/// Everything in a frame but the tensors' bytes. `M` are the messages of one direction:
/// [`ToWorker`], [`ToBoss`] or [`NoMessage`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Envelope<M> {
    /// A message, without tensors.
    Message(M),
    /// Tensors.
    Tensors(TensorEnvelope),
}

/// Everything in a frame with tensors but their bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TensorEnvelope {
    /// Set on frames that the boss relays.
    pub route: Option<Route>,
    /// The head.
    pub head: TensorHead,
    /// The dtype and shape of the tensors that follow.
    pub tensors: Vec<TensorMeta>,
}

impl<M> Envelope<M> {
    /// The dtype and shape of the tensors that follow.
    pub fn tensors(&self) -> &[TensorMeta] {
        match self {
            Envelope::Message(_) => &[],
            Envelope::Tensors(envelope) => &envelope.tensors,
        }
    }
}

/// The two workers of a relayed frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Route {
    /// The sender.
    pub from: WorkerId,
    /// The receiver.
    pub to: WorkerId,
}

/// Why bytes are not a frame.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The head is larger than any real one.
    #[error("a frame head of {0} bytes; at most {MAX_HEAD_BYTES} are allowed")]
    HeadTooLong(u64),
    /// The head is not what this version understands.
    #[error("a frame head that cannot be read: {0}")]
    Head(String),
    /// A tensor or their sum is larger than allowed.
    #[error("a frame with {0} of tensors; at most {MAX_BODY_BYTES} bytes are allowed")]
    BodyTooLong(String),
    /// The number of tensors does not fit the head.
    #[error("a frame with {got} tensors where {least} to {most} belong")]
    TensorCount {
        /// The number of its tensors.
        got: usize,
        /// The least possible number.
        least: usize,
        /// The greatest possible number.
        most: usize,
    },
}

/// Checks the four bytes that start a frame; gives the length of the head.
pub fn head_len(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(prefix) as usize;
    if len > MAX_HEAD_BYTES {
        return Err(FrameError::HeadTooLong(len as u64));
    }
    Ok(len)
}

/// The messages of one direction.
///
/// Heads are coded by functions that are not generic. So the compiler makes the code for all
/// messages in this crate alone, and not in each crate that reads or sends them.
pub trait FrameMessage: Sized {
    /// [`decode()`] for this direction.
    ///
    /// # Errors
    /// As for [`decode()`].
    fn decode_head(head: &[u8]) -> Result<Envelope<Self>, FrameError>;

    /// [`encode()`] for this direction.
    ///
    /// # Errors
    /// As for [`encode()`].
    fn encode_head(envelope: &Envelope<Self>) -> Result<Vec<u8>, FrameError>;
}

macro_rules! frame_messages {
    ($($message:ty),*) => {$(
        impl FrameMessage for $message {
            fn decode_head(head: &[u8]) -> Result<Envelope<Self>, FrameError> {
                read_head(head)
            }

            fn encode_head(envelope: &Envelope<Self>) -> Result<Vec<u8>, FrameError> {
                write_head(envelope)
            }
        }
    )*};
}

frame_messages!(ToWorker, ToBoss, NoMessage);

/// Reads a head. The result has the right number of tensors, each of a real size.
///
/// # Errors
/// The bytes are no head of this direction, or state a size that is not allowed.
pub fn decode<M: FrameMessage>(head: &[u8]) -> Result<Envelope<M>, FrameError> {
    M::decode_head(head)
}

/// Writes length and head; the tensors' bytes follow it on the wire.
///
/// # Errors
/// The envelope is larger than allowed.
pub fn encode<M: FrameMessage>(envelope: &Envelope<M>) -> Result<Vec<u8>, FrameError> {
    M::encode_head(envelope)
}

fn read_head<M: DeserializeOwned>(head: &[u8]) -> Result<Envelope<M>, FrameError> {
    let mut rest = head;
    let mut reader = rmp_serde::Deserializer::new(&mut rest);
    reader.set_max_depth(64);
    let envelope =
        Envelope::deserialize(&mut reader).map_err(|e| FrameError::Head(e.to_string()))?;
    if !rest.is_empty() {
        return Err(FrameError::Head(format!("{} bytes more than it has", rest.len())));
    }
    check(&envelope)?;
    Ok(envelope)
}

fn write_head<M: Serialize>(envelope: &Envelope<M>) -> Result<Vec<u8>, FrameError> {
    check(envelope)?;
    let mut out = vec![0; 4];
    rmp_serde::encode::write(&mut out, envelope).map_err(|e| FrameError::Head(e.to_string()))?;
    let len = out.len() - 4;
    if len > MAX_HEAD_BYTES {
        return Err(FrameError::HeadTooLong(len as u64));
    }
    out[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(out)
}

fn check<M>(envelope: &Envelope<M>) -> Result<(), FrameError> {
    let Envelope::Tensors(envelope) = envelope else { return Ok(()) };
    let (least, most) = envelope.head.tensors();
    let got = envelope.tensors.len();
    if got < least || got > most {
        return Err(FrameError::TensorCount { got, least, most });
    }
    let mut sum = 0u64;
    for tensor in &envelope.tensors {
        let len = tensor.byte_len().ok_or_else(|| FrameError::BodyTooLong(tensor.to_string()))?;
        sum = sum.saturating_add(len);
    }
    if sum > MAX_BODY_BYTES {
        return Err(FrameError::BodyTooLong(format!("{sum} bytes")));
    }
    Ok(())
}
