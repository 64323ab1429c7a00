//! Copies between host memory and a GPU, beside the GPU's kernels.
//!
//! A [`Tensor::f_to_device`] from or to the host makes the host wait. These copies use pinned
//! memory and a stream for each thread that copies. Kernels that use an uploaded tensor come after
//! its copy.

use crate::{ffi, TensorError};
use tch::{Device, Kind, Tensor};

/// The point in a GPU's work that a thread had reached when it made this.
#[derive(Debug)]
pub struct Event(*mut ffi::Event);

// SAFETY: CUDA's events may be used and freed on any thread.
unsafe impl Send for Event {}
// SAFETY: after it was recorded, an event is only waited for, which CUDA allows at the same time.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `bm_event_record`, freed once.
        unsafe { ffi::bm_event_free(self.0) }
    }
}

impl Event {
    /// Marks the work that this thread has given to a device. `None` for a device whose work is
    /// done when a call returns.
    ///
    /// # Errors
    /// The device is broken.
    pub fn record(device: Device) -> Result<Option<Self>, TensorError> {
        let Device::Cuda(_) = device else { return Ok(None) };
        let (_, index) = ffi::device_code(device);
        let mut event = std::ptr::null_mut();
        // SAFETY: on success the pointer is set to an event that is ours.
        let status = unsafe { ffi::bm_event_record(index, &mut event) };
        ffi::check("marking the device's work", status)?;
        Ok(Some(Event(event)))
    }

    /// Waits until the device has done the work before the event.
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(&self) -> Result<(), TensorError> {
        // SAFETY: the event lives as long as `self`.
        ffi::check("waiting for the device", unsafe { ffi::bm_event_wait(self.0) })
    }
}

/// Copies a dense tensor of a GPU to pinned memory once `ready` has happened, and waits for the
/// copy. Work that the GPU was given after `ready` does not delay it.
///
/// # Errors
/// There is no memory, or the device is broken.
pub fn download(tensor: &Tensor, ready: &Event) -> Result<Tensor, TensorError> {
    let mut host = std::ptr::null_mut();
    // SAFETY: tensor and event are alive; on success the pointer is set to a tensor that is ours.
    let status = unsafe { ffi::bm_download(tensor.as_ptr(), ready.0, &mut host) };
    ffi::check("copying from the device", status)?;
    // SAFETY: as above.
    Ok(unsafe { Tensor::from_ptr(host) })
}

/// A tensor's copy in host memory, which a GPU may still be making. For a few numbers: the GPU
/// makes it between its kernels.
#[derive(Debug)]
pub struct HostCopy {
    host: Tensor,
    made: Option<Event>,
}

impl HostCopy {
    /// Begins the copy. A tensor in host memory is its own copy.
    ///
    /// # Errors
    /// There is no memory, or the device is broken.
    pub fn begin(tensor: &Tensor) -> Result<Self, TensorError> {
        let Device::Cuda(_) = tensor.device() else {
            let host = tensor.f_detach()?.f_to_device(Device::Cpu)?;
            return Ok(HostCopy { host, made: None });
        };
        let tensor = tensor.f_detach()?.f_contiguous()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: the tensor is alive; on success the pointer is set to a tensor that is ours.
        let status = unsafe { ffi::bm_begin_download(tensor.as_ptr(), &mut host) };
        ffi::check("copying from the device", status)?;
        // SAFETY: as above.
        let host = unsafe { Tensor::from_ptr(host) };
        Ok(HostCopy { host, made: Event::record(tensor.device())? })
    }

    /// Whether nobody needs to wait for the copy.
    pub fn is_made(&self) -> bool {
        self.made.is_none()
    }

    /// The numbers, in row-major order. Waits for the copy.
    ///
    /// # Errors
    /// The device failed.
    pub fn numbers(&self) -> Result<Vec<f64>, TensorError> {
        if let Some(made) = &self.made {
            made.wait()?;
        }
        if self.host.numel() == 1 {
            return Ok(vec![self.host.f_double_value(&[])?]);
        }
        let numbers = self.host.f_to_kind(Kind::Double)?.f_reshape([-1])?;
        Ok(Vec::<f64>::try_from(numbers)?)
    }
}

/// The tensor on a device. From the host to a GPU, the host does not wait for the copy, and may
/// change or free `tensor` at once.
///
/// # Errors
/// There is no memory, or the device is broken.
pub fn to_device(tensor: &Tensor, device: Device) -> Result<Tensor, TensorError> {
    let is_upload = tensor.device() == Device::Cpu && matches!(device, Device::Cuda(_));
    if !is_upload {
        return Ok(tensor.f_to_device(device)?);
    }
    let tensor = tensor.f_detach()?.f_contiguous()?;
    let (_, index) = ffi::device_code(device);
    let mut copy = std::ptr::null_mut();
    // SAFETY: the tensor is alive; on success the pointer is set to a tensor that is ours.
    let status = unsafe { ffi::bm_upload(tensor.as_ptr(), index, &mut copy) };
    ffi::check("copying to the device", status)?;
    // SAFETY: as above.
    Ok(unsafe { Tensor::from_ptr(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_done_its_work_and_copies_nothing() {
        assert!(Event::record(Device::Cpu).unwrap().is_none());
        let tensor = Tensor::arange(4, (Kind::Float, Device::Cpu));
        let same = to_device(&tensor, Device::Cpu).unwrap();
        assert_eq!(same.data_ptr(), tensor.data_ptr());
        let copy = HostCopy::begin(&tensor).unwrap();
        assert!(copy.is_made());
        assert_eq!(copy.numbers().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    }
}
