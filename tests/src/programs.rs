//! Runs the built `worker` and `bossman` programs as processes. Nothing here sleeps: tests wait for
//! lines and for ends, each with a time limit.

use crate::device::device_name;
use crate::{Case, Training, BATCH, STEPS};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// The time limit for something that should happen soon, on a machine that is busy.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the path of one of our programs. The test fails with a hint if it was not built.
pub fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    // Tests lie in target/debug/deps.
    let path =
        exe.ancestors().nth(2).unwrap().join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.is_file(), "no {}: run `cargo build -p worker -p bossman` first", path.display());
    path
}

/// A test's own folder, with its keys and files. Programs that start in the same folder find each
/// other.
pub struct TestFolder(tempfile::TempDir);

impl TestFolder {
    /// Makes an empty folder.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        TestFolder(tempfile::tempdir().unwrap())
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a run of `steps` steps over a case's data, with further keys. Returns its path.
    pub fn run_file(&self, case: &Case, steps: usize, more: &str) -> PathBuf {
        let loss = match &case.loss {
            bossman::Loss::MSELoss => "MSELoss".to_string(),
            bossman::Loss::CrossEntropyLoss { label_smoothing, .. } => {
                format!("{{CrossEntropyLoss: {{label_smoothing: {label_smoothing}}}}}")
            }
            other => panic!("no case has the loss {other}"),
        };
        let optimizer = match case.optimizer {
            bossman::Optimizer::SGD { lr, momentum, weight_decay, nesterov, .. } => {
                format!(
                    "SGD: {{lr: {lr}, momentum: {momentum}, weight_decay: {weight_decay}, \
                     nesterov: {nesterov}}}"
                )
            }
            bossman::Optimizer::Adam(a) => {
                format!("Adam: {{lr: {}, weight_decay: {}}}", a.lr, a.weight_decay)
            }
            bossman::Optimizer::AdamW(a) => {
                format!("AdamW: {{lr: {}, weight_decay: {}}}", a.lr, a.weight_decay)
            }
        };
        case.save_data(&self.file("data.safetensors"));
        let text = format!(
            "model: {}\ndata: {{train: data.safetensors}}\nloss: {loss}\noptimizer: \
             {{{optimizer}}}\nbatch_size: {BATCH}\nsteps: {steps}\nseed: {}\n{more}\n",
            Case::file(case.name).display(),
            case.seed
        );
        let path = self.file("run.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a run that lasts until something ends it.
    pub fn endless_run(&self) -> PathBuf {
        self.run_file(&Case::branchy(), 1_000_000_000, "microbatches: 4")
    }

    /// Writes a run that is as short as law 1's.
    pub fn short_run(&self, case: &Case, more: &str) -> PathBuf {
        self.run_file(case, STEPS, more)
    }

    /// Starts one of our programs with these arguments.
    pub fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.start_with(name, arguments, &[])
    }

    /// Same as [`Self::start`], with environment variables.
    pub fn start_with(
        &self,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Process {
        self.start_by(Command::new(program(name)), name, arguments, environment)
    }

    /// Starts another command with these arguments and environment variables. Messages call it
    /// `name`.
    pub fn start_by(
        &self,
        mut command: Command,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Process {
        for inherited in ["MODEL_HOST", "MODEL_PORT", "MODEL_TICKET", "BOSSMAN_WORKER"] {
            command.env_remove(inherited);
        }
        command.args(arguments).env("BOSSMAN_CONFIG_DIR", self.file("config"));
        command.env("BOSSMAN_RUNS_DIR", self.file("run-folders"));
        command.envs(environment.iter().copied()).kill_on_drop(true);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::unbounded_channel();
        read(child.stdout.take().unwrap(), false, sender.clone());
        read(child.stderr.take().unwrap(), true, sender);
        Process { name: format!("{name} {}", arguments.join(" ")), child, lines, said: Vec::new() }
    }

    /// Starts a boss for `workers` workers that join by hand, and waits until it listens.
    pub async fn boss(&self, run: &Path, workers: usize, more: &[&str]) -> (Process, BossAddress) {
        let workers = workers.to_string();
        let arguments =
            [&["train", run.to_str().unwrap(), "--workers", &workers, "--port", "0"], more]
                .concat();
        let mut boss = self.start("bossman", &arguments);
        let line = boss.line("MODEL_TICKET=").await;
        let word = |key: &str| {
            line.split_whitespace().find_map(|w| w.strip_prefix(key)).unwrap().to_string()
        };
        (boss, BossAddress { port: word("MODEL_PORT="), ticket: word("MODEL_TICKET=") })
    }

    /// Starts a worker for a boss on this port.
    pub fn worker(&self, port: &str, more: &[&str]) -> Process {
        self.start(
            "worker",
            &[&["--port", port, "--device", &device_name(), "--threads", "1"], more].concat(),
        )
    }
}

/// The result of a run of the programs.
pub struct Run {
    /// Losses and weights.
    pub training: Training,
    /// The boss's lines on standard error.
    pub notices: Vec<String>,
}

/// Trains a case with a boss and workers started one by one, each with one compute thread.
pub async fn train_in_processes(case: &Case, workers: usize, more: &str, flags: &[&str]) -> Run {
    let place = TestFolder::new();
    let run = place.short_run(case, more);
    let (metrics, weights) = (place.file("metrics.jsonl"), place.file("weights.safetensors"));
    let outcome = ["--metrics", metrics.to_str().unwrap(), "--save", weights.to_str().unwrap()];
    let (boss, at) = place.boss(&run, workers, &[&outcome[..], &["--no-shuffle"]].concat()).await;
    let workers: Vec<_> = (0..workers).map(|_| place.worker(&at.port, flags)).collect();
    let ended = boss.end().await.expect_success();
    for worker in workers {
        worker.end().await.expect_success();
    }
    let metrics = std::fs::read_to_string(metrics).unwrap();
    let training = Training::of_files(&metrics, &bossman::StateDict::load(weights).unwrap());
    Run { training, notices: ended.errors }
}

/// The address that a boss prints for workers that want to join.
pub struct BossAddress {
    /// Its UDP port.
    pub port: String,
    /// Its ticket.
    pub ticket: String,
}

fn read(
    stream: impl AsyncRead + Unpin + Send + 'static,
    error: bool,
    to: mpsc::UnboundedSender<(bool, String)>,
) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            to.send((error, line)).ok();
        }
    });
}

/// A running program, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    lines: mpsc::UnboundedReceiver<(bool, String)>,
    said: Vec<(bool, String)>,
}

/// What the boss says about workers that it does not start itself.
pub const NO_CHECKPOINT: &str =
    "warning: a lost worker ends this run, because the run file has no `checkpoint`; for example \
     `checkpoint: {every: {minutes: 10}}` lets it go on";

/// The end of a program.
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Lines on standard output.
    pub output: Vec<String>,
    /// Lines on standard error.
    pub errors: Vec<String>,
}

impl Process {
    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Waits for a line with this text, on either stream.
    pub async fn line(&mut self, text: &str) -> String {
        self.line_within(TIMEOUT, text).await
    }

    /// Same as [`Self::line`], with another time limit.
    pub async fn line_within(&mut self, limit: Duration, text: &str) -> String {
        let found = async {
            while let Some((error, line)) = self.lines.recv().await {
                self.said.push((error, line.clone()));
                if line.contains(text) {
                    return Some(line);
                }
            }
            None
        };
        match tokio::time::timeout(limit, found).await {
            Ok(Some(line)) => line,
            Ok(None) => {
                panic!("`{}` ended without saying `{text}`{}", self.name, self.transcript())
            }
            Err(_) => {
                panic!("`{}` did not say `{text}` within {limit:?}{}", self.name, self.transcript())
            }
        }
    }

    /// Waits until it has ended, and every process that it started and that shares its output too.
    pub async fn end(self) -> Ended {
        self.end_within(TIMEOUT).await
    }

    /// Same as [`Self::end`], with another time limit.
    pub async fn end_within(mut self, limit: Duration) -> Ended {
        let end = async {
            let status = self.child.wait().await.unwrap();
            // The readers end when no process holds the other end of the pipes any more.
            while let Some(line) = self.lines.recv().await {
                self.said.push(line);
            }
            status
        };
        let Ok(status) = tokio::time::timeout(limit, end).await else {
            panic!(
                "`{}`, or a process it started, did not end within {limit:?}{}",
                self.name,
                self.transcript()
            );
        };
        let (errors, output): (Vec<_>, Vec<_>) = self.said.drain(..).partition(|(error, _)| *error);
        let text = |lines: Vec<(bool, String)>| lines.into_iter().map(|(_, line)| line).collect();
        Ended { status, output: text(output), errors: text(errors) }
    }

    /// Sends a signal, such as `KILL` or `INT`.
    pub fn signal(&self, signal: &str) {
        send_signal(self.id(), signal);
    }

    /// Stops it by `STOP`, and returns once all its threads stand still. Until then the others may
    /// go on, although the signal was sent: the kernel stops them once one of them has run.
    pub async fn stop(&self) {
        use rustix::process::{waitid, Pid, WaitId, WaitIdOptions};
        self.signal("STOP");
        let process = Pid::from_raw(self.id() as i32).unwrap();
        let stands_still = tokio::task::spawn_blocking(move || {
            // `NOWAIT`: who waits for its end is told of this, too.
            waitid(WaitId::Pid(process), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)
        });
        let status = tokio::time::timeout(TIMEOUT, stands_still).await;
        status.expect("it stops").unwrap().unwrap();
    }

    /// Returns the ids of the processes that it started.
    pub fn children(&self) -> Vec<u32> {
        let parent = self.id().to_string();
        processes("ppid")
            .into_iter()
            .filter(|(_, its)| *its == parent)
            .map(|(process, _)| process)
            .collect()
    }

    fn transcript(&self) -> String {
        self.said.iter().map(|(_, line)| format!("\n  {line}")).collect()
    }
}

impl Ended {
    /// Asserts that it ended well.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert!(
            self.status.success(),
            "{}\n{}\n{}",
            self.status,
            self.output.join("\n"),
            self.errors.join("\n")
        );
        self
    }

    /// Asserts that it ended with an error in one line, and returns the line.
    #[track_caller]
    pub fn error_line(mut self) -> String {
        self.errors.retain(|line| line != NO_CHECKPOINT);
        assert_eq!(self.status.code(), Some(1), "{}: {}", self.status, self.errors.join("\n"));
        match <[String; 1]>::try_from(self.errors) {
            Ok([line]) => line,
            Err(lines) => panic!("expected one line, got:\n{}", lines.join("\n")),
        }
    }
}

/// Returns the ids of the processes that have this text among their arguments.
pub fn processes_with(argument: &str) -> Vec<u32> {
    processes("args")
        .into_iter()
        .filter(|(_, all)| all.contains(argument))
        .map(|(process, _)| process)
        .collect()
}

/// Lists all processes, each with the field `what` of `ps`.
fn processes(what: &str) -> Vec<(u32, String)> {
    let listed = std::process::Command::new("ps")
        .args(["-A", "-ww", "-o", &format!("pid=,{what}=")])
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let pair = |line: &str| {
        let (process, what) = line.trim().split_once(' ')?;
        Some((process.parse().ok()?, what.trim().to_string()))
    };
    listed.lines().filter_map(pair).collect()
}

/// Sends a signal to a process, by its name without `SIG`.
pub fn send_signal(process: u32, signal: &str) {
    use rustix::process::{kill_process, Pid, Signal};
    let number = match signal {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        _ => panic!("an unknown signal: {signal}"),
    };
    let to = Pid::from_raw(process.cast_signed()).unwrap();
    let sent = kill_process(to, number);
    assert!(sent.is_ok(), "SIG{signal} to {process}: {sent:?}");
}

/// Returns a UDP port that was free a moment ago.
pub fn free_port() -> String {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    socket.local_addr().unwrap().port().to_string()
}

/// Panics if the time since `start` is above `limit`.
#[track_caller]
pub fn assert_within(start: Instant, limit: Duration, what: &str) {
    let took = start.elapsed();
    assert!(took <= limit, "{what} took {took:?}, more than {limit:?}");
}
