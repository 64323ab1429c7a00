//! Copies tensors from the device to host memory, for receivers in other processes. A thread of its
//! own waits for the device.

use crate::task_tensor::TaskTensor;
use link::Payload;
use pipeline::effect::Destination;
use pipeline::message::Failure;
use tokio::sync::mpsc as results;

/// A frame whose tensors are in host memory.
pub(crate) struct HostFrame {
    pub(crate) to: Vec<Destination>,
    pub(crate) tensors: Result<Vec<Payload>, Failure>,
}

/// The thread that copies. It starts with the first frame, and ends after this is dropped.
#[derive(Default)]
pub(crate) struct DownloadThread(Option<Running>);

struct Running {
    todo: std::sync::mpsc::Sender<(Vec<Destination>, Vec<TaskTensor>)>,
    done: results::UnboundedReceiver<HostFrame>,
}

impl DownloadThread {
    /// Queues a frame.
    ///
    /// # Errors
    /// The thread does not run.
    pub(crate) fn submit(
        &mut self,
        to: Vec<Destination>,
        tensors: Vec<TaskTensor>,
    ) -> Result<(), String> {
        let running = match &mut self.0 {
            Some(running) => running,
            none => {
                let started = start();
                none.insert(started.map_err(|e| format!("cannot start a thread for copies: {e}"))?)
            }
        };
        running.todo.send((to, tensors)).map_err(|_| "the thread for copies has ended".into())
    }

    /// The next frame. `None` if nothing was queued. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<HostFrame> {
        self.0.as_mut()?.done.recv().await
    }
}

fn start() -> std::io::Result<Running> {
    let (sender, todo) = std::sync::mpsc::channel::<(Vec<Destination>, Vec<TaskTensor>)>();
    let (done, receiver) = results::unbounded_channel();
    std::thread::Builder::new().name("download".into()).spawn(move || {
        for (to, tensors) in todo {
            let tensors = tensors.iter().map(TaskTensor::to_host).collect();
            if done.send(HostFrame { to, tensors }).is_err() {
                return;
            }
        }
    })?;
    Ok(Running { todo: sender, done: receiver })
}
