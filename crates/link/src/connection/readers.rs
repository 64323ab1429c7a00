//! The tasks that read the streams of a connection, and report how it ends.

use crate::connection::event::ConnectionEvent;
use crate::connection::link_message::LinkMessage;
use crate::connection::liveness::SILENT;
use crate::connection::negotiation::on_link_message;
use crate::connection::probe;
use crate::connection::shared::ConnectionShared;
use crate::connection::wire::{self, Incoming};
use crate::quic::close_codes::{EVICTED, PROTOCOL_VIOLATION};
use pipeline::frame::FrameMessage;
use quinn::{ConnectionError, RecvStream};
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::{info, Instrument};

/// Reads every stream until the connection ends, and reports how it ended.
pub(crate) async fn read_streams<D, M>(
    shared: Arc<ConnectionShared>,
    control: RecvStream,
    events: mpsc::Sender<ConnectionEvent<M>>,
) where
    D: FrameMessage + Into<M> + Send + 'static,
    M: Send + 'static,
{
    let read =
        |stream| read_stream::<D, M>(shared.clone(), stream, events.clone()).in_current_span();
    tokio::spawn(read(control));
    let error = loop {
        match shared.quic.accept_uni().await {
            Ok(stream) => drop(tokio::spawn(read(stream))),
            Err(error) => break error,
        }
    };
    let permanent = matches!(
        &error,
        ConnectionError::ApplicationClosed(close) if close.error_code == EVICTED
    );
    let reason =
        shared.closed_here.get().map_or_else(|| close_reason(&error), |reason| reason.to_string());
    info!(peer = %shared.peer, reason, permanent, "connection closed");
    let (from, connection) = (shared.peer, shared.id);
    events.send(ConnectionEvent::Closed { from, connection, reason, permanent }).await.ok();
}

/// Reads a stream to its end.
async fn read_stream<D: FrameMessage + Into<M>, M>(
    shared: Arc<ConnectionShared>,
    mut stream: RecvStream,
    events: mpsc::Sender<ConnectionEvent<M>>,
) {
    loop {
        match read_item::<D, M>(&shared, &mut stream, &events).await {
            Ok(true) => {}
            Ok(false) => return,
            // If the connection itself ended, `read_streams` reports why.
            Err(_) if shared.quic.close_reason().is_some() => return,
            Err(problem) => {
                info!(peer = %shared.peer, problem, "protocol violation");
                let closed = ConnectionEvent::Closed {
                    from: shared.peer,
                    connection: shared.id,
                    reason: format!("it broke the protocol: {problem}"),
                    permanent: false,
                };
                events.send(closed).await.ok();
                return shared.quic.close(PROTOCOL_VIOLATION, problem.as_bytes());
            }
        }
    }
}

/// Reads one frame or message. Returns whether more may follow.
///
/// # Errors
/// The other end broke the protocol, or the connection is lost.
async fn read_item<D: FrameMessage + Into<M>, M>(
    shared: &ConnectionShared,
    stream: &mut RecvStream,
    events: &mpsc::Sender<ConnectionEvent<M>>,
) -> Result<bool, String> {
    match wire::read::<D>(stream, &shared.memory, &shared.pool).await? {
        Some(Incoming::Message(message)) => {
            let event = ConnectionEvent::Message { from: shared.peer, message: message.into() };
            Ok(events.send(event).await.is_ok())
        }
        Some(Incoming::Frame(envelope, payloads)) => {
            let (from, connection) = (shared.peer, shared.id);
            let frame = ConnectionEvent::Frame { from, connection, envelope, payloads };
            Ok(events.send(frame).await.is_ok())
        }
        Some(Incoming::LinkMessage(LinkMessage::Burst { bytes })) => {
            probe::receive_burst(shared, stream, bytes).await.map(|()| true)
        }
        Some(Incoming::LinkMessage(message)) => {
            on_link_message(shared, message);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Describes why a connection ended.
pub(crate) fn close_reason(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "it closed the connection".into()
        }
        ConnectionError::ApplicationClosed(close) => {
            String::from_utf8_lossy(&close.reason).into_owned()
        }
        ConnectionError::TimedOut => SILENT.into(),
        ConnectionError::LocallyClosed => "closed here".into(),
        ConnectionError::Reset => "it was restarted".into(),
        other => other.to_string(),
    }
}
