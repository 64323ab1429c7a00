//! The requested number of replicas.

use super::WorkerGroups;

/// The number of workers that get the same stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replicas {
    /// The same number at each place of the pipeline.
    Each(u16),
    /// For each place of the pipeline, from its beginning.
    Of(Vec<u16>),
    /// The numbers that make the shortest step.
    Auto,
}

/// The most workers for which every grouping is tried. With more workers, only groups of one size
/// and pipelines of two are.
const MOST_TRIED: usize = 6;

impl Replicas {
    /// The possible worker groups for `workers`, the longest pipelines first. Empty if none fits.
    pub fn groupings(&self, workers: usize) -> Vec<WorkerGroups> {
        match self {
            Replicas::Each(each) => {
                let each = usize::from(*each).max(1);
                let places = (workers / each).max(1);
                let fits = places * each == workers;
                fits.then(|| WorkerGroups::of(&vec![each as u16; places])).into_iter().collect()
            }
            Replicas::Of(of) => {
                let fits = of.iter().all(|n| *n > 0)
                    && of.iter().map(|n| usize::from(*n)).sum::<usize>() == workers;
                fits.then(|| WorkerGroups::of(of)).into_iter().collect()
            }
            Replicas::Auto => {
                let all = (1..=workers).rev().flat_map(|places| sums(workers, places));
                let simple = |of: &Vec<u16>| of.len() <= 2 || of.iter().all(|n| *n == of[0]);
                all.filter(|of| workers <= MOST_TRIED || simple(of))
                    .map(|of| WorkerGroups::of(&of))
                    .collect()
            }
        }
    }
}

/// All compositions of a number into `parts` positive numbers; for a large number, only the simple
/// ones.
fn sums(total: usize, parts: usize) -> Vec<Vec<u16>> {
    if total > MOST_TRIED && parts > 2 {
        return if total.is_multiple_of(parts) {
            vec![vec![(total / parts) as u16; parts]]
        } else {
            Vec::new()
        };
    }
    if parts == 1 {
        return vec![vec![total as u16]];
    }
    let firsts = 1..=total.saturating_sub(parts - 1);
    let with = |first: usize| {
        sums(total - first, parts - 1)
            .into_iter()
            .map(move |rest| [vec![first as u16], rest].concat())
    };
    firsts.flat_map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groupings(replicas: Replicas, workers: usize) -> Vec<Vec<u16>> {
        replicas.groupings(workers).iter().map(WorkerGroups::replicas).collect()
    }

    #[test]
    fn workers_are_grouped_as_asked_or_not_at_all() {
        assert_eq!(groupings(Replicas::Each(2), 4), [[2, 2]]);
        assert!(groupings(Replicas::Each(2), 3).is_empty());
        assert_eq!(groupings(Replicas::Of(vec![3, 1]), 4), [[3, 1]]);
        assert!(groupings(Replicas::Of(vec![3, 0]), 3).is_empty());
    }

    #[test]
    fn auto_tries_every_way_for_a_few_workers_and_the_simple_ones_for_many() {
        assert_eq!(groupings(Replicas::Auto, 3), [vec![1, 1, 1], vec![1, 2], vec![2, 1], vec![3]]);
        let many = groupings(Replicas::Auto, 12);
        assert!(
            many.contains(&vec![3; 4]) && many.contains(&vec![5, 7]) && many.len() < 20,
            "{many:?}"
        );
    }
}
