//! `--device all`: one worker process for each GPU.

use anyhow::{bail, Context, Result};
use std::process::{Command, Stdio};
use tch::Device;

/// Starts a worker for each GPU with the same arguments and environment, and waits for all. The
/// children end with this process: each holds the reading end of a pipe that only it writes to.
pub(crate) fn run() -> Result<()> {
    let gpus: Vec<_> = tensor::device::all().into_iter().filter(|d| *d != Device::Cpu).collect();
    if gpus.is_empty() {
        bail!(
            "--device all: this machine has no GPU that libtorch can use ({}); leave --device out \
             to use the CPU",
            tensor::cuda::load()
        );
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut children = Vec::new();
    for gpu in gpus {
        let mut command = Command::new(&program);
        command.args(arguments_without_device()).arg("--device").arg(tensor::device::name(gpu));
        command.arg("--end-with-stdin").stdin(Stdio::piped());
        children
            .push(command.spawn().with_context(|| format!("cannot start {}", program.display()))?);
    }
    let mut failed = 0;
    for child in &mut children {
        // `wait` would close the pipe, which tells the child to end.
        let pipe = child.stdin.take();
        failed += usize::from(!child.wait()?.success());
        drop(pipe);
    }
    if failed > 0 {
        bail!("{failed} of {} workers ended with an error", children.len());
    }
    Ok(())
}

fn arguments_without_device() -> Vec<std::ffi::OsString> {
    let mut kept = Vec::new();
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--device" {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with("--device=")
            && argument != "--end-with-stdin"
        {
            kept.push(argument);
        }
    }
    kept
}
