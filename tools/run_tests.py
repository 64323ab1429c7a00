#!/usr/bin/env python3
"""Runs all Rust tests as `cargo test --workspace` does, but several at once.

    tools/run_tests.py               build, then run all test programs and the docs' examples
    tools/run_tests.py --lanes 4     four at once (default: the number of cores)

`cargo test` runs one program after the other. Programs that wait for a timeout leave cores idle.
Each module of a large program runs in a process of its own. The command fails if the number of
tests that ran is not the number that the programs list.
"""

import argparse
import json
import os
import queue
import re
import subprocess
import sys
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
    "tests sharding",
    "tests checkpoints",
    "tests law_1_steps",
    "tests oracle",
    "tests pool",
]
TIME_LIMIT = 20 * 60
RESULT = re.compile(
    r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE
)
LISTED = re.compile(r"^(.+): test$", re.MULTILINE)


class Job(NamedTuple):
    """A command to run, and the number of its tests, or None if it lists none."""

    title: str
    command: list
    folder: Path
    tests: Optional[int] = None


class Result(NamedTuple):
    """What a job did, and a line and the output about it."""

    line: str
    output: str
    passed: int
    failed: int
    succeeded: bool


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


def jobs(programs):
    """Returns all jobs, the longest first."""
    examples = Job("documentation examples", ["cargo", "test", "--workspace", "--doc"], CHECKOUT)
    tests = [job for program in programs for job in jobs_of(program, tests_of(*program[2:]))]
    tests.sort(key=lambda job: rank(job.title))
    first = sum(rank(job.title) < len(LONGEST) for job in tests)
    return tests[:first] + [examples] + tests[first:]


def verdict(job, succeeded, output):
    """Returns the numbers of tests passed and failed, and what is wrong, or None."""
    counts = [tuple(map(int, found)) for found in RESULT.findall(output)]
    passed, failed, ignored = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    ran = passed + failed + ignored
    problem = None if succeeded else "FAILED"
    if succeeded and job.tests is not None and ran != job.tests:
        problem = f"FAILED: {ran} of {job.tests} tests ran"
    return passed, failed, problem


def run(job):
    """Runs one job."""
    title, command, folder, _ = job
    began = time.monotonic()
    # Cargo sets these for the programs that it runs.
    environment = dict(
        os.environ, CARGO=os.environ.get("CARGO", "cargo"), CARGO_MANIFEST_DIR=str(folder)
    )
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=TIME_LIMIT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        output, succeeded = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode(errors="replace")
        output += f"\nstopped after {TIME_LIMIT} s\n"
        succeeded = False
    passed, failed, problem = verdict(job, succeeded, output)
    seconds = time.monotonic() - began
    line = f"{title:28} {problem or 'passed'}  {passed:5} passed, {failed} failed  {seconds:6.1f} s"
    return Result(line, output, passed, failed, problem is None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 2)
    lanes = parser.parse_args().lanes
    waiting, results, lock = queue.SimpleQueue(), [], threading.Lock()
    for job in jobs(build()):
        waiting.put(job)

    def lane():
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            result = run(job)
            with lock:
                results.append(result)
                print(result.line, flush=True)
                if not result.succeeded:
                    print(result.output, flush=True)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    # A job that ends without a result, for example by a signal, counts as one failure.
    failed += sum(1 for r in results if not r.succeeded and r.failed == 0)
    print(f"\n{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
