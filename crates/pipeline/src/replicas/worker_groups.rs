//! The groups of workers. Workers of a group have the same stages.

use crate::ids::WorkerId;

/// The workers of each place in the pipeline, the first replica first. Most places have one stage.
/// With a [placement](crate::schedule::Placement) of several stages on each worker, a place has
/// several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerGroups(Vec<Vec<WorkerId>>);

impl WorkerGroups {
    /// Groups with this number of replicas at each place. Workers are numbered replica by replica:
    /// the first ones make a whole pipeline, and each further one joins a place.
    pub fn of(replicas: &[u16]) -> Self {
        let mut worker_groups = vec![Vec::new(); replicas.len()];
        let widest = replicas.iter().copied().max().unwrap_or(0);
        let all = (0..widest).flat_map(|replica| {
            replicas.iter().enumerate().filter(move |(_, most)| replica < **most)
        });
        for (number, (column, _)) in all.enumerate() {
            worker_groups[column].push(WorkerId(number as u16));
        }
        WorkerGroups(worker_groups)
    }

    /// The number of places.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no place.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of workers in all.
    pub fn workers(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The number of replicas at each place.
    pub fn replicas(&self) -> Vec<u16> {
        self.0.iter().map(|workers| workers.len() as u16).collect()
    }

    /// The workers of a place.
    pub fn of_group(&self, column: usize) -> &[WorkerId] {
        self.0.get(column).map_or(&[], Vec::as_slice)
    }
}

impl From<usize> for WorkerGroups {
    /// One worker at each place.
    fn from(workers: usize) -> Self {
        WorkerGroups((0..workers).map(|worker| vec![WorkerId(worker as u16)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_workers_make_a_whole_pipeline() {
        let worker_groups = WorkerGroups::of(&[3, 1, 2]);
        let numbers =
            |column: usize| worker_groups.of_group(column).iter().map(|w| w.0).collect::<Vec<_>>();
        assert_eq!([numbers(0), numbers(1), numbers(2)], [vec![0, 3, 5], vec![1], vec![2, 4]]);
        assert_eq!(worker_groups.workers(), 6);
        assert_eq!(WorkerGroups::of(&[1, 1]), WorkerGroups::from(2));
    }
}
