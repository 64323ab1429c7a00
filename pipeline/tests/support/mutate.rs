//! Broken inputs by the million, for whatever reads what may come from outside: whole ones with parts changed, cut out, put
//! twice and mixed. `BOSSMAN_FUZZ_SECONDS` says how long (default 1), `BOSSMAN_FUZZ_INPUTS` how many instead, `BOSSMAN_FUZZ_SEED`
//! where to begin.

use crate::random::Random;
use std::time::{Duration, Instant};

/// No input may take longer.
const LIMIT: Duration = Duration::from_secs(2);

/// Prints the input that was at work when a test panicked.
struct AtWork(u64, Vec<u8>);

impl Drop for AtWork {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, input {:?}", self.0, String::from_utf8_lossy(&self.1));
        }
    }
}

/// Gives `case` one broken input after the other, made of a corpus and of pieces that mean something to the reader.
pub fn fuzz(corpus: &[Vec<u8>], pieces: &[&str], mut case: impl FnMut(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let (first, inputs) = (number("BOSSMAN_FUZZ_SEED").unwrap_or(0), number("BOSSMAN_FUZZ_INPUTS"));
    let end = Instant::now() + Duration::from_secs(number("BOSSMAN_FUZZ_SECONDS").unwrap_or(1));
    let goes_on = |done: u64| inputs.map_or_else(|| done < 1000 || Instant::now() < end, |inputs| done < inputs);
    let mut at_work = AtWork(first, Vec::new());
    while goes_on(at_work.0 - first) {
        at_work.1 = broken(&mut Random::new(at_work.0), corpus, pieces);
        let began = Instant::now();
        case(&at_work.1);
        assert!(began.elapsed() < LIMIT, "an input took {:?}", began.elapsed());
        at_work.0 += 1;
    }
    eprintln!("{} inputs", at_work.0 - first);
}

fn broken(random: &mut Random, corpus: &[Vec<u8>], pieces: &[&str]) -> Vec<u8> {
    let mut input = random.pick(corpus).clone();
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
                let other = random.pick(corpus);
                let (begin, end) = range(random, other.len());
                drop(input.splice(from..to, other[begin..end].iter().copied()));
            }
            4 => drop(input.splice(from..from, random.pick(pieces).bytes())),
            _ => drop(input.splice(from..to, random.pick(pieces).bytes())),
        }
    }
    input
}

/// Some of so many bytes, rather few.
fn range(random: &mut Random, length: usize) -> (usize, usize) {
    let from = random.below(length as u64 + 1) as usize;
    let most = *random.pick(&[1, 4, 16, 64, 1024]);
    (from, length.min(from + random.below(most + 1) as usize))
}
