//! Tests of the whole, in one program, so that an edit is linked once. `cargo test` runs them on
//! threads of one process. So no test sets the environment, and none sets a number of compute
//! threads other than one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

mod by_hand;
mod checkpoints;
mod circles;
mod collective;
mod compressed;
mod constants;
mod digest;
mod ending_well;
mod gpu;
mod gpu_memory;
mod gpu_shortages;
mod gpu_waits;
mod growing;
mod guards;
mod guide;
mod hostile;
mod huggingface;
mod labels;
mod law_1;
mod law_1_steps;
mod leaving;
mod losses;
mod oracle;
mod overload;
mod own;
mod own_files;
mod own_weights;
mod pool;
mod pool_checkpoints;
mod precision;
mod processes;
mod recovery;
mod recovery_by_hand;
mod replicas;
mod replicas_in_use;
mod run_folders;
mod self_check;
mod sharding;
mod slow;
mod strangers;
mod using;
mod verify;
mod writing;
