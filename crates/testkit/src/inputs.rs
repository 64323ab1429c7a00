//! What the fuzz of every reader has in common: the inputs that are kept of it, how many broken ones follow, and how long
//! one may take. `BOSSMAN_FUZZ_SECONDS` says how long it goes on, `BOSSMAN_FUZZ_INPUTS` how many inputs instead,
//! `BOSSMAN_FUZZ_SEED` where to begin. Where the number is given, the test is taken to run alone, and its memory is looked at.

use parking_lot::Mutex;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No input may take longer.
const LIMIT: Duration = Duration::from_secs(2);
/// What takes so long is taken for endless.
const ENDLESS: Duration = Duration::from_secs(60);
/// However short the time, so many inputs are given.
const LEAST: u64 = 5000;
/// All inputs together may take no more above what the process had before.
const MOST_MEMORY: u64 = 100 << 20;

/// What a reader is given, and since when.
struct Input {
    name: String,
    bytes: Vec<u8>,
    begun: Instant,
}

impl Input {
    /// Says which it was, past the test harness: nothing may come after it that would show what was held back.
    fn tell(&self, what: &str) {
        let text = String::from_utf8_lossy(&self.bytes);
        writeln!(std::io::stderr(), "{what}: {}, {text:?}, as bytes {:?}", self.name, self.bytes).ok();
    }
}

/// The inputs that are kept of one reader, by name: those that reach most of it, and those that once found a fault.
pub fn kept(reader: &str) -> Vec<(String, Vec<u8>)> {
    let folder = crate::repository("fuzz/kept").join(reader);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("a folder of kept inputs").map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| (file.display().to_string(), std::fs::read(file).expect("a kept input"))).collect()
}

/// Gives `case` what is kept, and then one made input after the other, each by its seed, for `seconds` or as the
/// environment says.
pub fn fuzz(
    seconds: u64,
    kept: &[(String, Vec<u8>)],
    mut made: impl FnMut(u64) -> Vec<u8>,
    mut case: impl FnMut(&[u8]),
) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let (first, inputs) = (number("BOSSMAN_FUZZ_SEED").unwrap_or(0), number("BOSSMAN_FUZZ_INPUTS"));
    let (began, before) = (Instant::now(), peak_memory());
    let end = began + Duration::from_secs(number("BOSSMAN_FUZZ_SECONDS").unwrap_or(seconds));
    let at_work = watched();
    let mut give = |name: String, bytes: Vec<u8>| {
        let input = Arc::new(Input { name, bytes, begun: Instant::now() });
        *at_work.lock() = Some(input.clone());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| quickest(|| case(&input.bytes))));
        *at_work.lock() = None;
        match ended {
            Ok(took) if took <= LIMIT => {}
            Ok(took) => {
                input.tell("this input is slow");
                panic!("an input took {took:?}");
            }
            Err(panic) => {
                input.tell("this input fails");
                std::panic::resume_unwind(panic);
            }
        }
    };
    for (name, bytes) in kept {
        give(name.clone(), bytes.clone());
    }
    let mut seed = first;
    while inputs.map_or_else(|| seed - first < LEAST || Instant::now() < end, |inputs| seed - first < inputs) {
        give(format!("BOSSMAN_FUZZ_SEED={seed}"), made(seed));
        seed += 1;
    }
    let memory = peak_memory().zip(before).map(|(after, before)| after - before);
    eprintln!(
        "{} inputs and {} kept ones in {:.0} s{}",
        seed - first,
        kept.len(),
        began.elapsed().as_secs_f64(),
        memory.map(|bytes| format!(", with at most {:.1} MB of memory", bytes as f64 / 1e6)).unwrap_or_default()
    );
    if let (Some(memory), Some(_)) = (memory, inputs) {
        assert!(memory < MOST_MEMORY, "the inputs took {memory} bytes of memory");
    }
}

/// How long it takes. What is slow by itself is slow again, unlike what a busy machine held up.
fn quickest(mut case: impl FnMut()) -> Duration {
    let mut time = || {
        let begun = Instant::now();
        case();
        begun.elapsed()
    };
    let mut took = time();
    for _ in 0..4 {
        if took > LIMIT {
            took = time();
        }
    }
    took
}

/// Ends the process where what is at work goes on without end: nothing else could.
fn watched() -> Arc<Mutex<Option<Arc<Input>>>> {
    let at_work: Arc<Mutex<Option<Arc<Input>>>> = Arc::default();
    let watched = Arc::downgrade(&at_work);
    std::thread::spawn(move || {
        while let Some(at_work) = watched.upgrade() {
            let input = at_work.lock().clone();
            if let Some(input) = input.filter(|input| input.begun.elapsed() > ENDLESS) {
                input.tell("this input takes without end");
                std::process::abort();
            }
            drop(at_work);
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    at_work
}

/// The most memory that this process ever had, in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    Some(kilobytes.parse::<u64>().ok()? << 10)
}
