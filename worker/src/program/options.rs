//! The flags and environment variables of the `worker` program.

use crate::engine::TorchScriptPolicy;
use clap::{CommandFactory, Parser};
use std::ffi::OsStr;
use std::path::PathBuf;

/// Works for a BossMan boss: receives a part of its model, trains it, and ends when the boss ends
/// the run.
///
/// On the boss's own machine no setting is needed. On another one, paste the line that the boss
/// prints: MODEL_HOST=.. MODEL_PORT=.. MODEL_TICKET=.. worker
#[derive(Parser, Debug, Clone)]
#[command(name = "worker", version, after_help = EXAMPLES)]
pub struct Options {
    /// Name or address of the boss's machine; --host for short.
    #[arg(
        long,
        visible_alias = "host",
        env = "MODEL_HOST",
        default_value = "127.0.0.1",
        value_name = "HOST",
        value_parser = host
    )]
    pub model_host: String,
    /// UDP port of the boss; --port for short.
    #[arg(
        long,
        visible_alias = "port",
        env = "MODEL_PORT",
        default_value_t = 1024,
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub model_port: u16,
    /// Join ticket that the boss prints; found automatically on the boss's machine. Also --ticket,
    /// but the environment variable is safer: other users of the machine can read arguments.
    #[arg(
        long,
        visible_alias = "ticket",
        env = "MODEL_TICKET",
        hide_env_values = true,
        value_name = "TICKET"
    )]
    pub model_ticket: Option<String>,
    /// The compute device: cpu, cuda:N, mps, the UUID of a GPU or MIG slice, or all for one worker
    /// on every GPU and slice [default: the first GPU, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Neither accept nor make direct connections to other workers; the boss relays.
    #[arg(long)]
    pub relay: bool,
    /// How tensors travel to processes on this machine: `auto` through shared memory, `quic` by the
    /// network path.
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub transport: link::Transport,
    /// A folder with data. If the run file says `on: workers`, samples are read from its files, by
    /// their paths relative to the run file. The boss cannot read other files.
    #[arg(long, env = "MODEL_DATA", value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// A folder with weights. If the run file says `on: workers` for its weights, this worker reads
    /// those of its own layers from the folder's files. The boss cannot read other files.
    #[arg(long, env = "MODEL_WEIGHTS", value_name = "FOLDER")]
    pub weights: Option<PathBuf>,
    /// The NCCL library, with which replicas sum gradients among GPUs, if the loader does not find
    /// the right libnccl.so.2.
    #[arg(long, env = "BOSSMAN_NCCL", value_name = "FILE")]
    pub nccl: Option<PathBuf>,
    /// End if there was a boss, and none answers for this number of seconds [default: wait for
    /// ever]
    #[arg(long, value_name = "SECONDS")]
    pub orphan_timeout: Option<u64>,
    /// End if one task, for example a pass or the reading of samples, takes longer than this number
    /// of seconds: the device, its driver or a disk hangs. Others then take this worker's place.
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub task_timeout: u64,
    /// After SIGTERM, the time for the current step, and in a pool for handing the layers over that
    /// no other worker has. A second signal ends the worker at once, as
    /// Ctrl-C does; another SIGTERM only if it comes a second later.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub grace: u64,
    /// Run the TorchScript layers of the model. They are programs that can read and write this
    /// user's files, so use it only for a boss whose user is trusted.
    #[arg(long)]
    pub allow_torchscript: bool,
    /// Check a device and end, without a boss: its driver, copies, memory, and every kind of layer
    /// against what PyTorch computes. The exit code is 0 if all is right [default: the device that
    /// a worker takes]
    #[arg(long, value_name = "DEVICE", conflicts_with_all = WORKING)]
    pub self_check: Option<Option<String>>,
    /// Print the sections of --self-check as lines of JSON.
    #[arg(long, requires = "self_check")]
    pub json: bool,
    /// End when standard input ends; a boss starts its local workers so.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// The number of this worker among the local ones of its boss, which ends it. Without --device
    /// it takes the GPU of this number, modulo the number of GPUs.
    #[arg(long, hide = true, value_name = "N")]
    pub local_number: Option<usize>,
    /// The random number by which the boss that starts this worker knows it.
    #[arg(long, hide = true, value_name = "N")]
    pub local_instance: Option<u64>,
    /// The file into which this worker writes the most memory that it took of its GPU.
    #[arg(long, hide = true, value_name = "FILE")]
    pub peak_memory: Option<PathBuf>,
}

/// Refuses what no waiting can make a host.
fn host(text: &str) -> Result<String, &'static str> {
    link::check_host(text).map(|()| text.to_string())
}

/// The flags of a worker that works for a boss. Those that the environment may set, too, are not
/// among them.
const WORKING: [&str; 11] = [
    "device",
    "relay",
    "transport",
    "orphan_timeout",
    "task_timeout",
    "grace",
    "allow_torchscript",
    "end_with_stdin",
    "local_number",
    "local_instance",
    "peak_memory",
];

/// The first argument of a worker that a boss starts on its own machine.
const LOCAL_WORKER_FLAG: &str = "--end-with-stdin";

impl Options {
    /// Reads flags and environment. An empty variable counts as none: a unit or compose file that
    /// leaves it open sets it so. A self-check reads none, because they describe the work for a
    /// boss. Call it first in `main`, because it removes those variables.
    pub(crate) fn read() -> Self {
        let command = Options::command();
        let ignores_all = std::env::args_os().skip(1).any(|argument| is_self_check(&argument));
        for name in command.get_arguments().filter_map(|argument| argument.get_env()) {
            if ignores_all || std::env::var_os(name).is_some_and(|value| value.is_empty()) {
                std::env::remove_var(name);
            }
        }
        Options::parse()
    }

    /// Whether a boss started this program as a local worker.
    pub(crate) fn is_local_worker() -> bool {
        std::env::args_os().nth(1).is_some_and(|first| first == LOCAL_WORKER_FLAG)
    }

    /// The device that a flag names, with the flag.
    pub(crate) fn named_device(&self) -> Option<(&'static str, &str)> {
        match &self.self_check {
            Some(device) => Some(("--self-check", device.as_deref()?)),
            None => Some(("--device", self.device.as_deref()?)),
        }
    }

    /// Whether TorchScript layers run.
    pub(crate) fn torchscript_policy(&self) -> TorchScriptPolicy {
        match self.allow_torchscript {
            true => TorchScriptPolicy::Allowed,
            false => TorchScriptPolicy::Refused,
        }
    }
}

/// Whether an argument is `--self-check`, with or without a device.
fn is_self_check(argument: &OsStr) -> bool {
    let rest = argument.as_encoded_bytes().strip_prefix(b"--self-check");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
}

const EXAMPLES: &str = "\
Examples:
  worker                                      a boss on this machine
  MODEL_HOST=10.0.0.5 MODEL_TICKET=bossman1-.. worker --device cuda:0
  MODEL_HOST=10.0.0.5 MODEL_TICKET=bossman1-.. worker --device all
  MODEL_HOST=10.0.0.5 MODEL_TICKET=bossman1-.. worker --data examples/mnist-resnet
  worker --self-check cuda:0                  is this GPU all right?";
