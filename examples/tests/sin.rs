//! The sine example learns the sine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

use std::process::{Command, Stdio};

#[test]
fn the_loss_falls() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sin"));
    let output = command.arg("--local").stdin(Stdio::null()).output().unwrap();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{text}{errors}");
    let losses: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once(": loss "))
        .map(|(_, loss)| loss.parse().unwrap())
        .collect();
    assert_eq!(losses.len(), 8, "{text}");
    assert!(losses[7] < losses[0] && losses[7] < 2e-3, "{text}");
}

/// Otherwise a program that names itself as its worker program would start itself without end.
#[test]
fn a_boss_that_was_started_as_a_worker_starts_no_workers() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sin"));
    command.args(["--end-with-stdin", "--local"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("main_if_local"), "{errors}");
}
