//! Runs a command that sees the GPUs of the fake CUDA device: `fake_gpu COMMAND [ARGUMENT..]`.
//!
//! Exits with 77 and the reason if this machine cannot have the fake.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a helper of tests")]

use std::os::unix::process::CommandExt;
use std::process::{exit, Command};
use testkit::fake_gpu::{Assertions, FakeGpu};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: fake_gpu COMMAND [ARGUMENT..]");
        exit(2);
    };
    let gpu = FakeGpu::build(Assertions::Off).unwrap_or_else(|why| {
        eprintln!("{why}");
        exit(77);
    });
    let error = Command::new(&program).args(arguments).envs(gpu.environment()).exec();
    eprintln!("{}: {error}", program.display());
    exit(127);
}
