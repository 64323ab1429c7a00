//! A schedule as one value: the list of actions of each worker, which is printed, checked,
//! predicted and executed.

mod action;
mod check;
mod costs;
mod gpipe;
mod interleaved;
mod kind;
mod layout;
mod lines;
mod list;
mod one_f_one_b;
mod picker;
mod picture;
mod placement;
mod ready;
mod timeline;
mod zb_h1;
mod zb_v;

pub use action::{Action, Order};
pub use check::{check, check_memory, ScheduleError};
pub use costs::{Costs, Link, Process, StageBytes, StageTimes};
pub use kind::ScheduleKind;
pub use layout::{Ending, Layout};
pub use picker::Picker;
pub use picture::picture;
pub use placement::Placement;
pub use timeline::{timeline, Deadlock, Interval, Timeline};

/// What each worker does in one training step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Which kind made it.
    pub kind: ScheduleKind,
    /// How many microbatches the batch is cut into.
    pub microbatches: u32,
    /// The stages it is for.
    pub layout: Layout,
    /// How it ends.
    pub ending: Ending,
    /// In which order workers take their actions.
    pub order: Order,
    /// For every worker its actions.
    pub workers: Vec<Vec<Action>>,
}

/// What a schedule is made for.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Which kind.
    pub kind: ScheduleKind,
    /// How many microbatches the batch is cut into, at least one.
    pub microbatches: u32,
    /// How it ends.
    pub ending: Ending,
    /// What things take, where that is known: the split kinds are made for these costs, else for equal ones.
    pub costs: Option<Costs>,
    /// For every stage how many microbatches its memory can hold, where that is known.
    pub room: Option<Vec<u32>>,
}

impl Terms {
    /// A step with costs and memory unknown.
    pub fn new(kind: ScheduleKind, microbatches: u32) -> Self {
        Terms { kind, microbatches, ending: Ending::default(), costs: None, room: None }
    }
}

impl Schedule {
    /// The schedule of a training step. It is not yet checked: see [`check`].
    ///
    /// # Errors
    /// The kind does not work with stages placed as these are.
    pub fn new(layout: &Layout, terms: &Terms) -> Result<Self, ScheduleError> {
        let Terms { kind, microbatches, ending, .. } = *terms;
        Placement::check(kind, &layout.homes).map_err(|wanted| ScheduleError::Placement {
            kind,
            wanted,
            stages: layout.stages(),
            workers: layout.workers(),
        })?;
        let costs = terms.costs.clone().unwrap_or_else(|| Costs::unit(layout.stages()));
        let workers = || (0..layout.workers() as u16).map(crate::ids::WorkerId);
        let mut order = Order::Listed;
        let passes: Vec<Vec<Action>> = match kind {
            ScheduleKind::GPipe => workers().map(|w| gpipe::actions(layout.stages_of(w), microbatches)).collect(),
            ScheduleKind::OneFOneB => {
                let stages = (0..layout.stages() as u16).map(crate::ids::StageId);
                stages.map(|stage| one_f_one_b::actions(stage, layout.stages(), microbatches)).collect()
            }
            ScheduleKind::Interleaved => interleaved::actions(layout, microbatches, &costs),
            ScheduleKind::ZbH1 => zb_h1::actions(layout, microbatches, &costs),
            ScheduleKind::ZbV => zb_v::actions(layout, microbatches, &costs),
            ScheduleKind::Ready => {
                order = ready::order(layout, microbatches, &costs, terms.room.as_deref());
                workers().map(|w| ready::actions(layout, w, microbatches)).collect()
            }
        };
        let endings = layout.ending(ending);
        let workers = passes.into_iter().zip(endings).map(|(passes, ending)| [passes, ending].concat()).collect();
        Ok(Schedule { kind, microbatches, layout: layout.clone(), ending, order, workers })
    }
}
