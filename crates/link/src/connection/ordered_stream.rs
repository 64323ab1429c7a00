//! The ordered stream of a connection. Frames are sent in the order in which they were given.

use crate::connection::progress::SendProgress;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use quinn::SendStream;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// The sending half. The caller's own thread writes as much as the network takes at once. A task
/// writes the rest, so that callers never wait. Dropping it ends the stream after its last frame.
pub(crate) struct OrderedStream(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Notified if frames wait, or no more will come.
    more: Notify,
    progress: Arc<SendProgress>,
}

struct State {
    /// `None` while the task writes.
    stream: Option<SendStream>,
    waiting: VecDeque<Vec<Bytes>>,
    /// The stream is lost, which the connection's reader reports, or no more frames will come.
    ended: bool,
}

impl OrderedStream {
    pub(crate) fn new(stream: SendStream, progress: Arc<SendProgress>) -> Self {
        let state = State { stream: Some(stream), waiting: VecDeque::new(), ended: false };
        let inner = Arc::new(Inner { state: Mutex::new(state), more: Notify::new(), progress });
        tokio::spawn(write(inner.clone()));
        OrderedStream(inner)
    }

    /// Sends a frame.
    pub(crate) fn send(&self, mut frame: Vec<Bytes>) {
        let mut state = self.0.lock();
        if state.ended {
            return;
        }
        // A poll removes written chunks from `frame`. The task writes the remaining ones, with a
        // waker of its own.
        let mut context = Context::from_waker(Waker::noop());
        // If a frame waits, perhaps half written, this one waits too.
        let others_wait = !state.waiting.is_empty();
        let free = state.stream.as_mut().filter(|_| !others_wait);
        match free.map(|stream| pin!(stream.write_all_chunks(&mut frame)).poll(&mut context)) {
            Some(Poll::Ready(Ok(()))) => return,
            Some(Poll::Ready(Err(_))) => {
                state.ended = true;
                return;
            }
            Some(Poll::Pending) | None => {}
        }
        state.waiting.push_back(frame);
        drop(state);
        self.0.more.notify_one();
    }

    /// The number of frames that wait for the network.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

impl Drop for OrderedStream {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.more.notify_one();
    }
}

/// The next work of the writing task.
enum Next {
    /// Write this frame.
    Frame(SendStream, Vec<Bytes>),
    /// No frame waits.
    Idle,
    /// The stream is finished.
    Ended,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes the next frame, and the stream if the task does not have it yet. If no frame waits,
    /// gives the stream back to callers.
    fn next(&self, stream: Option<SendStream>) -> Next {
        let mut state = self.lock();
        let Some(mut stream) = stream.or_else(|| state.stream.take()) else { return Next::Idle };
        match state.waiting.pop_front() {
            Some(mut frame) => {
                frame.retain(|chunk| !chunk.is_empty());
                Next::Frame(stream, frame)
            }
            None if state.ended => {
                stream.finish().ok();
                Next::Ended
            }
            None => {
                state.stream = Some(stream);
                Next::Idle
            }
        }
    }
}

/// Writes waiting frames until the stream ends.
async fn write(inner: Arc<Inner>) {
    loop {
        inner.more.notified().await;
        let mut stream = None;
        loop {
            match inner.next(stream.take()) {
                Next::Frame(mut taken, mut frame) => {
                    if inner.progress.write(&mut taken, &mut frame).await.is_err() {
                        inner.lock().ended = true;
                        return;
                    }
                    stream = Some(taken);
                }
                Next::Ended => return,
                Next::Idle => break,
            }
        }
    }
}
