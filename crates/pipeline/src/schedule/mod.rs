//! A schedule as one value: the list of actions of each worker, which is printed, checked,
//! predicted and executed.
//!
//! ```text
//! layout, placement -> work (passes of every microbatch)
//!                        |
//!       gpipe, one_f_one_b, interleaved, zb_h1, zb_v, ready       one file for each kind
//!                        |  list: greedy workers under given costs
//!                        |  all_gather: with `shard: parameters`
//!                        v
//!                    Schedule (action) -> check, picture
//!                        |
//!          player -> costs, lines, timeline       the prediction
//!                      picker                     the next action, also for the stage session
//! ```

mod action;
mod all_gather;
mod check;
mod costs;
mod events;
mod gpipe;
mod interleaved;
mod kind;
mod lanes;
mod layout;
mod lines;
mod list;
mod one_f_one_b;
mod picker;
mod picture;
mod placement;
mod player;
mod progress;
mod ready;
mod timeline;
mod work;
mod zb_h1;
mod zb_v;

use crate::ids::StageId;
use crate::replicas::MicrobatchAssignment;
use crate::replicas::Reduction;
use lanes::lanes;
use work::Work;

pub use action::{Action, Order};
pub use check::{check, check_memory, DeviceMemory, MemoryShortage, ScheduleError};
pub use costs::{Costs, Link, Process, StageBytes, StageTimes};
pub use kind::ScheduleKind;
pub use layout::{Ending, Layout};
pub use picker::Picker;
pub use picture::picture;
pub use placement::Placement;
pub use player::timeline;
pub use timeline::{Deadlock, Interval, Timeline};

/// The actions of each worker in one training step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The kind that made it.
    pub kind: ScheduleKind,
    /// The number of microbatches of the batch.
    pub microbatches: u32,
    /// The stages it is for.
    pub layout: Layout,
    /// How it ends.
    pub ending: Ending,
    /// The order in which gradients are summed.
    pub reduction: Reduction,
    /// The assignment of microbatches to replicas.
    pub microbatch_assignment: MicrobatchAssignment,
    /// The order in which workers take their actions.
    pub order: Order,
    /// The actions of each worker.
    pub workers: Vec<Vec<Action>>,
}

/// The inputs of a schedule.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Which kind.
    pub kind: ScheduleKind,
    /// The number of microbatches of the batch, at least one.
    pub microbatches: u32,
    /// How it ends.
    pub ending: Ending,
    /// The order in which gradients are summed. It must be a tree if a stage has replicas.
    pub reduction: Reduction,
    /// The assignment of microbatches to replicas. `None` is an even one.
    pub microbatch_assignment: Option<MicrobatchAssignment>,
    /// The measured costs, if known. The split kinds are made for them, or for equal costs.
    pub costs: Option<Costs>,
    /// The number of microbatches that fit each stage's memory, if known.
    pub room: Option<Vec<u32>>,
}

impl Terms {
    /// A step with costs and memory unknown.
    pub fn new(kind: ScheduleKind, microbatches: u32) -> Self {
        Terms {
            kind,
            microbatches,
            ending: Ending::default(),
            reduction: Reduction::default(),
            microbatch_assignment: None,
            costs: None,
            room: None,
        }
    }
}

impl Schedule {
    /// The schedule of a training step. It is not yet checked: see [`check`].
    ///
    /// # Errors
    /// The kind does not work with this placement of stages.
    pub fn new(layout: &Layout, terms: &Terms) -> Result<Self, ScheduleError> {
        let Terms { kind, microbatches, ending, .. } = *terms;
        Placement::check(kind, &layout.stage_placement).map_err(|wanted| {
            ScheduleError::Placement {
                kind,
                wanted,
                stages: layout.stages(),
                workers: layout.workers(),
            }
        })?;
        let reduction = match terms.reduction {
            Reduction::Sequential if layout.stage_placement.is_replicated() => Reduction::Tree,
            wanted => wanted,
        };
        let microbatch_assignment = terms
            .microbatch_assignment
            .clone()
            .unwrap_or_else(|| MicrobatchAssignment::even(&layout.stage_placement, microbatches));
        let costs = terms.costs.clone().unwrap_or_else(|| Costs::unit(layout.stages()));
        let work = Work { layout, microbatch_assignment: &microbatch_assignment, microbatches };
        let (passes, order) = match kind {
            ScheduleKind::Ready => {
                (work.passes(true), ready::order(&work, &costs, terms.room.as_deref()))
            }
            ScheduleKind::GPipe if lanes(&work, &costs).is_none() => {
                (gpipe::of_unequal(&work, terms.costs.as_ref()), Order::Listed)
            }
            _ => (listed(kind, &work, &costs), Order::Listed),
        };
        if order != Order::Listed
            && (0..layout.stages() as u16).any(|stage| layout.shards_parameters(StageId(stage)))
        {
            return Err(ScheduleError::Unlisted(kind));
        }
        let summed = passes
            .into_iter()
            .zip(layout.reduction(reduction))
            .map(|(passes, sums)| layout.summed(passes, sums));
        let workers = layout.gathered(summed.collect())?.into_iter().zip(layout.ending(ending));
        let workers = workers.map(|(list, end)| [list, end].concat()).collect();
        Ok(Schedule {
            kind,
            microbatches,
            layout: layout.clone(),
            ending,
            reduction,
            microbatch_assignment,
            order,
            workers,
        })
    }
}

/// The passes of a kind that fixes their order. If replicas form separate pipelines, each has its
/// own schedule.
fn listed(kind: ScheduleKind, work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let Some(lanes) = lanes(work, costs) else { return of_kind(kind, work, costs, false) };
    let mut workers = vec![Vec::new(); work.layout.workers()];
    for lane in lanes {
        let microbatch_assignment = MicrobatchAssignment::default();
        let of_lane = Work {
            layout: &lane.layout,
            microbatch_assignment: &microbatch_assignment,
            microbatches: lane.microbatches.len() as u32,
        };
        let lists = of_kind(kind, &of_lane, &lane.costs, true);
        for (worker, list) in lane.workers.iter().zip(lists) {
            let of_batch = |action: Action| {
                action.on(|m| lane.microbatches.get(m as usize).copied().unwrap_or(m))
            };
            workers[worker.0 as usize] = list.into_iter().map(of_batch).collect();
        }
    }
    workers
}

/// The same for one pipeline, or for all workers together if they do not form pipelines.
fn of_kind(
    kind: ScheduleKind,
    work: &Work<'_>,
    costs: &Costs,
    is_pipeline: bool,
) -> Vec<Vec<Action>> {
    match kind {
        ScheduleKind::OneFOneB if is_pipeline => one_f_one_b::actions(work),
        ScheduleKind::OneFOneB => one_f_one_b::of_unequal(work, costs),
        ScheduleKind::Interleaved if is_pipeline => interleaved::actions(work, costs),
        ScheduleKind::Interleaved => interleaved::of_unequal(work, costs),
        ScheduleKind::ZbH1 if is_pipeline => zb_h1::actions(work, costs),
        ScheduleKind::ZbH1 => zb_h1::of_unequal(work, costs),
        ScheduleKind::ZbV => zb_v::actions(work, costs),
        ScheduleKind::GPipe => gpipe::actions(work),
        // Its order is free, so any list will do.
        ScheduleKind::Ready => work.passes(true),
    }
}
