//! The parts of a run that can be repeated.

use crate::BossManError;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// A part of a run: from a state that is there to the last hash of results before the next such
/// state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The state that it begins with.
    pub from: Origin,
    /// Its last step, which has a digest or made the weights of a file.
    pub to: u64,
    /// The steps in it that have digests.
    pub digests: Vec<u64>,
    /// Why it cannot be repeated.
    pub problem: Option<String>,
}

/// The state with which a window begins.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The beginning of the run.
    Beginning,
    /// The checkpoint of this step.
    Checkpoint(u64),
}

impl Origin {
    /// The steps that are done.
    pub fn step(self) -> u64 {
        match self {
            Origin::Beginning => 0,
            Origin::Checkpoint(step) => step,
        }
    }
}

impl Window {
    /// The number of steps to repeat.
    pub fn steps(&self) -> u64 {
        self.to.saturating_sub(self.from.step())
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.from {
            Origin::Beginning => "the beginning".to_string(),
            Origin::Checkpoint(step) => format!("the checkpoint of step {step}"),
        };
        write!(f, "from {origin} to step {}", self.to)
    }
}

/// The windows of a run with digests after these steps, and with files of the weights after these.
/// Digests and checkpoints ascend. `unknown_start` says why the run cannot be repeated from its
/// beginning.
pub(super) fn windows(
    digests: &[u64],
    weights: &[u64],
    checkpoints: &[u64],
    unknown_start: Option<String>,
) -> Vec<Window> {
    let origins = std::iter::once(Origin::Beginning)
        .chain(checkpoints.iter().copied().map(Origin::Checkpoint));
    let origins: Vec<Origin> = origins.collect();
    let mut windows = Vec::new();
    for (place, from) in origins.iter().enumerate() {
        let end = origins.get(place + 1).map_or(u64::MAX, |next| next.step());
        let is_inside = |step: &u64| *step > from.step() && *step <= end;
        let inside: Vec<u64> = digests.iter().copied().filter(is_inside).collect();
        let made = weights.iter().copied().filter(is_inside);
        let Some(to) = made.chain(inside.last().copied()).max() else { continue };
        let problem = unknown_start.clone().filter(|_| *from == Origin::Beginning);
        windows.push(Window { from: *from, to, digests: inside, problem });
    }
    windows
}

/// Draws windows that can be repeated: `count` of them, or all. They keep their order.
///
/// # Errors
/// None can be repeated, and `count` is not 0.
pub fn draw(
    windows: &[Window],
    count: Option<usize>,
    seed: u64,
) -> Result<Vec<Window>, BossManError> {
    let mut places: Vec<usize> =
        (0..windows.len()).filter(|place| windows[*place].problem.is_none()).collect();
    if places.is_empty() && count != Some(0) {
        let problem = "no part of the run can be repeated, so hashes alone show nothing of its \
                       results; compare them alone with --windows 0";
        return Err(BossManError::Usage(problem.into()));
    }
    places.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    places.truncate(count.unwrap_or(usize::MAX));
    places.sort();
    Ok(places.into_iter().map(|place| windows[place].clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digest_is_in_one_window() {
        let all = windows(&[10, 20, 30, 40, 50], &[50], &[20, 40, 50], None);
        let seen: Vec<_> =
            all.iter().map(|of| (of.from.step(), of.to, of.digests.clone())).collect();
        assert_eq!(seen, [(0, 20, vec![10, 20]), (20, 40, vec![30, 40]), (40, 50, vec![50])]);
        assert_eq!(all[1].to_string(), "from the checkpoint of step 20 to step 40");
        assert!(windows(&[], &[], &[], None).is_empty());
        let unknown = windows(&[10, 20], &[], &[10], Some("no weights".into()));
        assert_eq!(unknown[0].problem.as_deref(), Some("no weights"));
        assert_eq!(unknown[1].problem, None);
        // The last steps made weights, but no update.
        let last = windows(&[4, 8], &[11], &[4, 8], None);
        assert_eq!(last.last().map(|of| (of.from.step(), of.to)), Some((8, 11)));
    }

    #[test]
    fn drawn_windows_can_be_repeated_and_are_in_order() {
        let digests: Vec<u64> = (1..=20).collect();
        let all = windows(&digests, &[], &digests, Some("no weights".into()));
        let drawn = draw(&all, Some(5), 7).unwrap();
        assert_eq!(drawn.len(), 5);
        assert!(drawn.windows(2).all(|pair| pair[0].to < pair[1].to));
        assert!(drawn.iter().all(|window| window.problem.is_none()));
        assert_ne!(drawn, draw(&all, Some(5), 8).unwrap());
        assert_eq!(draw(&all, None, 7).unwrap().len(), 19);

        // A run whose parts cannot be repeated is not as good as verified.
        for windows in [&all[..1], &[]] {
            for count in [None, Some(3)] {
                let refused = draw(windows, count, 7).unwrap_err().to_string();
                assert!(refused.contains("no part of the run can be repeated"), "{refused}");
            }
            assert!(draw(windows, Some(0), 7).unwrap().is_empty());
        }
    }
}
