//! Replicas: several workers with the same stage, each of which takes some of a batch's microbatches.
//!
//! Who has a stage is said by [`Homes`], who takes which microbatch by [`Deal`]. The gradients of all microbatches are
//! summed along one [`tree`](Tree) that depends on nothing but their number, so the sum is the same to the bit whoever
//! took which; and they travel in [`buckets`], each of which is cut into one shard a replica.

mod bucket;
mod collective;
mod columns;
mod compress;
mod deal;
mod homes;
mod sharding;
mod statistics;
mod tree;
mod turns;
mod unique_id;
mod wanted;

pub use bucket::{buckets, shard, Bucket, BucketBytes, Slice, Use};
pub use collective::Collective;
pub use columns::Columns;
pub use compress::Compress;
pub use deal::{Deal, Pace};
pub use homes::Homes;
pub use sharding::{ShardId, Sharding};
pub use statistics::keeps_statistics;
pub use tree::{nodes, Node, Tree};
pub use turns::Turns;
pub use unique_id::UniqueId;
pub use wanted::Replicas;
