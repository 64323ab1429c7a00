//! How a run that was out of memory needs less of it for the same steps.

use layerspec::Recompute;

/// The most times that a plan uses less of the workers' memory. After that a worker without memory
/// is one that cannot work.
const MAX_SHORTAGES: u32 = 1;

/// The means by which the sessions of a run save memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct MemorySaving {
    /// The activations that workers recompute, if the model file does not set it.
    pub(super) recompute: Recompute,
    /// The number of times that plans use less of the workers' memory.
    pub(super) shortages: u32,
}

/// The means that are left to a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct MeansLeft {
    /// Workers store activations that they could recompute.
    pub(super) recompute: bool,
    /// Another cut could leave each worker with less.
    pub(super) plan: bool,
}

impl MemorySaving {
    /// Sessions as the run file says.
    pub(super) fn of(recompute: Recompute) -> Self {
        MemorySaving { recompute, shortages: 0 }
    }

    /// What the next session does, if any means is left: first recompute, then plan with less
    /// memory.
    pub(super) fn next(self, left: MeansLeft) -> Option<Self> {
        match left {
            MeansLeft { recompute: true, .. } => {
                Some(MemorySaving { recompute: Recompute::Full, ..self })
            }
            MeansLeft { plan: true, .. } if self.shortages < MAX_SHORTAGES => {
                Some(MemorySaving { shortages: self.shortages + 1, ..self })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_recomputed_first_and_then_plans_use_less_memory() {
        let left = |recompute, plan| MeansLeft { recompute, plan };
        let first = MemorySaving::of(Recompute::None);
        assert_eq!(first.next(left(false, false)), None);
        let full = first.next(left(true, true)).unwrap();
        assert_eq!(full, MemorySaving { recompute: Recompute::Full, shortages: 0 });
        let once = full.next(left(false, true)).unwrap();
        assert_eq!(once, MemorySaving { recompute: Recompute::Full, shortages: 1 });
        assert_eq!(once.next(left(false, true)), None);
    }
}
