#!/usr/bin/env python3
"""Runs all Rust tests as `cargo test --workspace` does, but several test programs at once.

    tools/run_tests.py               build, then run all test programs and the docs' examples
    tools/run_tests.py --lanes 4     four at once (default: the number of cores)

`cargo test` runs one program after the other. Programs that wait for a timeout leave cores idle.
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

CHECKOUT = Path(__file__).resolve().parent.parent
# The longest programs start first, so that no lane is left with a long one at the end.
LONGEST = ["law_1", "simulator", "recovery", "compressed", "sharding", "checkpoints", "pool"]
TIME_LIMIT = 20 * 60
RESULT = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed", re.MULTILINE)


def build():
    """Builds the test programs. Returns each program's name, file and package folder."""
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
            found.append((message["target"]["name"], message["executable"], folder))
    return sorted(found, key=lambda program: rank(program[0]))


def rank(name):
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def jobs(programs):
    """Returns what is to run: a title, a command and a folder each."""
    examples = ("documentation examples", ["cargo", "test", "--workspace", "--doc"], CHECKOUT)
    tests = [(name, [executable], folder) for name, executable, folder in programs]
    first = sum(rank(name) < len(LONGEST) for name, _, _ in programs)
    return tests[:first] + [examples] + tests[first:]


def run(job):
    """Runs one program. Returns a line about it, its output, the numbers of tests passed and
    failed, and whether it succeeded."""
    title, command, folder = job
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
    counts = [(int(passed), int(failed)) for passed, failed in RESULT.findall(output)]
    passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
    seconds = time.monotonic() - began
    verdict = "passed" if succeeded else "FAILED"
    line = f"{title:28} {verdict}  {passed:5} passed, {failed} failed  {seconds:6.1f} s"
    return line, output, passed, failed, succeeded


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
                print(result[0], flush=True)
                if not result[4]:
                    print(result[1], flush=True)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, failed = sum(r[2] for r in results), sum(r[3] for r in results)
    # A program that ends without a result, for example by a signal, counts as one failure.
    failed += sum(1 for r in results if not r[4] and r[3] == 0)
    print(f"\n{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
