//! A connection at work: one ordered stream for control, a stream of its own for every tensor frame,
//! so that a large tensor holds nothing up.

use crate::payload::Payload;
use crate::wire::{read_frame, write_frame};
use bytes::Bytes;
use pipeline::effect::Peer;
use pipeline::frame::Envelope;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::sync::mpsc;

/// Close codes.
pub(crate) const DONE: VarInt = VarInt::from_u32(0);
pub(crate) const BROKE_PROTOCOL: VarInt = VarInt::from_u32(1);

/// What a connection reports to its driver.
#[derive(Debug)]
pub(crate) enum Event {
    Frame {
        from: Peer,
        envelope: Envelope,
        payloads: Vec<Payload>,
    },
    /// `connection` tells an old connection's end from that of one that took its place.
    Closed {
        from: Peer,
        connection: usize,
        reason: String,
    },
}

/// A connection that is up. Dropping it does not close it; its tasks end with the connection.
pub(crate) struct Connection {
    quic: quinn::Connection,
    control: mpsc::UnboundedSender<Vec<u8>>,
    data: mpsc::UnboundedSender<(Vec<u8>, Vec<Bytes>)>,
}

impl Connection {
    /// Starts reading and writing. `control` is the stream on which the ends greeted each other.
    pub(crate) fn start(
        peer: Peer,
        quic: quinn::Connection,
        control: (SendStream, RecvStream),
        events: &mpsc::Sender<Event>,
    ) -> Self {
        let (control_in, mut control_out) = mpsc::unbounded_channel::<Vec<u8>>();
        let (data_in, mut data_out) = mpsc::unbounded_channel::<(Vec<u8>, Vec<Bytes>)>();
        let (mut send, recv) = control;
        // Control goes before tensors when both wait for the network.
        send.set_priority(1).ok();
        tokio::spawn(async move {
            while let Some(head) = control_out.recv().await {
                if write_frame(&mut send, head, Vec::new()).await.is_err() {
                    return; // the reader reports the loss
                }
            }
            send.finish().ok();
        });
        let writer = quic.clone();
        tokio::spawn(async move {
            while let Some((head, tensors)) = data_out.recv().await {
                let Ok(mut stream) = writer.open_uni().await else { return };
                if write_frame(&mut stream, head, tensors).await.is_err() || stream.finish().is_err() {
                    return;
                }
            }
        });
        tokio::spawn(read(peer, quic.clone(), recv, events.clone()));
        Connection { quic, control: control_in, data: data_in }
    }

    /// Hands a frame to the writer of its lane; frames of one lane start in the order given.
    pub(crate) fn send(&self, is_data: bool, head: Vec<u8>, tensors: Vec<Bytes>) {
        // A writer that has ended means a lost connection, which the reader reports.
        if is_data {
            self.data.send((head, tensors)).ok();
        } else {
            self.control.send(head).ok();
        }
    }

    pub(crate) fn close(&self, code: VarInt, reason: &str) {
        self.quic.close(code, reason.as_bytes());
    }

    /// Names this connection among all of the process.
    pub(crate) fn id(&self) -> usize {
        self.quic.stable_id()
    }

    /// Whether the other end has closed, or is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.quic.close_reason().is_some()
    }
}

/// Reads every stream until the connection ends, and says how it ended.
async fn read(peer: Peer, quic: quinn::Connection, mut control: RecvStream, events: mpsc::Sender<Event>) {
    let control_events = events.clone();
    let control_quic = quic.clone();
    tokio::spawn(async move { while forward(peer, &control_quic, &mut control, &control_events).await {} });
    let reason = loop {
        match quic.accept_uni().await {
            Ok(mut stream) => {
                let (quic, events) = (quic.clone(), events.clone());
                tokio::spawn(async move { while forward(peer, &quic, &mut stream, &events).await {} });
            }
            Err(e) => break close_reason(&e),
        }
    };
    events.send(Event::Closed { from: peer, connection: quic.stable_id(), reason }).await.ok();
}

/// Hands one frame to the driver; false where no more will come.
async fn forward(peer: Peer, quic: &quinn::Connection, stream: &mut RecvStream, events: &mpsc::Sender<Event>) -> bool {
    match read_frame(stream).await {
        Ok(Some((envelope, payloads))) => events.send(Event::Frame { from: peer, envelope, payloads }).await.is_ok(),
        Ok(None) => false,
        // Where the connection itself is gone, `read` says why.
        Err(_) if quic.close_reason().is_some() => false,
        Err(reason) => {
            let reason_here = format!("it broke the protocol: {reason}");
            let closed = Event::Closed { from: peer, connection: quic.stable_id(), reason: reason_here };
            events.send(closed).await.ok();
            quic.close(BROKE_PROTOCOL, reason.as_bytes());
            false
        }
    }
}

/// Why a connection ended, in words.
pub(crate) fn close_reason(e: &quinn::ConnectionError) -> String {
    match e {
        quinn::ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "it closed the connection".into()
        }
        quinn::ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
        quinn::ConnectionError::TimedOut => "silent for more than 3 seconds".into(),
        quinn::ConnectionError::LocallyClosed => "closed here".into(),
        quinn::ConnectionError::Reset => "it was restarted".into(),
        other => other.to_string(),
    }
}
