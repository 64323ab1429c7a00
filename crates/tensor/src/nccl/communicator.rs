//! A communicator: ranks that sum tensors together.
//!
//! No call blocks: the call polls NCCL and the GPU until they are done or the caller interrupts it.
//! Other ranks may have died, and an operation that waits for them would wait for ever.

use crate::ffi;
use crate::nccl::error::NcclError;
use crate::nccl::library::Nccl;
use crate::nccl::symbols::{Comm, Config, UniqueId, FLOAT, IN_PROGRESS, SUCCESS, SUM};
use crate::nccl::version::UNIQUE_ID_BYTES;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// The time within which the ranks must find each other. All start at about the same time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two polls. The first polls follow each other without a wait.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
const SPIN_POLLS: u32 = 200;

/// Whether waiting is useless, because the caller interrupted it.
pub type IsInterrupted<'a> = &'a dyn Fn() -> bool;

/// A place among the ranks of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// The number of the rank, from 0.
    pub index: u16,
    /// The number of ranks.
    pub count: u16,
}

/// One rank's end of a communicator. After an error it is useless on every rank.
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
    /// Finds the other ranks. Each rank calls it with the same id. `device` is the device of this
    /// rank's tensors.
    ///
    /// # Errors
    /// The rank is not below the count, the library does not support the device, NCCL fails, or the
    /// other ranks do not arrive.
    pub fn new(
        nccl: &Arc<Nccl>,
        id: &[u8; UNIQUE_ID_BYTES],
        rank: Rank,
        device: Device,
        is_interrupted: IsInterrupted<'_>,
    ) -> Result<Self, NcclError> {
        let Rank { index: rank, count: ranks } = rank;
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
        // A thread of NCCL writes here once more when it has found the others. After an
        // interruption that time is unknown. So these few bytes are never freed.
        let raw: &'static AtomicPtr<c_void> =
            Box::leak(Box::new(AtomicPtr::new(std::ptr::null_mut())));
        // SAFETY: both pointers are to live values of NCCL's layout; the config is read before the
        // call returns, and the other one lives as long as the process.
        let status = unsafe {
            let id = UniqueId { bytes: *id };
            (nccl.symbols.init_rank)(raw.as_ptr(), ranks.into(), id, rank.into(), &mut config)
        };
        made.raw = raw.load(Ordering::Acquire);
        made.wait_for_call(attempted, status, is_interrupted, Some(CONNECT_TIMEOUT))?;
        Ok(made)
    }

    /// Replaces each number of a tensor by its sum over all ranks. All have tensors of one size. It
    /// is float32, on the communicator's device, and in one piece.
    ///
    /// The GPU may still be at work when this returns; libtorch's later work on the device comes
    /// after it. See
    /// [`Communicator::finish`].
    ///
    /// # Errors
    /// The tensor does not fit, or a rank has failed.
    pub fn all_reduce(
        &mut self,
        tensor: &mut Tensor,
        is_interrupted: IsInterrupted<'_>,
    ) -> Result<(), NcclError> {
        if self.raw.is_null() {
            return Err(NcclError::CommunicatorFailed);
        }
        let ((kind, index), mut data, mut count) =
            (ffi::device_code(self.device), std::ptr::null_mut(), 0);
        // SAFETY: the tensor is alive, and both pointers are to live values.
        let status = unsafe { ffi::bm_floats(tensor.as_ptr(), kind, index, &mut data, &mut count) };
        ffi::check("sum over replicas", status)?;
        if count == 0 {
            return Ok(());
        }
        self.use_device()?;
        // SAFETY: `data` has `count` float32 of the communicator's device, exclusively borrowed. On
        // a GPU the operation goes to the default stream: libtorch, whose work goes there too,
        // gives freed memory to nobody before it is done. A sum on the host has ended once NCCL
        // reports it, for which `wait_for_call` waits, or once it is aborted.
        let status = unsafe {
            let stream = std::ptr::null_mut();
            (self.nccl.symbols.all_reduce)(data, data, count, FLOAT, SUM, self.raw, stream)
        };
        self.wait_for_call("a sum over replicas", status, is_interrupted, None)
    }

    /// Waits until all requested operations are done.
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
            // An operation that has failed since the first look leaves the GPU idle, too.
            Ok(idle && communicator.async_state(attempted)? != IN_PROGRESS)
        })
    }

    /// NCCL works on the thread's current device.
    fn use_device(&self) -> Result<(), NcclError> {
        let (kind, index) = ffi::device_code(self.device);
        // SAFETY: it takes numbers, and returns an error if they name no device.
        Ok(ffi::check("choosing the GPU", unsafe { ffi::bm_use_device(kind, index) })?)
    }

    /// Waits until NCCL has completed the call that returned this status.
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

    /// Polls until it is done. After an error NCCL is not called any more.
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

    /// The state of the last call: done or still running. An error if some rank or connection has
    /// failed.
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

    /// Aborts the communicator and frees it, without the other ranks, because a joint end could
    /// wait for a lost rank.
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
