//! Frames on QUIC streams: a head of bounded size, then each tensor's bytes, or their location in
//! shared memory.
//!
//! ```text
//! | length of the head          | head | tensor 0 | tensor 1 | ...
//! | length of the head + SHARED | head | block: u32 LE | generation: u64 LE | offset: u64 LE |
//! | length of the message + LINK_MESSAGE   | message |
//! ```
//!
//! `SHARED` and `LINK_MESSAGE` are bits that no length has.

use crate::connection::link_message::{self, LinkMessage, LINK_MESSAGE};
use crate::memory::payload::Payload;
use crate::memory::pool::BufferPool;
use crate::memory::shared::SharedMemory;
use bytes::{Bytes, BytesMut};
use pipeline::frame::{decode, head_len, Envelope, FrameMessage, TensorEnvelope};
use pipeline::TensorMeta;
use quinn::RecvStream;
use shm::BlockLocation;

/// The bit that marks a frame whose tensors are in shared memory.
const SHARED: u32 = 1 << 31;
const LOCATION_BYTES: usize = 20;
/// A large tensor takes memory in steps of this size, as its bytes arrive. So a frame that only
/// claims to be large costs little.
const STEP: usize = 64 << 20;

/// An item of a stream.
pub(crate) enum Incoming<M> {
    Message(M),
    Frame(TensorEnvelope, Vec<Payload>),
    LinkMessage(LinkMessage),
}

/// Reads the next item. Returns `None` at the end of the stream.
///
/// # Errors
/// The other end broke the protocol, or the connection is lost.
pub(crate) async fn read<M: FrameMessage>(
    recv: &mut RecvStream,
    memory: &SharedMemory,
    pool: &BufferPool,
) -> Result<Option<Incoming<M>>, String> {
    let mut prefix = [0u8; 4];
    match recv.read_exact(&mut prefix).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(e) => return Err(e.to_string()),
    }
    let marked = u32::from_le_bytes(prefix);
    // A length with both marks matches neither, and is refused below as too large.
    let mark = marked & (SHARED | LINK_MESSAGE);
    if mark == LINK_MESSAGE {
        let len = (marked & !LINK_MESSAGE) as usize;
        if len > link_message::MAX_BYTES {
            return Err(format!("a link message of {len} bytes"));
        }
        return Ok(Some(Incoming::LinkMessage(LinkMessage::decode(&body(recv, len).await?)?)));
    }
    let len = if mark == SHARED { marked & !SHARED } else { marked };
    let len = head_len(len.to_le_bytes()).map_err(|e| e.to_string())?;
    let envelope = match decode(&body(recv, len).await?).map_err(|e| e.to_string())? {
        Envelope::Tensors(envelope) => envelope,
        Envelope::Message(message) if mark == 0 => return Ok(Some(Incoming::Message(message))),
        Envelope::Message(_) => return Err("a message with tensors in shared memory".into()),
    };
    let tensors = if mark == SHARED {
        let location = location(&body(recv, LOCATION_BYTES).await?)
            .ok_or("a location in shared memory that cannot be read")?;
        memory.read(location, &envelope.tensors)?
    } else {
        let mut tensors = Vec::with_capacity(envelope.tensors.len());
        for meta in &envelope.tensors {
            tensors.push(read_tensor(recv, meta, pool).await?);
        }
        tensors
    };
    let payloads = envelope.tensors.iter().zip(tensors);
    let payloads = payloads.map(|(meta, bytes)| Payload { meta: meta.clone(), bytes }).collect();
    Ok(Some(Incoming::Frame(envelope, payloads)))
}

async fn body(recv: &mut RecvStream, len: usize) -> Result<Vec<u8>, String> {
    let mut body = vec![0; len];
    recv.read_exact(&mut body).await.map_err(|e| e.to_string())?;
    Ok(body)
}

async fn read_tensor(
    recv: &mut RecvStream,
    meta: &TensorMeta,
    pool: &BufferPool,
) -> Result<Bytes, String> {
    let len = meta.byte_len().and_then(|len| usize::try_from(len).ok());
    let len = len.ok_or_else(|| format!("a tensor too large for this machine: {meta}"))?;
    if len <= STEP {
        let mut buffer = pool.get(len);
        recv.read_exact(buffer.bytes_mut()).await.map_err(|e| e.to_string())?;
        return Ok(buffer.freeze());
    }
    let mut bytes = BytesMut::new();
    while bytes.len() < len {
        // The memory is not filled first. Pages that are never written cost nothing, and most of
        // the bytes may never arrive.
        if bytes.len() == bytes.capacity() {
            bytes.reserve(STEP.min(len - bytes.len()));
        }
        let room = (bytes.capacity() - bytes.len()).min(len - bytes.len());
        let chunk = recv.read_chunk(room, true).await.map_err(|e| e.to_string())?;
        bytes.extend_from_slice(&chunk.ok_or("a tensor that ends early")?.bytes);
    }
    Ok(bytes.freeze())
}

/// Encodes a frame whose tensors lie in shared memory.
pub(crate) fn shared_frame(mut head: Vec<u8>, location: BlockLocation) -> Vec<Bytes> {
    if let Some(mark) = head.get_mut(3) {
        *mark |= SHARED.to_le_bytes()[3];
    }
    head.extend(location.block.to_le_bytes());
    head.extend(location.generation.to_le_bytes());
    head.extend(location.offset.to_le_bytes());
    vec![head.into()]
}

/// Joins a head and its tensors without copying them.
pub(crate) fn whole_frame(head: Vec<u8>, tensors: Vec<Bytes>) -> Vec<Bytes> {
    [Bytes::from(head)].into_iter().chain(tensors).collect()
}

fn location(bytes: &[u8]) -> Option<BlockLocation> {
    let (block, rest) = bytes.split_first_chunk()?;
    let (generation, rest) = rest.split_first_chunk()?;
    let (offset, _) = rest.split_first_chunk()?;
    Some(BlockLocation {
        block: u32::from_le_bytes(*block),
        generation: u64::from_le_bytes(*generation),
        offset: u64::from_le_bytes(*offset),
    })
}
