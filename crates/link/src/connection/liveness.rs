//! Closes a connection whose other end is silent, or takes nothing.

use crate::connection::progress::StallDetector;
use crate::connection::shared::ConnectionShared;
use crate::quic::close_codes::{DONE, PROTOCOL_VIOLATION};
use crate::quic::endpoint::KEEP_ALIVE;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The interval between checks: two for each keep-alive message of the other end.
pub(crate) const CHECK_INTERVAL: Duration =
    Duration::from_millis(KEEP_ALIVE.as_millis() as u64 / 2);

/// The close reason if nothing arrives.
pub(crate) const SILENT: &str = "silent for 3 seconds";
/// The close reason if the other end reads nothing.
const STALLED: &str = "it takes nothing of what it is sent";

/// The number of checks without a packet after which nothing begins with a connection. In that time
/// the other end sends two keep-alive messages.
pub(crate) const SILENT_CHECKS: u32 = 4;

/// The number of checks without a packet after which a connection counts as dead.
pub struct SilenceLimit(u32);

impl SilenceLimit {
    /// The limit between boss and worker: 2.75 to 3 seconds after the last packet.
    pub const WITH_BOSS: SilenceLimit = SilenceLimit(11);
    /// The limit between workers. It is longer, so that the boss is the first to miss a worker.
    pub const BETWEEN_WORKERS: SilenceLimit = SilenceLimit(24);
}

/// Closes a connection on which nothing arrives any more, or whose other end takes nothing.
///
/// quinn closes silent connections, too, but later: it counts from the last packet that this end
/// sent, and waits for three retransmission timeouts, which grow long after a machine or a network
/// stood still. Checks are counted instead of time, because this process may have stood still
/// itself. Packets that arrived in that time are still to be read.
pub(crate) async fn watch_liveness(shared: Arc<ConnectionShared>, limit: SilenceLimit) {
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut received, mut silent_checks, mut stall) = (0, 0, StallDetector::default());
    let (code, reason) = loop {
        tokio::select! {
            _ = shared.quic.closed() => return,
            _ = checks.tick() => {}
        }
        let stats = shared.quic.stats();
        let now = stats.udp_rx.datagrams;
        let arrived = stats.frame_tx.stream.saturating_sub(stats.path.lost_packets);
        silent_checks = if now == received { silent_checks + 1 } else { 0 };
        received = now;
        shared.silent_checks.store(silent_checks, Ordering::Relaxed);
        if silent_checks >= limit.0 {
            break (DONE, SILENT);
        }
        if stall.is_stuck(&shared.progress, arrived) {
            break (PROTOCOL_VIOLATION, STALLED);
        }
    };
    shared.closed_here.set(reason).ok();
    shared.quic.close(code, reason.as_bytes());
}
