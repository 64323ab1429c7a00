//! A communicator: ranks that sum tensors together.
//!
//! No call blocks: what NCCL is still at, and what the GPU is, is asked for again and again, and given up where it is called
//! off. Other ranks may have died, and an operation that waits for them would wait for ever.

use super::symbols::{Comm, Config, UniqueId, FLOAT, IN_PROGRESS, SUCCESS, SUM};
use super::{Nccl, NcclError, UNIQUE_ID_BYTES};
use crate::ffi;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// The time within which the ranks must find each other: all are told at about one time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks; the first ones follow each other at once.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
const SPIN_POLLS: u32 = 200;

/// Whether it is of no use to wait any longer.
pub type IsInterrupted<'a> = &'a dyn Fn() -> bool;

/// One rank's end of a communicator. After an error it is of no use any more, on any rank.
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    device: Device,
    /// Null once it has failed.
    raw: Comm,
}

// SAFETY: a communicator may be used by any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Finds the other ranks; each of `ranks` calls it with the same id. `device` is the device of
    /// this rank's tensors.
    ///
    /// # Errors
    /// A rank beyond them, a device that the library is not for, whatever NCCL cannot do; the others do not come.
    pub fn new(
        nccl: &Arc<Nccl>,
        id: &[u8; UNIQUE_ID_BYTES],
        (rank, ranks): (u16, u16),
        device: Device,
        is_interrupted: IsInterrupted<'_>,
    ) -> Result<Self, NcclError> {
        if rank >= ranks {
            return Err(NcclError::Invalid(format!("rank {rank} of {ranks} ranks")));
        }
        if !nccl.supports(device) {
            let device = crate::device::name(device);
            return Err(NcclError::Invalid(format!(
                "NCCL sums on GPUs with CUDA, and this worker computes on {device}"
            )));
        }
        let attempted = "finding the other replicas";
        let mut made = Communicator { nccl: nccl.clone(), device, raw: std::ptr::null_mut() };
        made.use_device()?;
        let mut config = Config::asynchronous();
        // A thread of NCCL's writes here once more, when it is through with finding the others; who knows when that is, where it
        // is called off. So these few bytes are never freed.
        let raw: &'static AtomicPtr<c_void> = Box::leak(Box::new(AtomicPtr::new(std::ptr::null_mut())));
        // SAFETY: both pointers are to live values of NCCL's layout; the config is read before the call returns, and the other
        // one lives as long as the process.
        let status = unsafe {
            let id = UniqueId { bytes: *id };
            (nccl.symbols.init_rank)(raw.as_ptr(), ranks.into(), id, rank.into(), &mut config)
        };
        made.raw = raw.load(Ordering::Acquire);
        made.wait_for_call(attempted, status, is_interrupted, Some(CONNECT_TIMEOUT))?;
        Ok(made)
    }

    /// Replaces each number of a tensor by its sum over all ranks, each of which has as many. It is float32, on the
    /// communicator's device, and in one piece.
    ///
    /// The GPU may still be at work when this returns; libtorch's later work on the device comes after it. See
    /// [`Communicator::finish`].
    ///
    /// # Errors
    /// The tensor is none of that, or some rank has failed.
    pub fn all_reduce(&mut self, tensor: &mut Tensor, is_interrupted: IsInterrupted<'_>) -> Result<(), NcclError> {
        if self.raw.is_null() {
            return Err(NcclError::CommunicatorFailed);
        }
        let ((kind, index), mut data, mut count) = (ffi::device_code(self.device), std::ptr::null_mut(), 0);
        // SAFETY: the tensor is alive, and both pointers are to live values.
        let status = unsafe { ffi::bm_floats(tensor.as_ptr(), kind, index, &mut data, &mut count) };
        ffi::check("sum over replicas", status)?;
        if count == 0 {
            return Ok(());
        }
        self.use_device()?;
        // SAFETY: `data` has `count` float32 of the communicator's device, exclusively borrowed. On a GPU the operation goes to
        // the default stream: libtorch, whose work goes there too, gives freed memory to nobody before it is done. What sums on
        // the host has ended when NCCL says that it is not in progress any more, which `wait_for_call` waits for, or that it is
        // aborted.
        let status = unsafe {
            let stream = std::ptr::null_mut();
            (self.nccl.symbols.all_reduce)(data, data, count, FLOAT, SUM, self.raw, stream)
        };
        self.wait_for_call("a sum over replicas", status, is_interrupted, None)
    }

    /// Waits until all that was asked for is done.
    ///
    /// # Errors
    /// Some rank has failed, or the GPU has.
    pub fn finish(&mut self, is_interrupted: IsInterrupted<'_>) -> Result<(), NcclError> {
        let attempted = "sums over replicas";
        let (kind, index) = ffi::device_code(self.device);
        self.wait(attempted, is_interrupted, None, |communicator| {
            if communicator.async_state(attempted)? == IN_PROGRESS {
                return Ok(false);
            }
            let mut idle = false;
            // SAFETY: the pointer is to a live bool.
            let status = unsafe { ffi::bm_is_idle(kind, index, &mut idle) };
            ffi::check("waiting for the GPU", status)?;
            Ok(idle)
        })
    }

    /// NCCL works on the thread's current device.
    fn use_device(&self) -> Result<(), NcclError> {
        let (kind, index) = ffi::device_code(self.device);
        // SAFETY: it takes numbers, and says where they name no device.
        Ok(ffi::check("choosing the GPU", unsafe { ffi::bm_use_device(kind, index) })?)
    }

    /// Waits until NCCL is through with a call that gave this.
    fn wait_for_call(
        &mut self,
        attempted: &'static str,
        status: i32,
        is_interrupted: IsInterrupted<'_>,
        limit: Option<Duration>,
    ) -> Result<(), NcclError> {
        if status != SUCCESS && status != IN_PROGRESS {
            let failed = self.nccl.symbols.check(attempted, status);
            self.abort();
            return failed;
        }
        self.wait(attempted, is_interrupted, limit, |communicator| {
            Ok(communicator.async_state(attempted)? != IN_PROGRESS)
        })
    }

    /// Looks until it is done. After an error nothing more is asked of NCCL.
    fn wait(
        &mut self,
        attempted: &'static str,
        is_interrupted: IsInterrupted<'_>,
        limit: Option<Duration>,
        mut is_done: impl FnMut(&Self) -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let (begun, mut polls) = (Instant::now(), 0u32);
        let result = loop {
            match is_done(self) {
                Ok(true) => return Ok(()),
                Ok(false) if is_interrupted() => break Err(NcclError::Interrupted { attempted }),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
                break Err(NcclError::Timeout { attempted, seconds: limit.as_secs() });
            }
            polls = polls.saturating_add(1);
            match polls < SPIN_POLLS {
                true => std::thread::yield_now(),
                false => std::thread::sleep(POLL_INTERVAL),
            }
        };
        self.abort();
        result
    }

    /// Whether NCCL is still at the last call; an error where some rank or connection has failed.
    fn async_state(&self, attempted: &'static str) -> Result<i32, NcclError> {
        if self.raw.is_null() {
            return Err(NcclError::CommunicatorFailed);
        }
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and the pointer is to a live integer.
        let status = unsafe { (self.nccl.symbols.async_error)(self.raw, &mut state) };
        self.nccl.symbols.check(attempted, status)?;
        match state {
            IN_PROGRESS => Ok(IN_PROGRESS),
            state => self.nccl.symbols.check(attempted, state).map(|()| SUCCESS),
        }
    }

    /// Ends what it is at and frees it, without the other ranks: to end it with them could wait for who is gone.
    fn abort(&mut self) {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: the communicator is alive, and nobody uses it after this.
            unsafe { (self.nccl.symbols.abort)(raw) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}
