//! Worker processes on this machine. They end when the boss does, in whatever way it ends.

use crate::BossManError;
use link::{Ticket, Transport, WorkerInfo};
use pipeline::ids::WorkerId;
use runtime::Handle;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The environment variable for the worker program, if it is not beside this one.
pub(crate) const WORKER_PROGRAM: &str = "BOSSMAN_WORKER";

/// The first argument of every local worker. By it `worker::Worker::main_if_local` knows that a
/// boss started the program.
const LOCAL_WORKER_FLAG: &str = "--end-with-stdin";

/// The program and flags of every local worker.
pub(crate) struct WorkerFlags {
    /// The program, if [`WORKER_PROGRAM`] names none. By default it is searched for.
    pub(crate) program: Option<PathBuf>,
    pub(crate) threads: Option<usize>,
    /// Taken in turn. If it is empty, each worker chooses by its number.
    pub(crate) devices: Vec<String>,
    pub(crate) transport: Transport,
    pub(crate) allow_torchscript: bool,
    pub(crate) data: Option<PathBuf>,
    pub(crate) weights: Option<PathBuf>,
    /// The folder of [`peak_memory`](crate::fleet::FleetSettings::peak_memory).
    pub(crate) peak_memory: Option<PathBuf>,
}

/// Running workers. Each reads a pipe that only this process holds, and ends when it is closed: by
/// dropping this, or by the system when this process ends.
pub(crate) struct LocalWorkers {
    processes: WorkerProcesses,
    /// The random number of each, which its [`WorkerInfo`] tells.
    instances: Vec<u64>,
    exits: mpsc::UnboundedReceiver<(u64, String)>,
}

/// The handle that keeps workers running. Dropping it also ends stopped processes, which cannot see
/// that their pipe is closed.
#[derive(Default)]
pub(crate) struct WorkerProcesses {
    pipes: Vec<ChildStdin>,
    waiting: JoinSet<()>,
}

impl LocalWorkers {
    /// Starts `count` workers that join the boss at `address`.
    pub(crate) fn start(
        count: usize,
        flags: &WorkerFlags,
        address: SocketAddr,
        ticket: &Ticket,
    ) -> Result<Self, BossManError> {
        if std::env::args_os().nth(1).is_some_and(|first| first == LOCAL_WORKER_FLAG) {
            return Err(BossManError::LocalWorkers(
                "this program was started as a local worker and became a boss again; its main \
                 must begin with `worker::Worker::new().main_if_local()`"
                    .into(),
            ));
        }
        let program = worker_program(flags.program.as_deref())?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // CUDA shows a process one MIG slice only, so each worker is told its own.
        let slices = match flags.devices.is_empty() {
            true => tensor::cuda::uuid::slices(),
            false => Vec::new(),
        };
        let WorkerFlags { threads, devices, transport, allow_torchscript, data, weights, .. } =
            flags;
        let threads = threads.unwrap_or_else(|| (cores / count.max(1)).max(1)).to_string();
        let (sender, exits) = mpsc::unbounded_channel();
        let (mut processes, mut instances) = (WorkerProcesses::default(), Vec::new());
        for number in 0..count {
            let mut command = Command::new(&program);
            command.args([
                LOCAL_WORKER_FLAG,
                "--threads",
                &threads,
                "--transport",
                &transport.to_string(),
            ]);
            command.args(allow_torchscript.then_some("--allow-torchscript"));
            command.arg("--local-number").arg(number.to_string());
            let instance = link::draw_instance();
            command.arg(format!("--local-instance={instance}"));
            if let Some(device) = devices.iter().chain(&slices).cycle().nth(number) {
                command.arg("--device").arg(device);
            }
            for (flag, folder) in [("--data", data), ("--weights", weights)] {
                let Some(folder) = folder else { continue };
                // That of a file that is named without a folder.
                let here = folder.as_os_str().is_empty();
                command.arg(flag).arg(if here { Path::new(".") } else { folder });
            }
            if let Some(folder) = &flags.peak_memory {
                command.arg("--peak-memory").arg(folder.join(number.to_string()));
            }
            // The ticket goes by the environment: arguments can be read by every user of the
            // machine.
            command.env("MODEL_HOST", address.ip().to_string());
            command.env("MODEL_PORT", address.port().to_string());
            command.env("MODEL_TICKET", ticket.to_string());
            // Ctrl-C goes to the boss alone, which may still need its workers to save their state.
            #[cfg(unix)]
            command.process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
            let failed =
                |e| BossManError::LocalWorkers(format!("cannot start {}: {e}", program.display()));
            let mut child = command.spawn().map_err(failed)?;
            processes.pipes.extend(child.stdin.take());
            let sender = sender.clone();
            instances.push(instance);
            processes.waiting.spawn(async move {
                if let Ok(status) = child.wait().await {
                    sender.send((instance, describe(status))).ok();
                }
            });
        }
        Ok(LocalWorkers { processes, instances, exits })
    }

    /// Workers with these numbers, which nobody has started.
    #[cfg(test)]
    pub(crate) fn of_instances(instances: Vec<u64>) -> Self {
        let (_, exits) = mpsc::unbounded_channel();
        LocalWorkers { processes: WorkerProcesses::default(), instances, exits }
    }

    /// The random numbers of the workers.
    pub(crate) fn instances(&self) -> &[u64] {
        &self.instances
    }

    /// Whether a worker that joined is one of these.
    pub(crate) fn contains(&self, worker: &WorkerInfo) -> bool {
        self.instances.contains(&worker.instance)
    }

    /// Ends with the first worker that ends: its random number, and how it did. Cancel safe.
    pub(crate) async fn wait_for_exit(&mut self) -> (u64, String) {
        match self.exits.recv().await {
            Some(exit) => exit,
            None => std::future::pending().await,
        }
    }

    /// Tells the run when a worker's process ends, which is sooner than its connection shows it.
    /// The returned value keeps the workers running.
    pub(crate) fn report_exits(self, handle: Handle) -> WorkerProcesses {
        let LocalWorkers { processes, mut exits, .. } = self;
        tokio::spawn(async move {
            while let Some((instance, how)) = exits.recv().await {
                let mine = |w: &WorkerInfo| w.instance == instance;
                if let Some(worker) = handle.workers().iter().position(mine) {
                    handle.report_lost(WorkerId(worker as u16), &how);
                }
            }
        });
        processes
    }
}

fn describe(status: ExitStatus) -> String {
    format!("its process ended: {status}")
}

/// The program that the environment names, or `chosen`. Otherwise beside this program, or one or
/// two folders up (where cargo puts tests and examples), or where cargo that runs this program puts
/// what it builds, or in PATH.
pub(crate) fn worker_program(chosen: Option<&Path>) -> Result<PathBuf, BossManError> {
    let name = format!("worker{}", std::env::consts::EXE_SUFFIX);
    if let Some(path) = std::env::var_os(WORKER_PROGRAM).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    if let Some(path) = chosen {
        return Ok(path.into());
    }
    let exe = std::env::current_exe().unwrap_or_default();
    let beside = exe.ancestors().skip(1).take(3).map(PathBuf::from);
    let built = if std::env::var_os("CARGO").is_some() { cargo_folders() } else { Vec::new() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path);
    let found = beside
        .chain(built)
        .chain(in_path)
        .map(|folder| folder.join(&name))
        .find(|file| file.is_file());
    found.ok_or_else(|| {
        BossManError::LocalWorkers(format!(
            "the program `{name}` is neither beside {} nor in PATH; build it with `cargo build -p \
             worker`, or name it in {WORKER_PROGRAM}",
            exe.display()
        ))
    })
}

/// The command that starts a worker from any folder: a name in PATH, or the path of the program.
pub(crate) fn worker_command(chosen: Option<&Path>) -> String {
    command_of(worker_program(chosen).ok().as_deref())
}

/// The command for this program. Without one here it is a name, because only the other machine
/// knows the place of its own.
fn command_of(found: Option<&Path>) -> String {
    let Some(found) = found else { return "worker".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let name = found.file_name().unwrap_or_default();
    let first_in_path = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file());
    let program = std::path::absolute(found).unwrap_or_else(|_| found.to_path_buf());
    match first_in_path.is_some_and(|first| first == program) {
        true => shell_word(&name.to_string_lossy()),
        false => shell_word(&program.display().to_string()),
    }
}

/// The text as one word of a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:\\".contains(c);
    match text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Cargo runs doc tests from a temporary folder, in the folder of their package.
fn cargo_folders() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let targets = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => vec![here.join(target)],
        None => here.ancestors().take(3).map(|folder| folder.join("target")).collect(),
    };
    let profiles = if cfg!(debug_assertions) { ["debug", "release"] } else { ["release", "debug"] };
    targets.into_iter().flat_map(|target| profiles.map(|profile| target.join(profile))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container may have the name of this machine, and its processes the same ids. JOIN-9.
    #[test]
    fn a_local_worker_is_known_by_its_random_number() {
        let local = LocalWorkers::of_instances(vec![7, 8]);
        let worker = |instance| WorkerInfo { process: 1, instance, ..WorkerInfo::default() };
        let known = [7, 9, 8].map(|instance| local.contains(&worker(instance)));
        assert_eq!((known, local.instances()), ([true, false, true], &[7, 8][..]));
    }

    #[test]
    fn the_command_of_a_worker_works_in_any_folder() {
        let command = worker_command(Some(Path::new("target/release/worker")));
        assert!(Path::new(&command).is_absolute(), "{command}");
        assert!(command.ends_with("target/release/worker"), "{command}");
        assert_eq!(shell_word("/home/me/my models/worker"), "'/home/me/my models/worker'");
        assert_eq!(shell_word("/home/o'neill/worker"), r"'/home/o'\''neill/worker'");
    }

    #[test]
    fn without_a_worker_program_here_the_command_names_no_folder() {
        assert_eq!(command_of(None), "worker");
    }
}
