//! Where the layer list is cut into stages.

use thiserror::Error;

/// How the user wants the model cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Cuts {
    /// One stage a worker, balanced by FLOPs, and among equally balanced ones the cut that sends the
    /// fewest bytes.
    #[default]
    Auto,
    /// Each named layer starts a new stage.
    At(Vec<String>),
}

/// What the balance is made of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LayerCost {
    /// Work of one sample.
    pub flops: u64,
    /// Bytes of one sample that cross a cut just before this layer.
    pub bytes_before: u64,
    /// Whether a cut may lie just before this layer.
    pub may_cut: bool,
}

/// The layers cannot be cut into that many stages.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("cuts: {layers} layers with {places} places for a cut do not make {stages} stages; use fewer workers")]
pub struct TooFewLayers {
    /// How many layers there are.
    pub layers: usize,
    /// Before how many of them a cut may lie.
    pub places: usize,
    /// How many stages were asked for.
    pub stages: usize,
}

/// The first layer of each stage but the first: the heaviest stage is as light as can be, and among
/// such cuts the bytes that cross are fewest.
pub fn balanced(costs: &[LayerCost], stages: usize) -> Result<Vec<usize>, TooFewLayers> {
    let places = costs.iter().skip(1).filter(|c| c.may_cut).count();
    if stages == 0 || stages > places + 1 || costs.is_empty() {
        return Err(TooFewLayers { layers: costs.len(), places, stages });
    }
    // A layer without FLOPs still takes a moment; the 1 spreads such layers evenly.
    let mut work = vec![0u64];
    for cost in costs {
        work.push(work[work.len() - 1].saturating_add(cost.flops.saturating_add(1)));
    }
    let total = work[costs.len()];
    // The lightest limit for the heaviest stage, by bisection.
    let (mut low, mut high) = (0, total);
    while low < high {
        let middle = low + (high - low) / 2;
        match fewest_bytes(costs, &work, stages, middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    let cuts = fewest_bytes(costs, &work, stages, low);
    cuts.ok_or(TooFewLayers { layers: costs.len(), places, stages })
}

/// The cut into exactly `stages` stages, none above `limit`, with the fewest bytes across; nothing
/// where there is none. `work[i]` is the work of the layers before `i`.
fn fewest_bytes(costs: &[LayerCost], work: &[u64], stages: usize, limit: u64) -> Option<Vec<usize>> {
    let layers = costs.len();
    // best[i]: (bytes, last cut) for the layers before `i` in the number of stages reached so far.
    let mut best: Vec<Option<u64>> = vec![None; layers + 1];
    best[0] = Some(0);
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(stages);
    for _ in 0..stages {
        let mut next: Vec<Option<u64>> = vec![None; layers + 1];
        let mut back = vec![0; layers + 1];
        // Starts of the last stage that are not too far back, cheapest first (sliding-window minimum).
        let mut window: std::collections::VecDeque<(usize, u64)> = Default::default();
        for end in 1..=layers {
            let start = end - 1;
            if let Some(bytes) = best[start].filter(|_| start == 0 || costs[start].may_cut) {
                let bytes = bytes.saturating_add(if start == 0 { 0 } else { costs[start].bytes_before });
                while window.back().is_some_and(|&(_, b)| b > bytes) {
                    window.pop_back();
                }
                window.push_back((start, bytes));
            }
            while window.front().is_some_and(|&(s, _)| work[end] - work[s] > limit) {
                window.pop_front();
            }
            if let Some(&(start, bytes)) = window.front() {
                next[end] = Some(bytes);
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

    fn costs(flops: &[u64]) -> Vec<LayerCost> {
        flops.iter().map(|&flops| LayerCost { flops, bytes_before: 8, may_cut: true }).collect()
    }

    #[test]
    fn the_heaviest_stage_is_as_light_as_can_be() {
        assert_eq!(balanced(&costs(&[10, 10, 10, 10]), 2), Ok(vec![2]));
        assert_eq!(balanced(&costs(&[100, 1, 1, 1]), 2), Ok(vec![1]));
        assert_eq!(balanced(&costs(&[9, 9, 1, 100]), 3), Ok(vec![1, 3]));
        assert_eq!(balanced(&costs(&[5]), 1), Ok(vec![]));
    }

    #[test]
    fn agrees_with_trying_every_cut() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let layers: Vec<_> = (0..7)
                .map(|_| LayerCost { flops: random(20), bytes_before: random(9), may_cut: random(4) > 0 })
                .collect();
            let value = |cuts: &[usize]| {
                let mut ends = cuts.to_vec();
                ends.push(7);
                let mut start = 0;
                let mut heaviest = 0;
                for end in ends {
                    heaviest = heaviest.max(layers[start..end].iter().map(|l| l.flops + 1).sum::<u64>());
                    start = end;
                }
                (heaviest, cuts.iter().map(|&c| layers[c].bytes_before).sum::<u64>())
            };
            let mut best = None;
            for a in 1..7 {
                for b in a + 1..7 {
                    if layers[a].may_cut && layers[b].may_cut {
                        let v = value(&[a, b]);
                        best = Some(best.map_or(v, |o: (u64, u64)| o.min(v)));
                    }
                }
            }
            assert_eq!(balanced(&layers, 3).ok().map(|cuts| value(&cuts)), best);
        }
    }

    #[test]
    fn too_many_stages_is_an_error() {
        assert_eq!(balanced(&costs(&[1, 1]), 3), Err(TooFewLayers { layers: 2, places: 1, stages: 3 }));
    }
}
