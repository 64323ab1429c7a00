//! Threads that work in the time that others leave.

/// How far such a thread stands back, as `nice` counts: the others get 28 times as much of a core
/// that both want.
#[cfg(target_os = "linux")]
const NICE: i32 = 15;
/// The most that the system takes.
#[cfg(target_os = "linux")]
const MOST: i32 = 19;

/// Lets the other threads of the machine go before this one, for good. Only Linux can do that for a
/// single thread. Elsewhere nothing changes.
pub fn stand_back() {
    #[cfg(target_os = "linux")]
    {
        let now = rustix::process::getpriority_process(None).unwrap_or(0);
        // Work goes on if the system refuses.
        rustix::process::setpriority_process(None, now.saturating_add(NICE).min(MOST)).ok();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn one_thread_stands_back_and_the_others_do_not() {
        let before = getpriority_process(None).unwrap();
        let thread = std::thread::spawn(|| {
            stand_back();
            getpriority_process(None).unwrap()
        });
        assert_eq!(thread.join().unwrap(), (before + NICE).min(MOST));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
