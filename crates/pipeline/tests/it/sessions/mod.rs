//! Plans, schedules, and both sessions one call at a time.

mod auto;
mod boss;
mod boss_player;
mod bubbles;
mod collective;
mod compressed;
mod evaluation;
mod gathering;
mod newcomers;
mod peer_snapshots;
mod plan;
mod schedules;
mod stage;
mod state_window;
