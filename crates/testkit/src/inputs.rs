//! The shared part of the fuzz tests of all readers: the kept inputs, the number of broken ones
//! that follow, and the time limit of one input.
//!
//! `BOSSMAN_FUZZ_SECONDS` sets how long a test runs, `BOSSMAN_FUZZ_INPUTS` the number of inputs
//! instead, and `BOSSMAN_FUZZ_SEED` the first seed. If the number is set, the test is assumed to
//! run alone, and its memory is checked.

use parking_lot::Mutex;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit of one input.
const LIMIT: Duration = Duration::from_secs(2);
/// An input that takes this long counts as endless.
const ENDLESS: Duration = Duration::from_secs(60);
/// The least number of inputs, however short the time.
const LEAST: u64 = 5000;
/// The limit in bytes by which all inputs together may raise the peak memory.
const MOST_MEMORY: u64 = 100 << 20;

/// An input of a reader, and when the reader began with it.
struct Input {
    name: String,
    bytes: Vec<u8>,
    begun: Instant,
}

impl Input {
    /// Prints the input past the test harness, which may not get to show the output that it
    /// captured.
    fn tell(&self, what: &str) {
        let text = String::from_utf8_lossy(&self.bytes);
        writeln!(std::io::stderr(), "{what}: {}, {text:?}, as bytes {:?}", self.name, self.bytes)
            .ok();
    }
}

/// Returns the kept inputs of one reader by name: those that reach most of its code, and those that
/// once found a fault.
pub fn kept(reader: &str) -> Vec<(String, Vec<u8>)> {
    let folder = crate::repository("fuzz/kept").join(reader);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("a folder of kept inputs")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
        .iter()
        .map(|file| (file.display().to_string(), std::fs::read(file).expect("a kept input")))
        .collect()
}

/// Passes the kept inputs to `case`, and then one made input per seed, for `seconds` or as the
/// environment says.
pub fn fuzz(
    seconds: u64,
    kept: &[(String, Vec<u8>)],
    mut made: impl FnMut(u64) -> Vec<u8>,
    mut case: impl FnMut(&[u8]),
) {
    let number = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"))
    };
    let (first, inputs) = (number("BOSSMAN_FUZZ_SEED").unwrap_or(0), number("BOSSMAN_FUZZ_INPUTS"));
    let (began, before) = (Instant::now(), peak_memory());
    let end = began + Duration::from_secs(number("BOSSMAN_FUZZ_SECONDS").unwrap_or(seconds));
    let at_work = watched();
    let mut give = |name: String, bytes: Vec<u8>| {
        let input = Arc::new(Input { name, bytes, begun: Instant::now() });
        *at_work.lock() = Some(input.clone());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            quickest(|| case(&input.bytes))
        }));
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
    while inputs.map_or_else(
        || seed - first < LEAST || Instant::now() < end,
        |inputs| seed - first < inputs,
    ) {
        give(format!("BOSSMAN_FUZZ_SEED={seed}"), made(seed));
        seed += 1;
    }
    // The kernel counts pages for each core, and adds them up only now and then.
    let memory = peak_memory().zip(before).map(|(after, before)| after.saturating_sub(before));
    eprintln!(
        "{} inputs and {} kept ones in {:.0} s{}",
        seed - first,
        kept.len(),
        began.elapsed().as_secs_f64(),
        memory
            .map(|bytes| format!(", with at most {:.1} MB of memory", bytes as f64 / 1e6))
            .unwrap_or_default()
    );
    if let (Some(memory), Some(_)) = (memory, inputs) {
        assert!(memory < MOST_MEMORY, "the inputs took {memory} bytes of memory");
    }
}

/// Measures a case, up to five times while it is too slow. A slow case is slow again, unlike one
/// that a busy machine delayed.
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

/// Starts a thread that aborts the process if an input runs without end. Nothing else could end it.
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

/// Returns the peak memory of this process in bytes, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    Some(kilobytes.parse::<u64>().ok()? << 10)
}
