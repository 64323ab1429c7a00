//! Copies tensors of the compute thread to host memory, for receivers in other processes: results
//! from a device, and state from wherever it lies. Threads of their own copy, and wait for the
//! device.

use crate::background::stand_back;
use crate::task_tensor::TaskTensor;
use link::Payload;
use pipeline::effect::Destination;
use pipeline::message::{Failure, TensorHead};
use tokio::sync::mpsc as results;

/// A frame whose tensors are in host memory.
pub(crate) struct HostFrame {
    pub(crate) to: Vec<Destination>,
    pub(crate) tensors: Result<Vec<Payload>, Failure>,
}

/// The threads that copy. State has one of its own: it is large and may be hashed, and other
/// workers' computations wait for everything else. On a busy machine it comes after them.
pub(crate) struct Downloads {
    state: DownloadThread,
    others: DownloadThread,
}

impl Default for Downloads {
    fn default() -> Self {
        let state = DownloadThread::new("state", stand_back);
        Downloads { state, others: DownloadThread::new("download", || ()) }
    }
}

impl Downloads {
    /// Queues a frame. State and other frames do not keep their order.
    ///
    /// # Errors
    /// The thread does not run.
    pub(crate) fn submit(
        &mut self,
        to: Vec<Destination>,
        tensors: Vec<TaskTensor>,
    ) -> Result<(), String> {
        // All receivers of a frame have the same kind of head.
        let is_state = to.iter().any(|to| matches!(to.head, TensorHead::State { .. }));
        let thread = if is_state { &mut self.state } else { &mut self.others };
        thread.submit(to, tensors)
    }

    /// The next frame of either thread. `None` if nothing was queued. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<HostFrame> {
        tokio::select! {
            Some(frame) = self.state.next() => Some(frame),
            Some(frame) = self.others.next() => Some(frame),
            else => None,
        }
    }
}

/// A thread that copies. It starts with the first frame, and ends after this is dropped.
struct DownloadThread {
    name: &'static str,
    /// What the thread does first.
    prepare: fn(),
    running: Option<Running>,
}

struct Running {
    todo: std::sync::mpsc::Sender<(Vec<Destination>, Vec<TaskTensor>)>,
    done: results::UnboundedReceiver<HostFrame>,
}

impl DownloadThread {
    /// Not started yet. The name tells it apart in a profile.
    fn new(name: &'static str, prepare: fn()) -> Self {
        DownloadThread { name, prepare, running: None }
    }

    fn submit(&mut self, to: Vec<Destination>, tensors: Vec<TaskTensor>) -> Result<(), String> {
        let running = match &mut self.running {
            Some(running) => running,
            none => {
                let started = start(self.name, self.prepare);
                none.insert(started.map_err(|e| format!("cannot start a thread for copies: {e}"))?)
            }
        };
        running.todo.send((to, tensors)).map_err(|_| "the thread for copies has ended".into())
    }

    async fn next(&mut self) -> Option<HostFrame> {
        self.running.as_mut()?.done.recv().await
    }
}

fn start(name: &str, prepare: fn()) -> std::io::Result<Running> {
    let (sender, todo) = std::sync::mpsc::channel::<(Vec<Destination>, Vec<TaskTensor>)>();
    let (done, receiver) = results::unbounded_channel();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        prepare();
        for (to, tensors) in todo {
            let tensors = tensors.iter().map(TaskTensor::to_host).collect();
            if done.send(HostFrame { to, tensors }).is_err() {
                return;
            }
        }
    })?;
    Ok(Running { todo: sender, done: receiver })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_tensor::DeviceTensor;
    use layerspec::{DType, ValueId};
    use parking_lot::Mutex;
    use pipeline::effect::Peer;
    use pipeline::ids::{MicrobatchKey, StageId};
    use pipeline::TensorMeta;
    use std::any::Any;
    use std::sync::{mpsc, Arc};
    use std::time::Duration;

    /// Its bytes are the name of the thread that copies it, once its gate opens.
    struct Gated(Mutex<mpsc::Receiver<()>>);

    impl DeviceTensor for Gated {
        fn meta(&self) -> TensorMeta {
            TensorMeta { dtype: DType::UInt8, shape: Vec::new() }
        }

        fn to_host(&self) -> Result<Payload, Failure> {
            // The gate opens when its sender is dropped.
            self.0.lock().recv().unwrap_err();
            let name = std::thread::current().name().unwrap().to_string();
            Ok(Payload { meta: self.meta(), bytes: name.into() })
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// Queues a frame. Returns its gate.
    fn submit(downloads: &mut Downloads, head: TensorHead) -> mpsc::Sender<()> {
        let (gate, receiver) = mpsc::channel();
        let tensor = TaskTensor::Device(Arc::new(Gated(Mutex::new(receiver))));
        let to = vec![Destination { peer: Peer::Boss, route: None, head }];
        downloads.submit(to, vec![tensor]).unwrap();
        gate
    }

    /// The head of the next frame, and the thread that copied it.
    async fn next(downloads: &mut Downloads) -> (TensorHead, String) {
        let next = tokio::time::timeout(Duration::from_secs(60), downloads.next());
        let HostFrame { mut to, tensors } = next.await.unwrap().unwrap();
        let name = String::from_utf8(tensors.unwrap()[0].bytes.to_vec()).unwrap();
        (to.remove(0).head, name)
    }

    #[tokio::test]
    async fn slow_state_holds_up_nothing_else() {
        let mut downloads = Downloads::default();
        assert!(downloads.next().await.is_none(), "nothing is queued");
        let state = TensorHead::State { id: 3, name: "0.weight".into() };
        let key = MicrobatchKey { batch: 0, index: 0 };
        let value = TensorHead::Value { key, value: ValueId(0), to: StageId(1) };
        let closed = submit(&mut downloads, state.clone());
        drop(submit(&mut downloads, value.clone()));
        assert_eq!(next(&mut downloads).await, (value, "download".to_string()));
        drop(closed);
        assert_eq!(next(&mut downloads).await, (state, "state".to_string()));
    }
}
