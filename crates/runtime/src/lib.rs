//! Runs the sessions. Only this crate connects a session to threads, a clock and connections.
//!
//! ```text
//! boss:    handle -> boss_driver -> BossSession
//!             ^----- state_stream (state, part by part: state_event)
//!             ^----- waiting_workers (callers without a place)
//!                        | frames over link
//! worker:  serve -> stage_driver -> StageSession
//!                        +-> peer_connections (to the boss and to other workers)
//!                        +-> compute (the compute thread) -> watchdog, interrupt
//!                        |     +-> completion (waits for the device)
//!                        |     tasks' tensors: task_tensor
//!                        +-> downloads (from the device to host memory, and state)
//!                        |     +-> background (state gives way to computations)
//!                        +-> reduction::thread (sums of gradients)
//!                        +-> reader_thread (samples from the worker's files)
//!                        +-> snapshot_store (peers' state, beyond the run)
//!                        +-- leave_signal (a request to leave between two steps)
//! ```

mod background;
mod boss_driver;
mod clock;
mod completion;
mod compute;
mod compute_event;
mod downloads;
mod handle;
mod handle_input;
mod interrupt;
mod leave_signal;
mod log;
mod log_fields;
mod membership_event;
mod peer_connections;
mod reader_thread;
mod reduction;
mod snapshot_store;
mod stage_driver;
mod state_event;
mod state_stream;
mod task_tensor;
#[doc(hidden)]
pub mod testing;
mod waiting_workers;
mod watchdog;

pub use background::stand_back;
pub use boss_driver::start;
pub use completion::PendingWork;
pub use compute::{Compute, ComputeThread};
pub use handle::Handle;
pub use interrupt::Interrupt;
pub use leave_signal::LeaveSignal;
pub use log::{start_log, LogError, LOG_VARIABLE};
pub use membership_event::MembershipEvent;
pub use reader_thread::SampleReader;
pub use reduction::compression::decompress;
pub use snapshot_store::SnapshotStore;
pub use stage_driver::{serve, End};
pub use state_event::{StateHead, StatePart};
pub use state_stream::StateStream;
pub use task_tensor::{DeviceTensor, TaskTensor};
