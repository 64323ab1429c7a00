//! The program learns the sine.

use std::process::{Command, Stdio};

#[test]
fn the_loss_falls() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hello"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let losses: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once(": loss "))
        .map(|(_, loss)| loss.parse().unwrap())
        .collect();
    assert_eq!(losses.len(), 5, "{text}");
    assert!(losses[4] < losses[0] / 10.0, "{text}");
}
