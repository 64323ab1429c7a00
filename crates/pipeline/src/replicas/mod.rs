//! Replicas: several workers with the same stage. Each takes some microbatches of a batch.
//!
//! ```text
//! wanted -> worker_groups -> stage_placement            which workers hold a stage
//!           microbatch_assignment, microbatch_order     which replica takes a microbatch
//!           tree, reduction -> bucket                   the order of sums, and how they travel
//!           sharding, compress, collective, unique_id   what the run file asks for
//!           statistics                                  layers with running statistics
//! ```
//!
//! [`StagePlacement`] names the workers of a stage, [`MicrobatchAssignment`] the replica of a
//! microbatch. The gradients of all microbatches are summed along one [`tree`](Tree) that depends
//! only on their number. So the sum is equal to the bit for every assignment. Gradients travel in
//! [`buckets`], each of which is cut into one shard for each replica.

mod bucket;
mod collective;
mod compress;
mod microbatch_assignment;
mod microbatch_order;
mod reduction;
mod sharding;
mod stage_placement;
mod statistics;
mod tree;
mod unique_id;
mod wanted;
mod worker_groups;

pub use bucket::{buckets, shard, Bucket, BucketBytes, Slice, Use};
pub use collective::Collective;
pub use compress::Compress;
pub use microbatch_assignment::{MicrobatchAssignment, Speed};
pub use microbatch_order::MicrobatchOrder;
pub use reduction::Reduction;
pub use sharding::{ShardId, Sharding};
pub use stage_placement::StagePlacement;
pub use statistics::{is_reduced, keeps_statistics};
pub use tree::{nodes, Node, Tree};
pub use unique_id::UniqueId;
pub use wanted::Replicas;
pub use worker_groups::WorkerGroups;
