//! The cuts of a layer list into stages.

use thiserror::Error;

/// The cuts that the user asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Cuts {
    /// Balanced stages, one for each place of a worker. Of equally balanced cuts, takes those that
    /// separate the fewest layers with shared parameters. If several remain, takes those that send
    /// the fewest bytes.
    #[default]
    Auto,
    /// Each named layer starts a new stage.
    At(Vec<String>),
}

/// The cost of a layer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LayerCost {
    /// Work of one sample.
    pub work: u64,
    /// The cost of a cut just before it.
    pub place: CutPlace,
}

/// The cost of a cut just before a layer. It decides between equally balanced cuts.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct CutPlace {
    /// The number of layers that share parameters across it. Counts more than bytes.
    pub ties: u64,
    /// The bytes of one sample that cross it.
    pub bytes: u64,
}

impl CutPlace {
    fn plus(self, other: Self) -> Self {
        CutPlace {
            ties: self.ties.saturating_add(other.ties),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// The layers cannot be cut into that many stages.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "cuts: {layers} layers do not make {stages} stages; use fewer workers, or fewer stages on each"
)]
pub struct TooFewLayers {
    /// The number of layers.
    pub layers: usize,
    /// The number of requested stages.
    pub stages: usize,
}

/// Returns the first layer of each stage but the first. The heaviest stage is as light as possible,
/// and of such cuts the result is one of lowest cost.
pub fn balanced(costs: &[LayerCost], stages: usize) -> Result<Vec<usize>, TooFewLayers> {
    let places: Vec<_> = costs.iter().map(|c| c.place).collect();
    balanced_by(&places, &vec![costs.iter().map(|c| c.work).collect(); stages])
}

/// As [`balanced`], but each stage has its own work for every layer: that of its worker.
pub fn balanced_by(places: &[CutPlace], stages: &[Vec<u64>]) -> Result<Vec<usize>, TooFewLayers> {
    let layers = places.len();
    let too_few = TooFewLayers { layers, stages: stages.len() };
    if stages.is_empty() || stages.len() > layers {
        return Err(too_few);
    }
    // For every stage, the work of the layers before each layer. A layer without work counts as 1,
    // so that such layers are spread evenly.
    let sums = |work: &Vec<u64>| -> Vec<u64> {
        let sum = work.iter().take(layers).scan(0u64, |sum, work| {
            *sum = sum.saturating_add(work.saturating_add(1));
            Some(*sum)
        });
        [0].into_iter().chain(sum).collect()
    };
    let work: Vec<Vec<u64>> = stages.iter().map(sums).collect();
    // The lightest limit for the heaviest stage, by bisection.
    let (mut low, mut high) = (0, work.iter().filter_map(|w| w.last()).copied().max().unwrap_or(0));
    while low < high {
        let middle = low + (high - low) / 2;
        match cheapest(places, &work, middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    cheapest(places, &work, low).ok_or(too_few)
}

/// The cheapest cut whose stages all have at most `limit` work, if there is one. `work[s][i]` is
/// the work of the layers before `i` on stage `s`.
fn cheapest(places: &[CutPlace], work: &[Vec<u64>], limit: u64) -> Option<Vec<usize>> {
    let layers = places.len();
    // best[i]: the cost of cutting the layers before `i` into the current number of stages.
    let mut best: Vec<Option<CutPlace>> = vec![None; layers + 1];
    best[0] = Some(CutPlace::default());
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(work.len());
    for work in work {
        let mut next: Vec<Option<CutPlace>> = vec![None; layers + 1];
        let mut back = vec![0; layers + 1];
        // Starts of the last stage that are not too far back, cheapest first (sliding-window
        // minimum).
        let mut window: std::collections::VecDeque<(usize, CutPlace)> = Default::default();
        for end in 1..=layers {
            let start = end - 1;
            if let Some(cost) = best[start] {
                let cost = if start == 0 { cost } else { cost.plus(places[start]) };
                while window.back().is_some_and(|&(_, c)| c > cost) {
                    window.pop_back();
                }
                window.push_back((start, cost));
            }
            while window.front().is_some_and(|&(s, _)| work[end].saturating_sub(work[s]) > limit) {
                window.pop_front();
            }
            if let Some(&(start, cost)) = window.front() {
                next[end] = Some(cost);
                back[end] = start;
            }
        }
        from.push(back);
        best = next;
    }
    best[layers]?;
    let mut cuts = Vec::with_capacity(work.len());
    let mut end = layers;
    for back in from.iter().rev() {
        end = back[end];
        cuts.push(end);
    }
    cuts.reverse();
    cuts.remove(0);
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(work: &[u64]) -> Vec<LayerCost> {
        work.iter().map(|&work| LayerCost { work, place: CutPlace { ties: 0, bytes: 8 } }).collect()
    }

    #[test]
    fn the_heaviest_stage_is_as_light_as_can_be() {
        assert_eq!(balanced(&costs(&[10, 10, 10, 10]), 2), Ok(vec![2]));
        assert_eq!(balanced(&costs(&[100, 1, 1, 1]), 2), Ok(vec![1]));
        assert_eq!(balanced(&costs(&[9, 9, 1, 100]), 3), Ok(vec![1, 3]));
        assert_eq!(balanced(&costs(&[5]), 1), Ok(vec![]));
    }

    #[test]
    fn a_worker_of_half_the_speed_gets_half_the_layers() {
        let places = [CutPlace::default(); 6];
        assert_eq!(balanced_by(&places, &[vec![20; 6], vec![10; 6]]), Ok(vec![2]));
        assert_eq!(balanced_by(&places, &[vec![10; 6], vec![20; 6]]), Ok(vec![4]));
    }

    #[test]
    fn tied_layers_stay_together_where_that_is_as_balanced() {
        let mut layers = costs(&[10, 10, 10, 10, 10]);
        layers[3].place.bytes = 1;
        assert_eq!(balanced(&layers, 2), Ok(vec![3]));
        layers[3].place.ties = 1;
        assert_eq!(balanced(&layers, 2), Ok(vec![2]));
    }

    #[test]
    fn agrees_with_trying_every_cut() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let places: Vec<_> =
                (0..7).map(|_| CutPlace { ties: random(2), bytes: random(9) }).collect();
            let work: Vec<Vec<u64>> =
                (0..3).map(|_| (0..7).map(|_| random(20)).collect()).collect();
            let value = |cuts: &[usize]| {
                let (starts, ends) = ([&[0], cuts].concat(), [cuts, &[7]].concat());
                let stages = starts.into_iter().zip(ends).zip(&work);
                let heaviest = stages
                    .map(|((a, b), work)| work[a..b].iter().map(|w| w + 1).sum::<u64>())
                    .max();
                let place = cuts.iter().fold(CutPlace::default(), |sum, c| sum.plus(places[*c]));
                (heaviest, place)
            };
            let every = (1..7).flat_map(|a| (a + 1..7).map(move |b| [a, b]));
            let best = every.map(|cuts| value(&cuts)).min();
            assert_eq!(balanced_by(&places, &work).ok().map(|cuts| value(&cuts)), best);
        }
    }

    #[test]
    fn too_many_stages_is_an_error() {
        assert_eq!(balanced(&costs(&[1, 1]), 3), Err(TooFewLayers { layers: 2, stages: 3 }));
    }
}
