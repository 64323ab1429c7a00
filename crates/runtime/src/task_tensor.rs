//! The tensors of tasks: bytes in host memory, or a tensor on the worker's device.

use link::Payload;
use pipeline::message::Failure;
use pipeline::TensorMeta;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A tensor of the compute thread, on its device. The worker crate implements it with libtorch.
pub trait DeviceTensor: Send + Sync {
    /// The dtype and the shape.
    fn meta(&self) -> TensorMeta;

    /// Copies the tensor to host memory, once the device has computed it. Waits for both.
    ///
    /// # Errors
    /// The device or the host has no memory, or the device is broken.
    fn to_host(&self) -> Result<Payload, Failure>;

    /// The implementation, for the worker that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A tensor in a slot of a worker.
#[derive(Clone)]
pub enum TaskTensor {
    /// Bytes in host memory. All tensors of other processes arrive so.
    Host(Payload),
    /// A tensor that a task left on the device. A task of the same worker uses it where it is. Or
    /// state that waits to be sent, which is copied or hashed then.
    Device(Arc<dyn DeviceTensor>),
}

impl TaskTensor {
    /// The tensor in host memory. Copies and waits if it is on a device.
    ///
    /// # Errors
    /// As for [`DeviceTensor::to_host`].
    pub fn to_host(&self) -> Result<Payload, Failure> {
        match self {
            TaskTensor::Host(payload) => Ok(payload.clone()),
            TaskTensor::Device(tensor) => tensor.to_host(),
        }
    }

    /// The bytes, if the tensor is in host memory.
    pub(crate) fn in_host_memory(&self) -> Option<&Payload> {
        match self {
            TaskTensor::Host(payload) => Some(payload),
            TaskTensor::Device(_) => None,
        }
    }
}

impl From<Payload> for TaskTensor {
    fn from(payload: Payload) -> Self {
        TaskTensor::Host(payload)
    }
}

impl fmt::Debug for TaskTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskTensor::Host(payload) => write!(f, "Host({:?})", payload.meta),
            TaskTensor::Device(tensor) => write!(f, "Device({:?})", tensor.meta()),
        }
    }
}
