//! Tests the programs on GPUs of the fake CUDA device: what they say of them, how workers share
//! them, and what follows when one breaks or is full. A machine that cannot have the fake passes;
//! `tools/run_tests.py` tells that it skipped tests.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use testkit::fake_gpu::{Assertions, FakeGpu};
use tests::programs::{program, send_signal, Process, TestFolder};
use tests::Case;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// The time limit of a run; far longer than any run here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
const STEPS: usize = 500;

/// A test's folder, whose programs see the fake's GPUs.
pub(crate) struct Machine {
    pub(crate) place: TestFolder,
    environment: Vec<(String, String)>,
}

impl Machine {
    /// `None` if this machine cannot have the fake.
    pub(crate) fn new(environment: &[(&str, &str)]) -> Option<Self> {
        let mut all = FakeGpu::build(Assertions::Off).ok()?.environment();
        // NCCL sums in another order than frames do.
        all.push(("BOSSMAN_NCCL".into(), "/nowhere".into()));
        all.extend(environment.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        Some(Machine { place: TestFolder::new(), environment: all })
    }

    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Process {
        self.start_with(program, arguments, &[])
    }

    pub(crate) fn start_with(
        &self,
        program: &str,
        arguments: &[&str],
        more: &[(&str, &str)],
    ) -> Process {
        let mut all: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.extend(more);
        self.place.start_with(program, arguments, &all)
    }

    /// Starts a run of `STEPS` steps with these flags, which keeps its metrics and weights.
    fn train(&self, more: &str, flags: &[&str]) -> Process {
        self.train_steps(STEPS, more, flags)
    }

    /// The same with another number of steps.
    fn train_steps(&self, steps: usize, more: &str, flags: &[&str]) -> Process {
        let run = self.place.run_file(&Case::narrow_residual(), steps, more);
        let [metrics, weights] =
            ["metrics.jsonl", "w.safetensors"].map(|name| self.place.file(name));
        let arguments = [
            "train",
            run.to_str().unwrap(),
            "--metrics",
            metrics.to_str().unwrap(),
            "--save",
            weights.to_str().unwrap(),
        ];
        self.start("bossman", &[&arguments, flags].concat())
    }

    /// Starts the script that checks whole runs and writes a page.
    fn write_gpu_page(&self, arguments: &[&str]) -> Process {
        let mut python = Command::new("python3");
        // Without packages, because a torch of this machine would find the fake.
        python.arg("-S").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/gpu_page.py"));
        let environment: Vec<_> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.place.start_by(python, "gpu_page.py", arguments, &environment)
    }

    /// The weights of a run that has ended.
    pub(crate) fn weights(&self) -> Vec<u8> {
        std::fs::read(self.place.file("w.safetensors")).unwrap()
    }
}

/// The weights of a run on one GPU that nothing disturbed.
/// `None` if this machine cannot have the fake.
async fn quiet() -> Option<&'static Vec<u8>> {
    static QUIET: OnceCell<Option<Vec<u8>>> = OnceCell::const_new();
    let train = || async {
        let machine = Machine::new(&[])?;
        let boss = machine.train("microbatches: 4", &["--local", "1", "--threads", "1"]);
        boss.end_within(PATIENCE).await.expect_success();
        Some(machine.weights())
    };
    QUIET.get_or_init(train).await.as_ref()
}

/// Starts a worker that sees the fake's GPUs, and ends it once it has spoken. Returns the line with
/// this part. `None` if this machine cannot have the fake.
async fn line(environment: &[(&str, &str)], device: &[&str], part: &str) -> Option<String> {
    let machine = Machine::new(environment)?;
    // Nobody listens there.
    let arguments = [&["--port", "9", "--threads", "1"], device].concat();
    Some(machine.start("worker", &arguments).line(part).await)
}

/// The port of a boss that waits for workers.
pub(crate) async fn port(boss: &mut Process) -> String {
    let line = boss.line("MODEL_PORT=").await;
    let port = line.split_whitespace().find_map(|word| word.strip_prefix("MODEL_PORT="));
    port.unwrap().to_string()
}

#[tokio::test]
async fn a_worker_tells_its_driver_and_gpus_or_why_there_are_none() {
    let golden = [
        (("FAKECUDA_DEVICES", "2"), "CUDA 13.0 driver, cuda:0 fake GPU, cuda:1 fake GPU"),
        (
            ("FAKECUDA_DEVICES", "0"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver (CUDA 13.0) finds no \
             GPU",
        ),
        (
            ("FAKECUDA_DRIVER", "broken"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver does not work: \
             starting it: system has unsupported display driver / cuda driver combination (CUDA \
             error 803); try nvidia-smi",
        ),
        (
            ("FAKECUDA_DRIVER", "12040"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver supports CUDA 12.4, \
             and libtorch needs CUDA 13.0; update the driver, or set LIBTORCH to a libtorch for \
             CUDA 12",
        ),
    ];
    for (variable, expected) in golden {
        let Some(line) = line(&[variable], &[], "CUDA").await else { return };
        assert_eq!(line, expected);
    }
}

/// As after `make setup` before the driver was installed.
#[tokio::test]
async fn a_libtorch_for_cpus_on_a_machine_with_gpus_is_a_fault() {
    let Some(machine) = Machine::new(&[]) else { return };
    let (_, path) = machine.environment.iter().find(|(name, _)| name == "LD_LIBRARY_PATH").unwrap();
    let with_cuda = Path::new(path.split(':').next().unwrap());
    let folder = machine.place.file("torch/lib");
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(with_cuda).unwrap() {
        let entry = entry.unwrap();
        if !["libtorch_cuda.so", "libc10_cuda.so"].iter().any(|name| entry.file_name() == *name) {
            symlink(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    // libtorch_cpu looks for NVIDIA's runtime beside its folder.
    if let Ok(nvidia) = with_cuda.join("../../nvidia").canonicalize() {
        symlink(nvidia, machine.place.file("nvidia")).unwrap();
    }
    let start = |arguments: &[&str]| {
        let libraries = [("LD_LIBRARY_PATH", folder.to_str().unwrap())];
        let arguments = [&["--threads", "1"], arguments].concat();
        machine.start_with("worker", &arguments, &libraries)
    };
    let reason = format!(
        "no CUDA: the driver has 2 GPUs, but {} holds no libtorch_cuda.so: install a libtorch for \
         CUDA",
        folder.display()
    );
    let line = start(&["--port", "9"]).line("CUDA").await;
    assert_eq!(line, format!("worker: warning: computes on the CPU; {reason}"));
    let ended = start(&["--self-check"]).end_within(PATIENCE).await;
    assert_eq!(ended.status.code(), Some(1));
    let line = ended.output.join("\n");
    assert!(line.starts_with("driver ... failed (") && line.contains(&reason), "{line}");
}

#[tokio::test]
async fn a_gpu_that_is_named_but_not_there_is_an_error_with_the_reason() {
    let golden = [
        (
            ("FAKECUDA_DEVICES", "2"),
            "cuda:7",
            "worker: --device cuda:7: not on this machine, which has cpu, cuda:0, cuda:1; CUDA \
             13.0 driver, cuda:0 fake GPU, cuda:1 fake GPU",
        ),
        (
            ("FAKECUDA_DEVICES", "0"),
            "cuda",
            "worker: --device cuda: not on this machine, which has cpu; no CUDA: the NVIDIA driver \
             (CUDA 13.0) finds no GPU",
        ),
        (
            ("FAKECUDA_DEVICES", "0"),
            "all",
            "worker: --device all: this machine has no GPU that libtorch can use (no CUDA: the \
             NVIDIA driver (CUDA 13.0) finds no GPU); leave --device out to use the CPU",
        ),
    ];
    for (variable, device, expected) in golden {
        let Some(line) = line(&[variable], &["--device", device], "worker: ").await else { return };
        assert_eq!(line, expected);
    }
}

/// The sections of a self-check.
const SECTIONS: [&str; 6] = ["driver", "streams", "copies", "memory", "layers", "products"];

#[tokio::test]
async fn a_worker_checks_itself_on_a_gpu() {
    let Some(machine) = Machine::new(&[]) else { return };
    let check = |flags: &[&str]| {
        machine.start("worker", &[&["--threads", "1", "--self-check"], flags].concat())
    };
    let ended = check(&["cuda:1"]).end_within(PATIENCE).await.expect_success();
    assert_eq!(ended.output.len(), SECTIONS.len(), "{:?}", ended.output);
    for (line, section) in ended.output.iter().zip(SECTIONS) {
        assert!(line.starts_with(&format!("{section} ... ok (")), "{line}");
    }
    let driver = &ended.output[0];
    assert!(driver.contains("cuda:1 (cuda fake GPU), CUDA 13.0 driver, "), "{driver}");
    assert!(driver.ends_with("1.0 of 1.0 GiB memory free"), "{driver}");

    // The first GPU is the default.
    let ended = check(&["--json"]).end_within(PATIENCE).await.expect_success();
    let lines: Vec<serde_json::Value> =
        ended.output.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), SECTIONS.len(), "{lines:?}");
    for (line, section) in lines.iter().zip(SECTIONS) {
        assert_eq!(line["section"], section);
        assert!(line["ok"] == true && line["problem"].is_null(), "{line}");
        assert!(line["seconds"].as_f64().unwrap() >= 0.0, "{line}");
    }
    let figures = |index: usize| &lines[index]["figures"];
    assert_eq!(figures(0)["device"], "cuda:0");
    assert_eq!(figures(0)["gpus"], serde_json::json!(["fake GPU", "fake GPU"]));
    assert!(figures(2)["to_host_pinned_gb_s"].as_f64().unwrap() > 0.0);
    assert!(figures(3)["refusal"].as_str().unwrap().contains("out of memory"));
    assert_eq!(figures(4)["wrong"], 0);
    assert!(figures(5)["bfloat16_tflop_s"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn a_self_check_names_the_section_in_which_a_gpu_breaks() {
    let golden = [
        ("0:1:illegal-address", 1, "streams failed; not checked: copies, memory, layers, products"),
        ("0:1000:illegal-address", 4, "layers failed; not checked: products"),
    ];
    for (fault, section, expected) in golden {
        let Some(machine) = Machine::new(&[("FAKECUDA_FAIL", fault)]) else { return };
        let arguments = ["--self-check", "cuda:0", "--threads", "1"];
        let ended = machine.start("worker", &arguments).end_within(PATIENCE).await;
        let said = [&ended.output[..], &ended.errors].concat().join("\n");
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert_eq!(ended.output.len(), section + 1, "{said}");
        let line = &ended.output[section];
        assert!(line.starts_with(&format!("{} ... failed (", SECTIONS[section])), "{line}");
        assert!(line.contains("an illegal memory access was encountered"), "{line}");
        assert!(line.contains("the device is broken for this process: check again"), "{line}");
        let last = ended.errors.last().unwrap();
        assert_eq!(last, &format!("worker: --self-check: {expected}"));
    }
}

#[tokio::test]
async fn a_self_check_without_a_gpu_that_works_fails_unless_it_is_for_the_cpu() {
    let Some(machine) = Machine::new(&[("FAKECUDA_DRIVER", "broken")]) else { return };
    let check = |flags: &[&str]| {
        machine.start("worker", &[&["--threads", "1", "--self-check"], flags].concat())
    };
    let default: &[&str] = &[];
    for device in [default, &["cuda:0"]] {
        let ended = check(device).end_within(PATIENCE).await;
        assert_eq!(ended.status.code(), Some(1));
        let line = ended.output.join("\n");
        assert!(line.starts_with("driver ... failed ("), "{line}");
        assert!(line.contains("the NVIDIA driver does not work"), "{line}");
        assert_eq!(
            ended.errors.last().unwrap(),
            "worker: --self-check: driver failed; not checked: streams, copies, memory, layers, \
             products"
        );
    }
    check(&["cpu"]).end_within(PATIENCE).await.expect_success();
}

#[tokio::test]
async fn whole_runs_are_right_on_a_gpu() {
    let Some(machine) = Machine::new(&[]) else { return };
    let (boss, page) = (program("bossman"), machine.place.file("gpu.md"));
    let programs = boss.parent().unwrap().to_str().unwrap();
    let arguments = ["--programs", programs, "--to", page.to_str().unwrap()];
    let arguments = [&arguments[..], &["--preset", "tiny", "--device", "cuda:0"]].concat();
    let ended = machine.write_gpu_page(&arguments).end_within(PATIENCE).await.expect_success();
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains("All 12 sections"), "{text}");
    assert!(text.contains("(preset tiny, whose times say nothing; not a real GPU)"), "{text}");
    let lines = ended.output.iter().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_worker = SECTIONS.map(|section| format!("device.{section}"));
    let of_runs = ["cuts", "replicas", "resume", "errors", "prediction", "speed"];
    let expected: Vec<String> = of_worker.into_iter().chain(of_runs.map(String::from)).collect();
    let sections: Vec<&str> = lines.iter().map(|line| line["section"].as_str().unwrap()).collect();
    assert_eq!(sections, expected);
    for line in &lines {
        assert!(line["ok"] == true && line["problem"].is_null(), "{line}");
    }
    let figures = |index: usize| &lines[SECTIONS.len() + index]["figures"];
    assert_eq!(figures(0)["largest_difference"], 0.0);
    assert!(figures(0)["difference_from_cpu"].as_f64().unwrap() < 1e-5, "{}", figures(0));
    assert_eq!(figures(1)["collective"], "quic");
    assert!(figures(3)["too_large"].as_str().unwrap().contains("out of memory"));
}

#[tokio::test]
async fn local_workers_take_the_gpus_in_turn_or_those_that_are_named() {
    let golden: [(&[&str], [&str; 3]); 3] = [
        (&[], ["cuda:0", "cuda:1", "cuda:0"]),
        (&["--device", "cuda:1"], ["cuda:1", "cuda:1", "cuda:1"]),
        (&["--device", "cuda:1,cpu"], ["cuda:1", "cpu", "cuda:1"]),
    ];
    for (flags, expected) in golden {
        let Some(machine) = Machine::new(&[]) else { return };
        let flags = [&["--local", "3", "--threads", "1"], flags].concat();
        let mut boss = machine.train("microbatches: 4", &flags);
        let mut devices = Vec::new();
        for _ in 0..3 {
            let line = boss.line(" joined from ").await;
            devices.push(line.split(", ").nth(1).unwrap().to_string());
        }
        devices.sort();
        let mut expected = expected.map(String::from);
        expected.sort();
        assert_eq!(devices, expected);
    }
}

#[tokio::test]
async fn a_device_that_no_worker_has_or_that_is_none_is_named() {
    let Some(machine) = Machine::new(&[]) else { return };
    let boss = machine.train("", &["--local", "2", "--device", "cuda:0,gpu7"]);
    let ended = boss.end().await;
    let said = ended.errors.join("\n");
    assert!(said.contains("no device is called \"gpu7\""), "{said}");
    assert_eq!(ended.status.code(), Some(2));
}

#[tokio::test]
async fn one_worker_for_each_gpu_starts_again_when_it_is_killed() {
    let Some(quiet) = quiet().await else { return };
    let Some(machine) = Machine::new(&[]) else { return };
    let mut boss = machine.train(
        "microbatches: 4\ncheckpoint: {dir: c, every: 20, keep: 2}",
        &["--workers", "2", "--port", "0"],
    );
    let port = port(&mut boss).await;
    let mut workers =
        machine.start("worker", &["--port", &port, "--threads", "1", "--device", "all"]);
    boss.line(" written").await;
    send_signal(workers.children()[0], "KILL");
    workers.line("died (signal: 9 (SIGKILL)); it starts again in 1 s").await;
    boss.line("recovery: repeated").await;
    boss.end_within(PATIENCE).await.expect_success();
    workers.end().await.expect_success();
    assert_eq!(&machine.weights(), quiet);
}

#[tokio::test]
async fn workers_of_all_gpus_end_their_step_when_they_are_told_to_end() {
    let Some(machine) = Machine::new(&[]) else { return };
    let run = machine.place.endless_run();
    let arguments = ["train", run.to_str().unwrap(), "--workers", "2", "--port", "0"];
    let mut boss = machine.start("bossman", &arguments);
    let port = port(&mut boss).await;
    let mut workers =
        machine.start("worker", &["--port", &port, "--threads", "1", "--device", "all"]);
    boss.line("step 1/").await;
    workers.signal("TERM");
    for _ in 0..2 {
        workers.line("worker: terminated; left after step").await;
    }
    assert_eq!(workers.end().await.status.code(), Some(143));
}

#[tokio::test]
async fn a_worker_whose_gpu_breaks_names_the_task_and_ends_and_the_run_goes_on() {
    let Some(quiet) = quiet().await else { return };
    let Some(machine) = Machine::new(&[]) else { return };
    // With this schedule the cut is by FLOPs. By measured times, the GPU that breaks could have so
    // little to do that it comes to the end.
    let mut boss = machine.train(
        "microbatches: 4\nschedule: 1f1b\ncheckpoint: {dir: c, every: 20, keep: 2}",
        &["--workers", "2", "--port", "0"],
    );
    let port = port(&mut boss).await;
    let arguments = ["--port", &port, "--threads", "1", "--device", "cuda:0"];
    let broken = [("FAKECUDA_FAIL", "0:10000:illegal-address")];
    let worker = machine.start_with("worker", &arguments, &broken);
    let other = machine.start("worker", &["--port", &port, "--threads", "1", "--device", "cuda:1"]);
    let line = boss.line("workers were lost").await;
    assert!(line.contains("an illegal memory access was encountered"), "{line}");
    assert!(line.contains("its device is broken for this process, so it ends"), "{line}");
    let ended = worker.end().await;
    assert_eq!(ended.status.code(), Some(3));
    let said = ended.errors.join("\n");
    assert!(said.contains("stage ") && said.contains("CUDA error"), "{said}");
    boss.line("recovery: repeated").await;
    boss.end_within(PATIENCE).await.expect_success();
    other.end().await.expect_success();
    assert_eq!(&machine.weights(), quiet);
}

/// NCCL meets a broken GPU before libtorch does. Another worker takes the place of the lost one.
#[tokio::test]
async fn a_worker_whose_gpu_breaks_in_nccl_ends_and_the_run_goes_on() {
    let Some(machine) = Machine::new(&[("BOSSMAN_NCCL", "libnccl.so.2")]) else { return };
    let mut boss = machine.train(
        "microbatches: 4\nschedule: gpipe\nreplicas: 2\ncollective: nccl\ncheckpoint: {dir: c, \
         every: 20, keep: 2}",
        &["--workers", "2", "--port", "0"],
    );
    let port = port(&mut boss).await;
    let arguments = ["--port", &port, "--threads", "1", "--device", "cuda:0"];
    let broken = [("FAKE_NCCL_FAIL", "200:illegal-address")];
    let worker = machine.start_with("worker", &arguments, &broken);
    let other = machine.start("worker", &["--port", &port, "--threads", "1", "--device", "cuda:1"]);
    let line = boss.line("workers were lost").await;
    assert!(line.contains("NCCL says unhandled cuda error"), "{line}");
    assert!(line.contains("an illegal memory access was encountered"), "{line}");
    assert!(line.contains("its device is broken for this process, so it ends"), "{line}");
    assert_eq!(worker.end().await.status.code(), Some(3));
    boss.line("1 of 2 workers remain").await;
    let third = machine.start("worker", &arguments);
    boss.line("recovery: resuming with 2 of 2 workers").await;
    boss.end_within(PATIENCE).await.expect_success();
    for worker in [other, third] {
        worker.end().await.expect_success();
    }
}

/// A tool in `PATH` that lists a GPU with two slices, as `nvidia-smi` does.
fn path_with_slices(machine: &Machine) -> String {
    use std::os::unix::fs::PermissionsExt;
    let tool = machine.place.file("nvidia-smi");
    let list = "GPU 0: NVIDIA A100 (UUID: GPU-a)\n  MIG 3g.20gb Device 0: (UUID: MIG-a1)\n  MIG \
                3g.20gb Device 1: (UUID: MIG-a2)";
    std::fs::write(&tool, format!("#!/bin/sh\ncat <<END\n{list}\nEND\n")).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    format!("{}:{path}", tool.parent().unwrap().display())
}

#[tokio::test]
async fn each_slice_of_a_gpu_has_a_worker() {
    let Some(machine) = Machine::new(&[]) else { return };
    let path = path_with_slices(&machine);
    let run = machine.place.endless_run();
    let arguments = ["train", run.to_str().unwrap(), "--workers", "3", "--port", "0"];
    let local = ["--local", "1", "--threads", "1"];
    let tools = [("PATH", path.as_str())];
    let mut boss = machine.start_with("bossman", &[&arguments[..], &local].concat(), &tools);
    let port = port(&mut boss).await;
    let arguments = ["--port", &port, "--threads", "1", "--device", "all"];
    let workers = machine.start_with("worker", &arguments, &tools);
    for _ in 0..3 {
        // CUDA shows a slice alone.
        assert!(boss.line(" joined from ").await.contains(", cuda:0, "));
    }
    boss.line("step 1/").await;
    let devices = |children: Vec<u32>| {
        let device = |child: u32| {
            let arguments = std::fs::read(format!("/proc/{child}/cmdline")).unwrap();
            let arguments = String::from_utf8(arguments).unwrap();
            let mut arguments =
                arguments.split('\0').skip_while(|argument| *argument != "--device");
            arguments.nth(1).map(String::from)
        };
        let mut devices: Vec<_> = children.into_iter().filter_map(device).collect();
        devices.sort();
        devices
    };
    assert_eq!(devices(boss.children()), ["MIG-a1"]);
    assert_eq!(devices(workers.children()), ["MIG-a1", "MIG-a2"]);
}

#[tokio::test]
async fn replicas_on_unlike_devices_are_refused_unless_fast() {
    let Some(machine) = Machine::new(&[]) else { return };
    let flags = |devices| ["--local", "2", "--threads", "1", "--device", devices];
    let train = |more: &str, devices| {
        machine.train_steps(20, &format!("microbatches: 4\nreplicas: 2{more}"), &flags(devices))
    };
    let refused = train("", "cpu,cuda:0").end_within(PATIENCE).await;
    let said = refused.errors.join("\n");
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("the replicas of stage 0 compute on unlike devices"), "{said}");
    // Workers are numbered as they join.
    for part in [" on cpu", " on cuda fake GPU", "`determinism: fast`"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let ended = train("\ndeterminism: fast", "cpu,cuda:0").end_within(PATIENCE).await;
    let ended = ended.expect_success();
    let said = [ended.output, ended.errors].concat().join("\n");
    let warnings = said.matches("compute on unlike devices").count();
    assert!(warnings == 1 && said.contains("results are inexact"), "{said}");
    // GPUs of one name are alike.
    let ended = train("", "cuda:0,cuda:1").end_within(PATIENCE).await.expect_success();
    assert!(!ended.errors.join("\n").contains("unlike"));
}

/// 4 MiB of parameters, as much of gradients, and twice as much of optimizer state leave no room
/// for copies of parameters and state.
#[tokio::test]
async fn a_pool_turns_a_worker_on_an_unlike_device_away_and_goes_on() {
    let Some(machine) = Machine::new(&[]) else { return };
    let run = machine.place.endless_run();
    let arguments = ["serve", run.to_str().unwrap(), "--workers", "1", "--port", "0"];
    let mut boss = machine.start("bossman", &arguments);
    let port = port(&mut boss).await;
    let worker =
        |device| machine.start("worker", &["--port", &port, "--threads", "1", "--device", device]);
    let mut first = worker("cpu");
    first.line("joined the boss").await;
    let newcomer = worker("cuda:0");
    let refusal = "compute on unlike devices (worker 0 on cpu, worker 1 on cuda fake GPU)";
    boss.line(refusal).await;
    let ended = newcomer.end().await;
    assert_eq!(ended.status.code(), Some(1), "it tries again");
    let said = [ended.output, ended.errors].concat().join("\n");
    assert!(said.contains("`determinism: fast`"), "{said}");
    // The next one on a device of its kind takes part.
    let third = worker("cpu");
    boss.line(": 2 workers").await;
    drop((first, third, boss));
}

#[tokio::test]
async fn a_checkpoint_takes_no_memory_of_the_gpu() {
    let Some(machine) = Machine::new(&[("FAKECUDA_MEMORY", "26214400")]) else { return };
    let place = &machine.place;
    let model =
        "inputs: {x: [batch, 1024]}\nlayers:\n- Linear: {in_features: 1024, out_features: 1024}\n";
    std::fs::write(place.file("model.yaml"), model).unwrap();
    let numbers = (tch::Tensor::arange(8 * 1024, (tch::Kind::Float, tch::Device::Cpu)) * 0.1).sin();
    let numbers = numbers.reshape([8, 1024]);
    let data = place.file("data.safetensors");
    tch::Tensor::write_safetensors(&[("x", &numbers), ("target", &numbers)], &data).unwrap();
    let run = "model: model.yaml\ndata: {train: data.safetensors}\nloss: MSELoss\noptimizer: \
               {AdamW: {lr: 0.001}}\nbatch_size: 8\nsteps: 4\ncheckpoint: {dir: c, every: 1}\n";
    std::fs::write(place.file("run.yaml"), run).unwrap();
    let run = place.file("run.yaml");
    let boss = machine
        .start("bossman", &["train", run.to_str().unwrap(), "--local", "1", "--threads", "1"]);
    let ended = boss.end_within(PATIENCE).await.expect_success();
    let said = [ended.output, ended.errors].concat().join("\n");
    assert!(said.contains("checkpoint of step 4 written"), "{said}");
    assert!(!said.contains("out of memory"), "{said}");
}

#[tokio::test]
async fn a_run_that_is_out_of_memory_later_resumes_with_its_workers() {
    let Some(quiet) = quiet().await else { return };
    let Some(machine) = Machine::new(&[]) else { return };
    let mut boss = machine.train(
        "microbatches: 4\ncheckpoint: {dir: c, every: 20, keep: 2}",
        &["--workers", "1", "--port", "0"],
    );
    let port = port(&mut boss).await;
    let arguments = ["--port", &port, "--threads", "1", "--device", "cuda:0"];
    let full = [("FAKECUDA_FAIL", "0:20000:out-of-memory")];
    let worker = machine.start_with("worker", &arguments, &full);
    let line = boss.line("out of memory after ").await;
    assert!(line.contains("worker 0"), "{line}");
    assert!(line.contains("the run goes on with `recompute: full`"), "{line}");
    boss.line("recovery: resuming with 1 of 1 workers from the checkpoint of step").await;
    boss.line("recovery: repeated").await;
    boss.end_within(PATIENCE).await.expect_success();
    worker.end().await.expect_success();
    assert_eq!(&machine.weights(), quiet);
}
