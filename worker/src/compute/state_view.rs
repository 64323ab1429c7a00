//! State that is read where it lies until the next update: slices, and the hashes of tensors.
//!
//! ```text
//! a snapshot       opens a view of each slice, or of each tensor that is hashed: no copy
//! a view is sent   it copies or hashes, on the thread that sends state
//! the next update  copies or hashes what is left, before it writes
//! ```
//!
//! So a worker never needs memory for a second copy of its state if all is sent before the update,
//! and its computation seldom waits for a hash.

use crate::compute::live_elements::LiveElements;
use crate::compute::payloads::{hash_meta, hash_payload, meta_of};
use crate::compute::task_location::TaskLocation;
use link::Payload;
use parking_lot::Mutex;
use pipeline::message::Failure;
use pipeline::{slices, StateSlice, TensorMeta};
use runtime::{DeviceTensor, TaskTensor};
use std::any::Any;
use std::sync::{Arc, Weak};
use tch::{Device, Tensor};
use tensor::transfer::Event;
use tensor::{memory, TensorError};
use tracing::debug;

/// The fewest bytes of a tensor that is read in place. A smaller one is copied or hashed at once: a
/// lock and a way over another thread cost more.
const LEAST_BYTES: u64 = 64 << 10;

/// A slice of a tensor of the state, or the hash of one.
struct StateView {
    form: Form,
    /// Locked during a copy or a hash, because an update must wait for it.
    content: Mutex<Content>,
    /// The task that opened it.
    maker: TaskLocation,
}

/// What a view makes of elements.
enum Form {
    /// A copy, of this meta.
    Slice(TensorMeta),
    /// The hash of a tensor of this meta, whose elements these all are.
    Hash { of: TensorMeta },
}

enum Content {
    /// Elements in the memory of the live tensor.
    InPlace(LiveElements),
    /// What was made of them. An update may have changed the live tensor since.
    Made(Payload),
    /// Nothing could be made of them before an update.
    Lost(Failure),
}

impl DeviceTensor for StateView {
    fn meta(&self) -> TensorMeta {
        match &self.form {
            Form::Slice(meta) => meta.clone(),
            Form::Hash { .. } => hash_meta(),
        }
    }

    fn to_host(&self) -> Result<Payload, Failure> {
        let mut content = self.content.lock();
        let live = match &*content {
            Content::InPlace(live) => live,
            Content::Made(payload) => return Ok(payload.clone()),
            Content::Lost(failure) => return Err(failure.clone()),
        };
        let made = match &self.form {
            Form::Slice(meta) => {
                live.copy_to_send().map(|bytes| Payload { meta: meta.clone(), bytes })
            }
            Form::Hash { of } => live.hash(of).map(hash_payload),
        };
        let made = made.map_err(|failure| self.maker.annotate(failure))?;
        // A hash is small, and an update need not make it again. A slice is not kept: it is sent
        // once.
        if matches!(self.form, Form::Hash { .. }) {
            *content = Content::Made(made.clone());
        }
        Ok(made)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl StateView {
    /// Lets go of the live tensor. Returns whether that took a copy or a hash.
    fn detach(&self) -> bool {
        let mut content = self.content.lock();
        let Content::InPlace(live) = &*content else { return false };
        let made = match &self.form {
            Form::Slice(meta) => {
                live.copy_to_keep().map(|bytes| Payload { meta: meta.clone(), bytes })
            }
            Form::Hash { of } => live.hash(of).map(hash_payload),
        };
        // Training needs no copy. So without memory for it only the checkpoint fails.
        *content = match made {
            Ok(payload) => Content::Made(payload),
            Err(failure) => Content::Lost(self.maker.annotate(failure)),
        };
        true
    }
}

/// The point at which a snapshot is taken.
pub(super) struct SnapshotPoint {
    ready: Option<Arc<Event>>,
    maker: TaskLocation,
}

impl SnapshotPoint {
    /// After the work that this thread has given to the device.
    pub(super) fn now(device: Device, maker: TaskLocation) -> Result<Self, TensorError> {
        Ok(SnapshotPoint { ready: Event::record(device)?.map(Arc::new), maker })
    }
}

/// The views that may still read live tensors.
#[derive(Default)]
pub(super) struct OpenViews(Vec<Weak<StateView>>);

impl OpenViews {
    /// Opens views of a tensor of this name, in slices of at most this number of bytes.
    pub(super) fn open_slices(
        &mut self,
        name: &str,
        tensor: &Tensor,
        most: u64,
        point: &SnapshotPoint,
    ) -> Result<Vec<(String, TaskTensor)>, TensorError> {
        let whole = meta_of(tensor)?;
        let size = whole.dtype.size_bytes() as usize;
        let flat = tensor.f_detach()?.f_view([-1])?;
        let mut views = Vec::new();
        for StateSlice { name, meta, bytes } in slices(name, &whole, most) {
            let (start, end) = (bytes.start / size, bytes.end / size);
            let elements = flat.f_narrow(0, start as i64, (end - start) as i64)?;
            views.push((name, self.add(Form::Slice(meta), elements, point)));
        }
        Ok(views)
    }

    /// Opens a view of the hash of a tensor.
    pub(super) fn open_hash(
        &mut self,
        tensor: &Tensor,
        point: &SnapshotPoint,
    ) -> Result<TaskTensor, TensorError> {
        let of = meta_of(tensor)?;
        let elements = tensor.f_detach()?.f_view([-1])?;
        Ok(self.add(Form::Hash { of }, elements, point))
    }

    fn add(&mut self, form: Form, elements: Tensor, point: &SnapshotPoint) -> TaskTensor {
        let content = Content::InPlace(LiveElements { elements, ready: point.ready.clone() });
        let content = Mutex::new(content);
        let view = Arc::new(StateView { form, content, maker: point.maker });
        self.0.push(Arc::downgrade(&view));
        TaskTensor::Device(view)
    }

    /// Copies or hashes what is not sent yet, before live tensors change or their memory is needed.
    /// Waits for a copy or a hash that is being made.
    pub(super) fn copy_rest(&mut self) {
        let mut made = 0;
        // From the end: meanwhile views are sent from the beginning, and need nothing then.
        while let Some(last) = self.0.last() {
            // A view that was sent, or that nobody wants any more, is gone.
            if let Some(view) = last.upgrade() {
                made += usize::from(view.detach());
            }
            self.0.pop();
        }
        if made > 0 {
            debug!(views = made, "copied or hashed the state that is not sent yet");
        }
    }

    /// Forgets the views that are gone.
    pub(super) fn forget_closed(&mut self) {
        self.0.retain(|view| view.strong_count() > 0);
    }
}

/// Whether a tensor can be read in place, and is worth it.
pub(super) fn can_be_viewed(tensor: &Tensor, meta: &TensorMeta) -> bool {
    // Other devices, as `mps`, take calls of one thread alone.
    let is_here = matches!(tensor.device(), Device::Cpu | Device::Cuda(_));
    let is_large = meta.byte_len().is_some_and(|bytes| bytes >= LEAST_BYTES);
    is_here && is_large && memory::has_canonical_strides(tensor)
}

#[cfg(test)]
#[path = "state_view_tests.rs"]
mod tests;
