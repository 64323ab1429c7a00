//! The first exchange after the handshake: the end that dialled offers shared memory and measures
//! the path.

use crate::connection::event::ConnectionEvent;
use crate::connection::link_message::LinkMessage;
use crate::connection::probe;
use crate::connection::shared::ConnectionShared;
use crate::memory::shared::Transport;
use crate::quic::report::PathReport;
use shm::FileAddress;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::debug;

/// Shared memory is not used if the ends have not agreed on it after this long.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(2);

/// Offers shared memory if it is wanted and possible, and then measures the path.
pub(crate) async fn negotiate<M>(
    shared: Arc<ConnectionShared>,
    transport: Transport,
    mut answers: mpsc::Receiver<LinkMessage>,
    events: mpsc::Sender<ConnectionEvent<M>>,
) {
    let peer = shared.peer;
    if transport == Transport::Auto && shared.path.same_machine {
        offer_memory(&shared, &mut answers).await;
        debug!(%peer, agreed = shared.memory.is_shared(), "shared memory");
    }
    let report = probe::measure(&shared, &mut answers).await;
    match &report {
        Some(PathReport { rtt, bytes_per_second, carrier, .. }) => {
            debug!(%peer, rtt_us = rtt, bytes_per_second, %carrier, "path measured");
        }
        None => debug!(%peer, "path not measured"),
    }
    *shared.report.lock() = report;
    events.send(ConnectionEvent::Measured { from: peer, report }).await.ok();
}

async fn offer_memory(shared: &ConnectionShared, answers: &mut mpsc::Receiver<LinkMessage>) {
    let Some(address) = shared.memory.offer() else { return };
    shared.send_message(LinkMessage::memory_file(address));
    let agreed = async {
        // Ends when the other end declines, or shows its own file, which is then open.
        while !matches!(
            answers.recv().await,
            None | Some(LinkMessage::MemoryNonce(None) | LinkMessage::MemoryFile { .. })
        ) {}
    };
    tokio::time::timeout(MEMORY_TIMEOUT, agreed).await.ok();
}

/// Handles a message about the connection. At the end that dialled, answers are passed on to
/// [`negotiate`].
pub(crate) fn on_link_message(shared: &ConnectionShared, message: LinkMessage) {
    let negotiation = shared.answers.lock().clone();
    match message {
        LinkMessage::Ping(number) => shared.send_answer(LinkMessage::Pong(number)),
        LinkMessage::MemoryFile { process, file } if negotiation.is_none() => {
            answer_memory_offer(shared, FileAddress { process, file })
        }
        LinkMessage::MemoryFile { process, file } => shared.send_answer(LinkMessage::MemoryNonce(
            shared.memory.open_peer(FileAddress { process, file }),
        )),
        LinkMessage::MemoryNonce(Some(nonce)) => shared.memory.on_nonce(&nonce),
        LinkMessage::MemoryNonce(None)
        | LinkMessage::Pong(_)
        | LinkMessage::BurstReceived { .. }
        | LinkMessage::Burst { .. } => {}
    }
    if let Some(negotiation) = negotiation {
        // More answers than fit were not asked for.
        negotiation.try_send(message).ok();
    }
}

/// At the end that was dialled: opens the other end's file and shows its own, or declines.
fn answer_memory_offer(shared: &ConnectionShared, address: FileAddress) {
    // Only a peer with an address of this machine may have files opened here.
    let allowed = shared.transport == Transport::Auto && shared.path.same_machine;
    let own = allowed.then(|| shared.memory.offer()).flatten();
    let opened = own.and_then(|own| Some((own, shared.memory.open_peer(address)?)));
    shared.send_answer(LinkMessage::MemoryNonce(opened.map(|(_, nonce)| nonce)));
    if let Some((own, _)) = opened {
        shared.send_answer(LinkMessage::memory_file(own));
    }
}
