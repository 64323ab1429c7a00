//! Results that stay on the device: for tasks of the same worker, or until they are copied.

use crate::compute::failures::tensor_failure;
use crate::compute::late_result::LateResult;
use crate::compute::payloads::{meta_of, to_payload};
use crate::compute::task_location::TaskLocation;
use link::Payload;
use parking_lot::Mutex;
use pipeline::message::Failure;
use pipeline::task::Outcome;
use pipeline::TensorMeta;
use runtime::{DeviceTensor, PendingWork, TaskTensor};
use std::any::Any;
use std::sync::Arc;
use tch::{Device, Tensor};
use tensor::transfer::{download, Event};
use tensor::TensorError;

/// A dense tensor on a device, and the point in the device's work at which it is computed.
struct TensorOnDevice {
    tensor: Mutex<Tensor>,
    meta: TensorMeta,
    ready: Event,
    /// The task that made it.
    maker: TaskLocation,
}

impl DeviceTensor for TensorOnDevice {
    fn meta(&self) -> TensorMeta {
        self.meta.clone()
    }

    fn to_host(&self) -> Result<Payload, Failure> {
        // The lock is not held during the copy, so the compute thread need not wait.
        let tensor = self.tensor.lock().shallow_clone();
        let host = download(&tensor, &self.ready).and_then(|host| to_payload(&host));
        host.map_err(|error| self.maker.annotate(tensor_failure(error)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Hands a result of a task on. It stays on its device.
pub(super) fn to_task_tensor(
    tensor: &Tensor,
    maker: TaskLocation,
) -> Result<TaskTensor, TensorError> {
    let Device::Cuda(_) = tensor.device() else {
        return Ok(to_payload(tensor)?.into());
    };
    // As it would arrive from another worker: dense, so that the same kernels follow.
    let tensor = tensor.f_detach()?.f_contiguous()?;
    let Some(ready) = Event::record(tensor.device())? else {
        return Ok(to_payload(&tensor)?.into());
    };
    let meta = meta_of(&tensor)?;
    let tensor = Mutex::new(tensor);
    Ok(TaskTensor::Device(Arc::new(TensorOnDevice { tensor, meta, ready, maker })))
}

/// The tensor that a task of this worker left on the device.
///
/// # Errors
/// It is no tensor of this crate.
pub(super) fn on_device(tensor: &dyn DeviceTensor) -> Result<Tensor, TensorError> {
    let foreign = || TensorError::invalid("receive", "a tensor of another program's device");
    let on_device: &TensorOnDevice = tensor.as_any().downcast_ref().ok_or_else(foreign)?;
    // Several tasks may use it, and each asks for gradients of its own.
    Ok(on_device.tensor.lock().f_detach()?)
}

/// The device's work for a task.
pub(super) struct TaskWork {
    pub(super) end: Event,
    pub(super) location: TaskLocation,
    pub(super) late: Option<LateResult>,
}

impl PendingWork for TaskWork {
    fn complete(self: Box<Self>, outcome: &mut Outcome<TaskTensor>) -> Result<(), Failure> {
        let TaskWork { end, location, late } = *self;
        let done = end.wait().map_err(tensor_failure);
        let done = done.and_then(|()| late.map_or(Ok(()), |late| late.complete(outcome)));
        done.map_err(|failure| location.annotate(failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::device;
    use std::time::{Duration, Instant};
    use tch::Kind;

    fn wait_for_device(device: Device) {
        tensor::device::synchronize(device).unwrap();
    }

    /// Waits as for a task. A CPU has no pending work.
    fn wait_for_task(device: Device) {
        let Some(end) = Event::record(device).unwrap() else { return };
        let work = TaskWork { end, location: TaskLocation::default(), late: None };
        Box::new(work).complete(&mut Outcome::Done).unwrap();
    }

    /// From this the time of a task is told, so it must count the work and not the calls.
    #[test]
    fn a_task_is_complete_once_the_device_has_done_its_work() {
        tensor::threads::set_count(1);
        let device = device();
        let one = Tensor::ones([1536, 1536], (Kind::Float, device));
        let time = |wait: fn(Device)| {
            wait_for_device(device);
            let begin = Instant::now();
            let _product = one.matmul(&one);
            wait(device);
            begin.elapsed()
        };
        let shortest = |wait: fn(Device)| -> Duration { (0..5).map(|_| time(wait)).min().unwrap() };
        let (whole, task) = (shortest(wait_for_device), shortest(wait_for_task));
        assert!(task >= whole / 4, "{task:?} instead of {whole:?}");
    }
}
