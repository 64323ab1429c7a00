#!/usr/bin/env python3
"""Runs all Rust tests as `cargo test --workspace` does, but several at once.

    tools/run_tests.py               build, then run all test programs and the docs' examples
    tools/run_tests.py --lanes 4     four at once (default: one more than there are cores)
    tools/run_tests.py --times       also list the slowest tests
    tools/run_tests.py --gpu-seeds 60    only the tests on the fake GPU, with the seeds 1 to 60
    tools/run_tests.py --gpu-seeds 7-9 --gpu-cuts 2    a part of these: three seeds, two cuts
    tools/run_tests.py --real-gpu    only these, on the GPUs of this machine

`cargo test` runs one program after the other. Programs that wait for a timeout leave cores idle.
Each module of a large program runs in a process of its own. The command fails if the number of
tests that ran is not the number that the programs list.

Some tests run twice: on the CPU, and on the fake GPU of crates/testkit, with one seed and samples
(tests/src/sample.rs): law 1 has one cut into three stages and one into four.
Their number and the sums of the times and processor times of their jobs are printed. Jobs run side
by side, so they prolong the whole by less.
"""

import argparse
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple, Optional

CHECKOUT = Path(__file__).resolve().parent.parent
# The packages whose program `it` is large, so that each of its modules is a job.
SPLIT = ["tests"]
# The longest jobs start first, so that no lane is left with a long one at the end.
LONGEST = [
    "tests law_1",
    "simulator it",
    "tests recovery",
    "tests compressed",
    "tests gpu",
    "tests growing",
    "tests huggingface",
    "gpu law_1",
    "tests checkpoints",
    "tests sharding",
    "tests replicas",
    "tests law_1_steps",
    "tests verify",
    "tests oracle",
    "gpu checkpoints",
    "gpu compressed",
    "gpu recovery",
    "gpu collective",
    "bossman",
]
TIME_LIMIT = 20 * 60
# Seconds between two looks at whether a job has ended.
LOOK_EVERY = 0.02
# The tests that run on the fake GPU, too: for each package and program, the beginnings of their
# names.
ON_FAKE_GPU = {}
ON_FAKE_GPU["worker", "worker"] = [
    "compute::device_tensor::tests::a_task_is_complete_once_the_device_has_done_its_work",
    "compute::measure::tests::the_times_of_a_layer_are_those_of_its_work",
    "engine::tests::precision::layers_compute_what_they_do_under_autocast",
    "engine::tests::pytorch::every_layer_computes_what_pytorch_does",
    "engine::tests::pytorch::in_halves_and_computed_again_every_layer_has_the_same_bits",
]
ON_FAKE_GPU["tests", "it"] = [
    "by_hand::",
    "checkpoints::a_boss_that_is_killed_again_and_again_leaves_no_trace_in_the_result",
    "checkpoints::a_run_goes_on_with_other_replicas_and_shards",
    "collective::the_sums_are_those_of_one_process",
    "collective::two_replicas_come_to_the_same_as_with_frames",
    "compressed::a_step_that_fails_leaves_no_trace",
    "compressed::in_processes",
    "digest::",
    "guards::a_step_with_broken_numbers_names_where_they_began_and_changes_nothing",
    "law_1::in_memory::",
    "law_1::in_processes::narrow_residual",
    "law_1::over_sockets::narrow_residual",
    "law_1_steps::with_a_tied_weight_clipping_and_accumulated_steps_of_changing_size",
    "losses::",
    "pool::",
    "precision::in_",
    "recovery::a_spare_worker_replaces_a_lost_one",
    "recovery_by_hand::calls_go_on_where_a_local_worker_ends",
    "replicas::in_processes::narrow_residual",
    "sharding::in_processes",
    "using::generation::text_is_what_the_whole_model_would_say_token_by_token",
]
# Tests in which replicas of one stage sum with NCCL, which refuses two ranks on one GPU, and the
# number of these replicas.
WITH_NCCL = {
    "collective::the_sums_are_those_of_one_process": 3,
    "collective::two_replicas_come_to_the_same_as_with_frames": 2,
}
# The cuts into three and into four stages that law 1 has on a GPU; other tests play a sample, too
# (tests/src/sample.rs). With `--gpu-seeds` they play all.
FEW_CUTS = 1
NUMBERS = {2: "two", 3: "three"}
FAKE_GPU = CHECKOUT / "target" / "debug" / "fake_gpu"
FAKE_GPU_ENVIRONMENT = {
    "BOSSMAN_TEST_DEVICE": "cuda",
    # One for each worker, because replicas that sum with NCCL cannot share one.
    "FAKECUDA_DEVICES": "8",
    # So that dropout can be compared with the CPU's.
    "FAKECUDA_RANDOM_AS_CPU": "1",
    # NCCL sums in another order than frames do. Tests of it name a library of their own.
    "BOSSMAN_NCCL": "/nowhere",
}
# The exit code of `fake_gpu` on a machine that cannot have it.
CANNOT_HAVE = 77
RESULT = re.compile(
    r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE
)
LISTED = re.compile(r"^(.+): test$", re.MULTILINE)
# libtest tells the time of each test only if it takes itself for a nightly one.
TIMED_BY_LIBTEST = ["-Z", "unstable-options", "--report-time"]
NIGHTLY = {"RUSTC_BOOTSTRAP": "1"}
TIME = re.compile(r"^test (.+?) \.\.\. .*<([\d.]+)s>$", re.MULTILINE)
SLOWEST = 10


class Job(NamedTuple):
    """A command to run, and the number of its tests, or None if it lists none."""

    title: str
    command: list
    folder: Path
    tests: Optional[int] = None
    environment: dict = {}


class Result(NamedTuple):
    """What a job did, and a line and the output about it."""

    line: str
    output: str
    passed: int
    failed: int
    succeeded: bool
    seconds: float = 0.0
    # Seconds of processors, with those of the programs that the job started and waited for.
    worked: float = 0.0
    on_fake_gpu: bool = False


def build():
    """Builds the test programs. Returns each program's package, name, file and package folder."""
    command = [
        "cargo",
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]
    built = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {"reason": "text"}
        is_artifact = message["reason"] == "compiler-artifact"
        if is_artifact and message["profile"]["test"] and message["executable"]:
            folder = Path(message["manifest_path"]).parent
            found.append((folder.name, message["target"]["name"], message["executable"], folder))
    return found


def tests_of(executable, folder):
    """Lists the tests of a program, by their full names."""
    listed = subprocess.run(
        [executable, "--list"], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    return LISTED.findall(listed.stdout)


def rank(title):
    return LONGEST.index(title) if title in LONGEST else len(LONGEST)


def by_module(tests):
    """Groups tests by their top-level module. Tests outside modules are a group, named ""."""
    groups = {}
    for test in tests:
        groups.setdefault(test.partition("::")[0] if "::" in test else "", []).append(test)
    return groups


def jobs_of(program, tests):
    """Returns the jobs that run each of these tests of a program once."""
    package, name, executable, folder = program
    if package not in SPLIT or name != "it":
        title = name if name.replace("_", "-") == package else f"{package} {name}"
        return [Job(title, [executable], folder, len(tests))]
    # Full names, because `pool::` alone would also select the tests of a module `new_pool`.
    return [
        Job(f"{package} {module}".strip(), [executable, "--exact", *group], folder, len(group))
        for module, group in by_module(tests).items()
    ]


def gpu_tests(package, name, tests):
    """Returns those tests of a program that run on a GPU."""
    chosen = tuple(ON_FAKE_GPU.get((package, name), []))
    return [test for test in tests if test.startswith(chosen)]


def gpu_jobs(program, tests, environment):
    """Returns the jobs that run some of these tests on the fake GPU."""
    package, name, executable, folder = program
    chosen = gpu_tests(package, name, tests)
    if not chosen:
        return []
    problem = why_no_fake_gpu()
    if problem is not None:
        print(f"{len(chosen)} of {len(chosen)} GPU tests skipped: {problem}", flush=True)
        if os.environ.get("BOSSMAN_NEEDS_FAKE_GPU"):
            sys.exit(1)
        return []
    return [
        Job(
            f"gpu {package} {module}" if package not in SPLIT else f"gpu {module}",
            # One at a time: sums of two tests on the same GPUs would wait for each other.
            [str(FAKE_GPU), executable, "--test-threads", "1", "--exact", *group],
            folder,
            len(group),
            {**FAKE_GPU_ENVIRONMENT, **environment},
        )
        for module, group in by_module(chosen).items()
    ]


def cuts_environment(cuts):
    """The variables with which law 1 has this number of cuts; all for None."""
    return {} if cuts is None else {"BOSSMAN_LAW_1_CUTS": str(cuts)}


def why_no_fake_gpu():
    """Builds the fake GPU. Returns the reason if this machine cannot have it, else None."""
    built = subprocess.run([FAKE_GPU, "true"], stderr=subprocess.PIPE, text=True)
    if built.returncode == CANNOT_HAVE:
        return built.stderr.strip()
    if built.returncode != 0:
        sys.exit(built.stderr)
    return None


def jobs(programs, cuts):
    """Returns all jobs, the longest first, with this number of cuts on the fake GPU."""
    examples = Job("documentation examples", ["cargo", "test", "--workspace", "--doc"], CHECKOUT)
    tests = []
    for program in programs:
        listed = tests_of(*program[2:])
        tests += jobs_of(program, listed)
        tests += gpu_jobs(program, listed, cuts_environment(cuts))
    tests.sort(key=lambda job: rank(job.title))
    first = sum(rank(job.title) < len(LONGEST) for job in tests)
    return tests[:first] + [examples] + tests[first:]


def count_gpus():
    """Returns the number of this machine's GPUs, which is 0 without `nvidia-smi`."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return 0
    # A line for each GPU, and indented ones for its slices.
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def without_lacking_gpus(tests, gpus):
    """Returns the tests for which this number of GPUs is enough, and tells the number of others."""
    for needed, word in NUMBERS.items():
        skipped = [test for test in tests if WITH_NCCL.get(test) == needed]
        if skipped and gpus < needed:
            counted = f"{len(skipped)} of {len(tests)} GPU tests skipped"
            print(f"{counted}: NCCL needs {word} GPUs", flush=True)
    return [test for test in tests if gpus >= WITH_NCCL.get(test, 0)]


def real_gpu_jobs(programs, cuts):
    """Returns the jobs that run the tests of the fake GPU on real GPUs with this number of cuts."""
    found = []
    gpus = count_gpus()
    for package, name, executable, folder in programs:
        chosen = gpu_tests(package, name, tests_of(executable, folder))
        chosen = without_lacking_gpus(chosen, gpus)
        for module, group in by_module(chosen).items():
            command = [executable, "--test-threads", "1", "--exact", *group]
            device = {"BOSSMAN_TEST_DEVICE": "cuda", **cuts_environment(cuts)}
            found.append(Job(f"gpu {module}", command, folder, len(group), device))
    return found


def seeds_of(text):
    """Reads `60` as the seeds 1 to 60, and `7-9` as 7, 8 and 9."""
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or seeds[0] < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is neither a number of seeds nor FIRST-LAST")
    return seeds


def at_least_one(text):
    """Reads a number of cuts."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of at least 1")
    return int(text)


def seed_jobs(programs, seeds, cuts):
    """Returns the jobs that run each test on the fake GPU with these seeds, and this number of
    cuts, or all for None. All jobs of a seed come before those of the next."""
    once = [
        job
        for program in programs
        for job in gpu_jobs(program, tests_of(*program[2:]), cuts_environment(cuts))
    ]
    return [
        job._replace(
            title=f"{job.title} seed {seed}",
            environment={**job.environment, "FAKECUDA_SEED": str(seed)},
        )
        for seed in seeds
        for job in once
    ]


def is_on_fake_gpu(job):
    return job.command[0] == str(FAKE_GPU)


def fake_gpu_line(results):
    """Returns the line about the tests on the fake GPU, or None if there were none."""
    on_it = [result for result in results if result.on_fake_gpu]
    if not on_it:
        return None
    tests = sum(result.passed + result.failed for result in on_it)
    seconds, worked = (sum(times) for times in zip(*((r.seconds, r.worked) for r in on_it)))
    return f"{tests} tests on the fake GPU in {seconds:.0f} s, {worked:.0f} s of processor time"


def timed(job):
    """The job with the time of each test in its output, if it is a test program."""
    if job.tests is None:
        return job
    environment = {**job.environment, **NIGHTLY}
    return job._replace(command=[*job.command, *TIMED_BY_LIBTEST], environment=environment)


def slowest_lines(outputs):
    """Returns a line for each of the slowest tests in the outputs of jobs, by their titles."""
    times = [
        (float(seconds), f"{title}: {test}")
        for title, output in outputs
        for test, seconds in TIME.findall(output)
    ]
    return [f"{seconds:6.1f} s  {test}" for seconds, test in sorted(times, reverse=True)[:SLOWEST]]


def repeating(job):
    """Returns the command of a shell that repeats a job."""
    named = {"CARGO_MANIFEST_DIR": str(job.folder), **job.environment}
    variables = [f"{name}={value}" for name, value in named.items()]
    command = ["env", *variables, *(str(word) for word in job.command)]
    return f"cd {shlex.quote(str(job.folder))} && {shlex.join(command)}"


def verdict(job, succeeded, output):
    """Returns the numbers of tests passed and failed, and what is wrong, or None."""
    counts = [tuple(map(int, found)) for found in RESULT.findall(output)]
    passed, failed, ignored = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    ran = passed + failed + ignored
    problem = None if succeeded else "FAILED"
    if succeeded and job.tests is not None and ran != job.tests:
        problem = f"FAILED: {ran} of {job.tests} tests ran"
    return passed, failed, problem


def stopped(job):
    """Returns the end of the output of a job that took too long."""
    seed = job.environment.get("FAKECUDA_SEED")
    if seed is None and is_on_fake_gpu(job):
        seed = os.environ.get("FAKECUDA_SEED", "1")
    with_seed = "" if seed is None else f" with FAKECUDA_SEED={seed}"
    return f"\nstopped after {TIME_LIMIT} s{with_seed}; repeat it with\n{repeating(job)}\n"


def end_of(process, deadline):
    """Waits for a program. Returns whether it succeeded, or None if it had to be stopped, and the
    seconds of its processor time with those of the programs that it waited for.
    """
    was_stopped, options = False, os.WNOHANG
    while True:
        # Not `Popen.wait`, which forgets the processor time.
        ended, status, used = os.wait4(process.pid, options)
        if ended:
            process.returncode = status
            succeeded = None if was_stopped else status == 0
            return succeeded, used.ru_utime + used.ru_stime
        if time.monotonic() >= deadline:
            os.kill(process.pid, signal.SIGKILL)
            was_stopped, options = True, 0
        time.sleep(LOOK_EVERY)


def run(job):
    """Runs one job."""
    title, command, folder, _, environment = job
    began = time.monotonic()
    # Cargo sets these for the programs that it runs.
    environment = {
        **os.environ,
        "CARGO": os.environ.get("CARGO", "cargo"),
        "CARGO_MANIFEST_DIR": str(folder),
        # Threads of OpenMP that wait for each other leave the core to other tests.
        "OMP_WAIT_POLICY": "passive",
        # Each of some 1,500 programs registers all operators of libtorch at its start. With huge
        # pages that takes a sixth less of a processor.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **environment,
    }
    # A file, and no pipe: a program that a job left behind would keep a pipe open.
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        succeeded, worked = end_of(process, began + TIME_LIMIT)
        # Without moving the place at which such a program writes.
        output = os.pread(out.fileno(), os.fstat(out.fileno()).st_size, 0).decode(errors="replace")
    if succeeded is None:
        output += stopped(job)
    passed, failed, problem = verdict(job, bool(succeeded), output)
    seconds = time.monotonic() - began
    line = (
        f"{title:28} {problem or 'passed'}  {passed:5} passed, {failed} failed  {seconds:6.1f} s, "
        f"{worked:.1f} s of processor time"
    )
    on_fake_gpu = is_on_fake_gpu(job)
    return Result(line, output, passed, failed, problem is None, seconds, worked, on_fake_gpu)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # One more, because many tests wait for a timeout.
    parser.add_argument("--lanes", type=int, default=(os.cpu_count() or 2) + 1)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--gpu-seeds", type=seeds_of, metavar="N|FIRST-LAST")
    parser.add_argument(
        "--gpu-cuts",
        type=at_least_one,
        metavar="N",
        help=f"cuts of law 1 on a GPU (default: all with --gpu-seeds, else {FEW_CUTS})",
    )
    parser.add_argument("--real-gpu", action="store_true")
    options = parser.parse_args()
    few = options.gpu_cuts or FEW_CUTS
    waiting, results, outputs, lock = queue.SimpleQueue(), [], [], threading.Lock()
    programs = build()
    if options.real_gpu:
        chosen = real_gpu_jobs(programs, few)
    elif options.gpu_seeds is not None:
        chosen = seed_jobs(programs, options.gpu_seeds, options.gpu_cuts)
    else:
        chosen = jobs(programs, few)
    for job in chosen:
        waiting.put(timed(job) if options.times else job)

    def lane():
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            result = run(job)
            with lock:
                results.append(result)
                outputs.append((job.title, result.output))
                print(result.line, flush=True)
                if not result.succeeded:
                    print(result.output, flush=True)

    began = time.monotonic()
    threads = [threading.Thread(target=lane) for _ in range(options.lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    # A job that ends without a result, for example by a signal, counts as one failure.
    failed += sum(1 for r in results if not r.succeeded and r.failed == 0)
    print()
    for line in slowest_lines(outputs):
        print(line)
    on_fake_gpu = fake_gpu_line(results)
    if on_fake_gpu is not None:
        print(on_fake_gpu)
    seconds, worked = time.monotonic() - began, sum(result.worked for result in results)
    print(f"{seconds:.0f} s with {options.lanes} lanes, {worked:.0f} s of processor time")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
