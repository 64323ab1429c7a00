//! Makes broken inputs for every reader of outside data: whole inputs with parts changed, cut out,
//! repeated and mixed.

use crate::{inputs, Random};

/// Passes to `case` the kept inputs of a reader, and then broken inputs. They are made from the
/// kept ones, from a corpus, and from pieces that mean something to the reader.
pub fn fuzz(reader: &str, corpus: &[Vec<u8>], pieces: &[&str], case: impl FnMut(&[u8])) {
    let kept = inputs::kept(reader);
    let all: Vec<Vec<u8>> = kept.iter().map(|(_, bytes)| bytes).chain(corpus).cloned().collect();
    inputs::fuzz(
        1,
        &kept,
        |seed| {
            let mut random = Random::new(seed);
            // Half of them begin as whole ones, because these are few beside the kept ones.
            let from = if random.chance(50) { corpus } else { &all };
            broken(&mut random, from, &all, pieces)
        },
        case,
    );
}

fn broken(random: &mut Random, from: &[Vec<u8>], others: &[Vec<u8>], pieces: &[&str]) -> Vec<u8> {
    let mut input = random.pick(from).clone();
    for _ in 0..1 + random.below(4) {
        let (from, to) = range(random, input.len());
        match random.below(6) {
            0 => input.iter_mut().skip(from).take(1).for_each(|byte| *byte = random.next() as u8),
            1 => drop(input.drain(from..to)),
            2 => {
                let again = input[from..to].to_vec();
                let at = random.below(input.len() as u64 + 1) as usize;
                drop(input.splice(at..at, again));
            }
            3 => {
                let other = random.pick(others);
                let (begin, end) = range(random, other.len());
                drop(input.splice(from..to, other[begin..end].iter().copied()));
            }
            4 => drop(input.splice(from..from, random.pick(pieces).bytes())),
            _ => drop(input.splice(from..to, random.pick(pieces).bytes())),
        }
    }
    input
}

/// Picks a range within `length` bytes, usually a short one.
fn range(random: &mut Random, length: usize) -> (usize, usize) {
    let from = random.below(length as u64 + 1) as usize;
    let most = *random.pick(&[1, 4, 16, 64, 1024]);
    (from, length.min(from + random.below(most + 1) as usize))
}
