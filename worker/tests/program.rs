//! The `worker` program's flags and environment. Its work itself is tested in `tests/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

use std::process::{Command, Output, Stdio};

fn worker(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    for inherited in ["MODEL_HOST", "MODEL_PORT", "MODEL_TICKET"] {
        command.env_remove(inherited);
    }
    command.args(arguments).envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Asserts that it ended with this code, and returns its standard error.
#[track_caller]
fn errors(output: Output, code: i32) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    errors
}

#[test]
fn help_lists_every_flag_and_variable() {
    let output = worker(&["--help"], &[("MODEL_TICKET", "a secret")]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for promised in [
        "--host",
        "--port",
        "--ticket",
        "MODEL_HOST",
        "MODEL_PORT",
        "MODEL_TICKET",
        "--device",
        "--threads",
        "--relay",
    ] {
        assert!(text.contains(promised), "no {promised} in\n{text}");
    }
    assert!(!text.contains("a secret"), "{text}");
    assert!(!text.contains("--end-with-stdin"), "{text}");
}

#[test]
fn the_version_is_the_package_s() {
    let output = worker(&["--version"], &[]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        concat!("worker ", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_port_that_is_none_is_named() {
    let said = errors(worker(&[], &[("MODEL_PORT", "abc")]), 2);
    assert!(
        said.contains("'abc'") && said.contains("MODEL_PORT") | said.contains("--model-port"),
        "{said}"
    );
    let said = errors(worker(&["--port", "65536"], &[]), 2);
    assert!(said.contains("65536"), "{said}");
}

#[test]
fn unknown_flags_and_arguments_are_refused() {
    assert!(errors(worker(&["--prot", "1"], &[]), 2).contains("--prot"));
    assert!(errors(worker(&["boss.example.org"], &[]), 2).contains("boss.example.org"));
}

#[test]
fn devices_that_are_not_here_are_named_with_those_that_are() {
    let said = errors(worker(&["--device", "cuda:99"], &[]), 1);
    assert!(
        said.starts_with("worker: --device cuda:99: not on this machine, which has cpu"),
        "{said}"
    );
    let said = errors(worker(&["--device", "tpu"], &[]), 1);
    assert!(
        said.starts_with("worker: --device") && said.contains("tpu") && said.contains("cpu"),
        "{said}"
    );
}

#[test]
fn no_threads_compute_nothing() {
    let said = errors(worker(&["--device", "cpu", "--threads", "0"], &[]), 1);
    assert_eq!(said, "worker: --threads 0: at least one compute thread is needed\n");
}
