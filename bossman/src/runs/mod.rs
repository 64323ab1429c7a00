//! Run folders: what a run leaves behind, and the argument of every later command.
//!
//! ```text
//! RunFolder (name, lock, paths) -> FolderKeeper (run.yaml, latest), EventLog, TextLog: observers
//!      ^
//!      +-- RunSummary (for `bossman runs`) <- EventReader (events.jsonl, for `bossman log`)
//!      +-- LiveBoss (for `bossman status`: the lock, and the port that FolderKeeper writes)
//! ```
//!
//! A folder holds `run.yaml` (the run as carried out), `model.yaml`, `weights.safetensors`,
//! `weights.best.safetensors`, `metrics.jsonl`, `events.jsonl`, `log.txt` and `checkpoints/`. A
//! file that the user put elsewhere is there as a link. No file of it holds the join ticket. The
//! file `owner` tells whose run it is: somebody else's is input. The file `name` tells under which
//! name it began.

mod event_log;
mod files;
mod folder;
mod keeper;
mod live_boss;
mod lock;
mod name;
mod owner;
mod paths;
mod reader;
mod summary;
mod text_log;
mod trained_weights;

pub(crate) use event_log::EventLog;
pub use folder::{RunFolder, RunFolderSettings};
pub(crate) use keeper::FolderKeeper;
pub use live_boss::resolve_newest;
pub(crate) use live_boss::LiveBoss;
pub use lock::is_held;
pub(crate) use lock::FolderLock;
pub use name::RunName;
pub use owner::{check_stays_inside, is_own, Reads};
pub use paths::{is_run_folder, resolve_latest};
pub use reader::{EventReader, LoggedEvent};
pub use summary::{RunState, RunSummary};
pub(crate) use text_log::TextLog;
pub use trained_weights::{is_trained_weights, SavedWeights, TrainedWeights};
pub(crate) use trained_weights::{modified, BEST_WEIGHTS, LAST_WEIGHTS};
