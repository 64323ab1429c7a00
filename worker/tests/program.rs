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
        "--self-check",
        "--json",
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
fn a_host_with_a_port_is_refused_before_the_worker_waits() {
    let said = errors(worker(&[], &[("MODEL_HOST", "lab.local:1024")]), 2);
    assert!(
        said.contains("'lab.local:1024'") && said.contains("MODEL_PORT has the port"),
        "{said}"
    );
}

/// The check needs no boss.
#[test]
fn a_port_of_the_environment_does_not_stop_a_self_check() {
    for argument in ["--self-check", "--self-check=cuda:99"] {
        let arguments = [argument, "--threads", "0"];
        let said = errors(worker(&arguments, &[("MODEL_PORT", "abc")]), 1);
        assert_eq!(said, "worker: --threads 0: at least one compute thread is needed\n");
    }
}

/// As a compose file leaves a variable that nobody sets.
#[test]
fn an_empty_variable_counts_as_none() {
    let names = ["MODEL_HOST", "MODEL_PORT", "MODEL_TICKET", "MODEL_DATA", "BOSSMAN_NCCL"];
    let said = errors(worker(&["--device", "cuda:99"], &names.map(|name| (name, ""))), 1);
    assert!(said.starts_with("worker: --device cuda:99: not on this machine"), "{said}");
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
fn a_cpu_is_checked_without_a_boss() {
    let arguments = ["--self-check", "cpu", "--threads", "1"];
    // Variables for a worker that works are not read, even if they are no port.
    let variables = [("MODEL_HOST", "nowhere.invalid"), ("MODEL_PORT", "x"), ("MODEL_DATA", "/no")];
    let output = worker(&arguments, &variables);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let expected = [
        "driver ... ok (",
        "streams ... skipped: not needed on a CPU",
        "copies ... skipped: not needed on a CPU",
        "memory ... skipped: not needed on a CPU: ",
        "layers ... ok (",
        "products ... ok (",
    ];
    assert_eq!(text.lines().count(), expected.len(), "{text}");
    for (line, expected) in text.lines().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert!(text.lines().next().unwrap().contains("libtorch 2."), "{text}");
    assert!(text.contains(" cases as in PyTorch; "), "{text}");
}

#[test]
fn a_check_can_be_read_by_programs() {
    let output = worker(&["--self-check", "cpu", "--json"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sections: Vec<_> = lines.iter().map(|line| line["section"].as_str().unwrap()).collect();
    assert_eq!(sections, ["driver", "streams", "copies", "memory", "layers", "products"]);
    assert!(lines.iter().all(|line| line["ok"] == true && line["problem"].is_null()), "{text}");
    assert_eq!(lines[0]["figures"]["device"], "cpu");
    assert_eq!(lines[1]["figures"]["skipped"], "not needed on a CPU");
    let layers = &lines[4]["figures"];
    assert!(layers["cases"].as_u64().unwrap() > 200 && layers["wrong"] == 0, "{text}");
    assert!(layers["outputs"]["error"].as_f64().unwrap() <= 1e-5, "{text}");
}

#[test]
fn a_device_that_is_not_here_is_not_checked() {
    let output = worker(&["--self-check", "cuda:99"], &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("driver ... failed ("), "{text}");
    assert!(text.contains("--self-check cuda:99: not on this machine, which has cpu"), "{text}");
    assert_eq!(
        errors(output, 1),
        "worker: --self-check: driver failed; not checked: streams, copies, memory, layers, \
         products\n"
    );
}

/// Its disk is full.
#[test]
#[cfg(target_os = "linux")]
fn a_report_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    command.args(["--self-check", "cuda:99"]).stdin(Stdio::null()).stdout(full);
    let said = errors(command.output().unwrap(), 1);
    assert!(said.contains("products; standard output: No space left on device"), "{said}");
}

#[test]
fn flags_for_work_and_for_a_check_exclude_each_other() {
    for arguments in [
        &["--self-check", "--device", "cpu"][..],
        &["--self-check", "--relay"],
        &["--self-check", "--grace", "10"],
    ] {
        assert!(errors(worker(arguments, &[]), 2).contains("--self-check"), "{arguments:?}");
    }
    assert!(errors(worker(&["--json"], &[]), 2).contains("--self-check"));
}

#[test]
fn no_threads_compute_nothing() {
    let said = errors(worker(&["--self-check", "cpu", "--threads", "0"], &[]), 1);
    assert_eq!(said, "worker: --threads 0: at least one compute thread is needed\n");
    let said = errors(worker(&["--device", "cpu", "--threads", "0"], &[]), 1);
    assert_eq!(said, "worker: --threads 0: at least one compute thread is needed\n");
}
