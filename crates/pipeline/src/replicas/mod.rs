//! Replicas: several workers with the same stage, each of which takes some of a batch's microbatches.
//!
//! [`StagePlacement`] names the workers of a stage, [`MicrobatchAssignment`] the replica of a
//! microbatch. The gradients of all microbatches are summed along one [`tree`](Tree) that depends
//! on nothing but their number, so the sum is the same to the bit whoever took which; and they
//! travel in [`buckets`], each of which is cut into one shard a replica.

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
pub use statistics::keeps_statistics;
pub use tree::{nodes, Node, Tree};
pub use unique_id::UniqueId;
pub use wanted::Replicas;
pub use worker_groups::WorkerGroups;
