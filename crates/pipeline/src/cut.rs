//! The cuts of a layer list into stages.

use std::ops::Range;
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

/// Returns the first layer of each stage but the first. Each stage has its own work for every
/// layer: that of its worker. The heaviest stage is as light as possible, and of such cuts the
/// result is one of lowest cost.
///
/// # Errors
/// There are more stages than layers.
pub fn balanced_by(places: &[CutPlace], stages: &[Vec<u64>]) -> Result<Vec<usize>, TooFewLayers> {
    let too_few = TooFewLayers { layers: places.len(), stages: stages.len() };
    lightest(places, stages, |_, _| true).ok_or(too_few)
}

/// As [`balanced_by`], of the cuts whose stages all fit into their memory. `None` if there is no
/// such cut.
pub fn balanced_within(
    places: &[CutPlace],
    stages: &[Vec<u64>],
    memory: &StageMemory,
) -> Option<Vec<usize>> {
    let sums: Vec<_> = memory.bytes.iter().map(|bytes| sums(bytes.iter().copied())).collect();
    let bytes = |stage: usize, layers: &Range<usize>| {
        let before = |layer: usize| sums.get(stage).and_then(|sums| sums.get(layer)).copied();
        let [start, end] = [layers.start, layers.end].map(before);
        end.zip(start).map_or(0, |(end, start)| end.saturating_sub(start))
    };
    lightest(places, stages, |stage, layers| {
        memory.rooms.get(stage).is_none_or(|room| bytes(stage, layers) <= *room)
    })
}

/// The memory that layers take, and that there is for each stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageMemory {
    /// For each stage, the bytes of each layer.
    pub bytes: Vec<Vec<u64>>,
    /// The bytes that each stage may take.
    pub rooms: Vec<u64>,
}

/// The sums of the numbers before each place, and of all.
fn sums(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let sums = numbers.scan(0u64, |sum, number| {
        *sum = sum.saturating_add(number);
        Some(*sum)
    });
    [0].into_iter().chain(sums).collect()
}

/// The cheapest of the cuts whose heaviest stage is as light as possible, of those cuts whose
/// stages are all allowed. A part of an allowed stage must be allowed, too.
fn lightest(
    places: &[CutPlace],
    stages: &[Vec<u64>],
    allows: impl Fn(usize, &Range<usize>) -> bool,
) -> Option<Vec<usize>> {
    let layers = places.len();
    if stages.is_empty() || stages.len() > layers {
        return None;
    }
    // For every stage, the work of the layers before each layer. A layer without work counts as 1,
    // so that such layers are spread evenly.
    let of_stage =
        |work: &Vec<u64>| sums(work.iter().take(layers).map(|work| work.saturating_add(1)));
    let work: Vec<Vec<u64>> = stages.iter().map(of_stage).collect();
    let cheapest = |limit: u64| {
        cheapest(places, stages.len(), |stage, layers| {
            let work = &work[stage];
            work[layers.end].saturating_sub(work[layers.start]) <= limit && allows(stage, layers)
        })
    };
    // The lightest limit for the heaviest stage, by bisection.
    let (mut low, mut high) = (0, work.iter().filter_map(|w| w.last()).copied().max().unwrap_or(0));
    while low < high {
        let middle = low + (high - low) / 2;
        match cheapest(middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    cheapest(low)
}

/// The cheapest cut whose stages all are allowed, if there is one.
fn cheapest(
    places: &[CutPlace],
    stages: usize,
    allows: impl Fn(usize, &Range<usize>) -> bool,
) -> Option<Vec<usize>> {
    let layers = places.len();
    // best[i]: the cost of cutting the layers before `i` into the current number of stages.
    let mut best: Vec<Option<CutPlace>> = vec![None; layers + 1];
    best[0] = Some(CutPlace::default());
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(stages);
    for stage in 0..stages {
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
            while window.front().is_some_and(|&(start, _)| !allows(stage, &(start..end))) {
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
    let mut cuts = Vec::with_capacity(stages);
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

    const PLACE: CutPlace = CutPlace { ties: 0, bytes: 8 };

    /// Cuts layers with this work on each of `stages` stages.
    fn balanced(work: &[u64], stages: usize) -> Result<Vec<usize>, TooFewLayers> {
        balanced_by(&vec![PLACE; work.len()], &vec![work.to_vec(); stages])
    }

    #[test]
    fn the_heaviest_stage_is_as_light_as_can_be() {
        assert_eq!(balanced(&[10, 10, 10, 10], 2), Ok(vec![2]));
        assert_eq!(balanced(&[100, 1, 1, 1], 2), Ok(vec![1]));
        assert_eq!(balanced(&[9, 9, 1, 100], 3), Ok(vec![1, 3]));
        assert_eq!(balanced(&[5], 1), Ok(vec![]));
    }

    #[test]
    fn a_worker_of_half_the_speed_gets_half_the_layers() {
        let places = [CutPlace::default(); 6];
        assert_eq!(balanced_by(&places, &[vec![20; 6], vec![10; 6]]), Ok(vec![2]));
        assert_eq!(balanced_by(&places, &[vec![10; 6], vec![20; 6]]), Ok(vec![4]));
    }

    #[test]
    fn tied_layers_stay_together_where_that_is_as_balanced() {
        let (mut places, work) = ([PLACE; 5], vec![vec![10; 5]; 2]);
        places[3].bytes = 1;
        assert_eq!(balanced_by(&places, &work), Ok(vec![3]));
        places[3].ties = 1;
        assert_eq!(balanced_by(&places, &work), Ok(vec![2]));
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
            let memory = StageMemory {
                bytes: (0..3).map(|_| (0..7).map(|_| random(9)).collect()).collect(),
                rooms: (0..3).map(|_| 8 + random(20)).collect(),
            };
            let fits = |cuts: &[usize]| {
                let (starts, ends) = ([&[0], cuts].concat(), [cuts, &[7]].concat());
                let rooms = memory.rooms.iter().zip(&memory.bytes);
                let mut stages = starts.into_iter().zip(ends).zip(rooms);
                stages.all(|((a, b), (room, bytes))| bytes[a..b].iter().sum::<u64>() <= *room)
            };
            let every = (1..7).flat_map(|a| (a + 1..7).map(move |b| [a, b]));
            let best = every.filter(|cuts| fits(cuts)).map(|cuts| value(&cuts)).min();
            let found = balanced_within(&places, &work, &memory);
            assert_eq!(found.map(|cuts| value(&cuts)), best);
        }
    }

    #[test]
    fn a_stage_takes_no_more_than_its_memory() {
        let (places, work) = ([CutPlace::default(); 6], vec![vec![10; 6]; 2]);
        let within = |rooms: [u64; 2]| {
            let memory = StageMemory { bytes: vec![vec![4; 6]; 2], rooms: rooms.to_vec() };
            balanced_within(&places, &work, &memory)
        };
        assert_eq!(within([u64::MAX; 2]), Some(vec![3]));
        assert_eq!(within([8, 100]), Some(vec![2]));
        assert_eq!(within([100, 4]), Some(vec![5]));
        assert_eq!(within([11, 12]), None);
        let memory = StageMemory { bytes: vec![vec![4]; 2], rooms: vec![u64::MAX; 2] };
        assert_eq!(balanced_within(&places[..1], &work, &memory), None, "too few layers");
    }

    #[test]
    fn too_many_stages_is_an_error() {
        assert_eq!(balanced(&[1, 1], 3), Err(TooFewLayers { layers: 2, stages: 3 }));
    }
}
