//! Frames on QUIC streams: a head of bounded size, then each tensor's bytes.

use crate::payload::Payload;
use bytes::{Bytes, BytesMut};
use pipeline::frame::{decode, head_len, Envelope};
use pipeline::TensorMeta;
use quinn::{RecvStream, SendStream};

/// Memory for a tensor is taken in steps of this size as its bytes arrive, so a frame that only
/// claims to be large costs little.
const STEP: usize = 64 << 20;

/// Reads the next frame; nothing at the end of the stream.
pub(crate) async fn read_frame(recv: &mut RecvStream) -> Result<Option<(Envelope, Vec<Payload>)>, String> {
    let mut prefix = [0u8; 4];
    match recv.read_exact(&mut prefix).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(e) => return Err(e.to_string()),
    }
    let mut head = vec![0; head_len(prefix).map_err(|e| e.to_string())?];
    recv.read_exact(&mut head).await.map_err(|e| e.to_string())?;
    let envelope = decode(&head).map_err(|e| e.to_string())?;
    let mut payloads = Vec::with_capacity(envelope.tensors.len());
    for meta in &envelope.tensors {
        payloads.push(Payload { meta: meta.clone(), bytes: read_tensor(recv, meta).await? });
    }
    Ok(Some((envelope, payloads)))
}

async fn read_tensor(recv: &mut RecvStream, meta: &TensorMeta) -> Result<Bytes, String> {
    let len = meta.byte_len().and_then(|len| usize::try_from(len).ok());
    let len = len.ok_or_else(|| format!("a tensor too large for this machine: {meta}"))?;
    let mut bytes = BytesMut::new();
    while bytes.len() < len {
        let from = bytes.len();
        bytes.resize(from + STEP.min(len - from), 0);
        recv.read_exact(&mut bytes[from..]).await.map_err(|e| e.to_string())?;
    }
    Ok(bytes.freeze())
}

/// Writes a frame: its encoded head, then the tensors' bytes without copying them.
pub(crate) async fn write_frame(
    send: &mut SendStream,
    head: Vec<u8>,
    tensors: Vec<Bytes>,
) -> Result<(), quinn::WriteError> {
    let mut chunks: Vec<Bytes> = [Bytes::from(head)].into_iter().chain(tensors).collect();
    send.write_all_chunks(&mut chunks).await
}
