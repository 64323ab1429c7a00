//! The session of a worker: its commands, the tensors that arrived, and its next effects.
//!
//! A state machine without I/O. Call `on_*` when something happened, then `poll_effect` until it is
//! empty, and `on_timeout` at the latest at the time that `poll_timeout` names.
//!
//! ```text
//! frames, results -> session -> commands -> loading, snapshots, membership, reading, state_frames
//!                       |
//!                       +-----> round: inbox -> next action -> task -> result -> other stages
//!                                                 |
//!                                                 +-> reduction among the replicas
//! ```
//!
//! The session routes. Each machine owns its part of the state, and writes effects to the outbox.
//!
//! A duplicate counts once. A duplicate command, or a duplicate tensor whose first copy is here or
//! counted, costs its sender the connection. A duplicate of something already used or answered is
//! dropped, at the latest with the next command.

mod action_ledger;
mod action_task;
mod active_round;
mod command_queue;
mod commands;
mod conservation;
mod context;
mod early_frames;
mod inbox;
mod job;
mod links;
mod loading;
mod membership;
mod named_tensors;
mod needs;
mod outbox;
mod peer_snapshots;
mod reading;
mod reduction;
mod replica_group;
mod results;
mod round_check;
mod rounds;
mod session;
mod stage_reduction;
mod state_frames;
mod state_transfer;
#[cfg(test)]
mod testing;

pub use session::StageSession;
