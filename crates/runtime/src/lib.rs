//! Runs the sessions: the only place where a session meets a thread, a clock or a connection.
//!
//! ```text
//! boss:    Handle -> boss_driver -> BossSession
//!                        | frames over link
//! worker:  serve -> stage_driver -> StageSession
//!                        +-> compute (the compute thread), watched by watchdog, stopped by interrupt
//!                        +-> reduction::thread (sums of gradients)
//!                        +-> reader_thread (samples from the worker's files)
//!                        +-> snapshot_store (peers' state, beyond the run)
//! ```

mod boss_driver;
mod clock;
mod compute;
mod interrupt;
mod reader_thread;
mod reduction;
mod snapshot_store;
mod stage_driver;
#[doc(hidden)]
pub mod testing;
mod watchdog;

pub use boss_driver::{start, Handle, MembershipEvent};
pub use compute::{Compute, ComputeThread};
pub use interrupt::Interrupt;
pub use reader_thread::SampleReader;
pub use reduction::compression::decompress;
pub use snapshot_store::SnapshotStore;
pub use stage_driver::serve;
