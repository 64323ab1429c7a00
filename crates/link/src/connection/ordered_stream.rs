//! The ordered stream of a connection: frames go out in the order they were given.

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

/// The writing end. What fits the network is handed to it by the caller's own thread; a task takes over
/// what does not, so that nobody waits. Ends with its last frame when it is dropped.
pub(crate) struct OrderedStream(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Frames wait, or no more will come.
    more: Notify,
    progress: Arc<SendProgress>,
}

struct State {
    /// Away while the task writes.
    stream: Option<SendStream>,
    waiting: VecDeque<Vec<Bytes>>,
    /// The stream is lost, which the reader of the connection reports, or no more frames will come.
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
        // Written chunks are taken out of `frame`, so what is left after a poll is left to do. The task polls
        // again with a waker of its own.
        let mut context = Context::from_waker(Waker::noop());
        // Behind a frame that waits, perhaps half written, comes no other.
        let behind = !state.waiting.is_empty();
        let free = state.stream.as_mut().filter(|_| !behind);
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

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The stream and the next frame for it; the stream is back when none waits.
    fn next(&self, stream: Option<SendStream>) -> Result<(SendStream, Vec<Bytes>), Option<SendStream>> {
        let mut state = self.lock();
        let Some(mut stream) = stream.or_else(|| state.stream.take()) else { return Err(None) };
        match state.waiting.pop_front() {
            Some(mut frame) => {
                frame.retain(|chunk| !chunk.is_empty());
                Ok((stream, frame))
            }
            None if state.ended => {
                stream.finish().ok();
                Err(Some(stream))
            }
            None => {
                state.stream = Some(stream);
                Err(None)
            }
        }
    }
}

/// Writes what waits, until the lane ends.
async fn write(inner: Arc<Inner>) {
    loop {
        inner.more.notified().await;
        let mut stream = None;
        loop {
            match inner.next(stream.take()) {
                Ok((mut with, mut frame)) => {
                    if inner.progress.write(&mut with, &mut frame).await.is_err() {
                        inner.lock().ended = true;
                        return;
                    }
                    stream = Some(with);
                }
                Err(Some(_finished)) => return,
                Err(None) => break,
            }
        }
    }
}
