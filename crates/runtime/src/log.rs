//! The log of a program: spans and events on standard error, if `BOSSMAN_LOG` asks for them.
//!
//! Without the variable no subscriber exists, and every span and event is one comparison.

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// The environment variable that says what to log.
pub const LOG_VARIABLE: &str = "BOSSMAN_LOG";

/// The crates that a level without a target is meant for. Others are logged if they are named.
const OWN_TARGETS: [&str; 6] = ["bossman", "worker", "runtime", "link", "data", "tensor"];

/// A part of `BOSSMAN_LOG` that says nothing.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{LOG_VARIABLE}: cannot read `{0}`; expected a level (error, warn, info, debug or trace), or \
     target=level, as in `info,link=debug`"
)]
pub struct LogError(String);

/// Starts the log of this program if `BOSSMAN_LOG` is set and not empty.
///
/// # Errors
/// A part of the variable is neither a level nor `target=level`.
pub fn start_log() -> Result<(), LogError> {
    let Some(text) = std::env::var_os(LOG_VARIABLE) else { return Ok(()) };
    let targets = parse(&text.to_string_lossy())?;
    if targets.iter().next().is_none() {
        return Ok(());
    }
    // Work continues if nobody reads standard error.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(targets).with(lines);
    // Fails only if a program that embeds this one has set up a log of its own, which stays.
    tracing::subscriber::set_global_default(subscriber).ok();
    Ok(())
}

/// Reads levels by target, separated by commas. Later parts take precedence.
fn parse(text: &str) -> Result<Targets, LogError> {
    let mut targets = Targets::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let error = || LogError(part.escape_debug().to_string());
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (Some(target.trim()), level.trim()),
            None => (None, part),
        };
        if level.is_empty() || target.is_some_and(str::is_empty) {
            return Err(error());
        }
        let level: LevelFilter = level.parse().map_err(|_| error())?;
        targets = match target {
            Some(target) => targets.with_target(target, level),
            None => targets.with_targets(OWN_TARGETS.map(|target| (target, level))),
        };
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_level_is_for_our_crates_and_a_target_for_itself() {
        let targets = parse("info, link=debug,").unwrap();
        assert!(targets.would_enable("bossman::session", &Level::INFO));
        assert!(!targets.would_enable("runtime::compute", &Level::DEBUG));
        assert!(targets.would_enable("link::admission::join", &Level::DEBUG));
        assert!(!targets.would_enable("quinn_proto::connection", &Level::ERROR));
        assert!(parse("quinn=trace").unwrap().would_enable("quinn", &Level::TRACE));
        assert!(parse(" ").unwrap().iter().next().is_none());
    }

    #[test]
    fn a_part_that_is_no_level_is_named() {
        for wrong in ["debgu", "link", "link=loud", "=debug", "link=", "\u{1b}[2J"] {
            let error = parse(&format!("info,{wrong}")).unwrap_err().to_string();
            assert!(error.starts_with("BOSSMAN_LOG: cannot read `"), "{error}");
            assert!(error.contains(&wrong.escape_debug().to_string()), "{error}");
        }
    }
}
