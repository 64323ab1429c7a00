//! The tasks that send frames with large tensors, each on a stream of its own or through shared
//! memory.

use crate::connection::shared::ConnectionShared;
use crate::connection::wire;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The priority of streams with tensors that a computation waits for.
const DATA_PRIORITY: i32 = 0;
/// The priority of streams that are sent if no other stream has data.
const BACKGROUND_PRIORITY: i32 = -1;

/// A frame whose tensors are too large for the ordered stream.
pub(crate) struct LargeFrame {
    pub(crate) head: Vec<u8>,
    pub(crate) tensors: Vec<Bytes>,
}

/// Sends frames with large tensors in the order given, through shared memory if possible. A copy
/// into shared memory blocks its thread for less than a millisecond. During that time nothing else
/// could be sent over this connection anyway.
pub(crate) async fn write_large(
    shared: Arc<ConnectionShared>,
    mut frames: mpsc::UnboundedReceiver<LargeFrame>,
) {
    while let Some(LargeFrame { head, tensors }) = frames.recv().await {
        if let Some(location) = shared.memory.write(&tensors) {
            shared.ordered.send(wire::shared_frame(head, location));
            continue;
        }
        if write_stream(&shared, DATA_PRIORITY, wire::whole_frame(head, tensors)).await.is_none() {
            return;
        }
    }
}

/// Sends frames that can wait, whenever no other stream has data. They never use shared memory,
/// because the other frames need it.
pub(crate) async fn write_background(
    shared: Arc<ConnectionShared>,
    mut frames: mpsc::UnboundedReceiver<LargeFrame>,
) {
    while let Some(LargeFrame { head, tensors }) = frames.recv().await {
        let frame = wire::whole_frame(head, tensors);
        if write_stream(&shared, BACKGROUND_PRIORITY, frame).await.is_none() {
            return;
        }
    }
}

/// Sends a frame on a stream of its own. Returns `None` if the connection is lost.
async fn write_stream(
    shared: &ConnectionShared,
    priority: i32,
    mut frame: Vec<Bytes>,
) -> Option<()> {
    let _pending = shared.progress.begin_write();
    let mut stream = shared.quic.open_uni().await.ok()?;
    shared.progress.record_progress();
    stream.set_priority(priority).ok()?;
    shared.progress.write(&mut stream, &mut frame).await.ok()?;
    stream.finish().ok()
}
