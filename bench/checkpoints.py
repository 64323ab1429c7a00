#!/usr/bin/env python3
"""K: what checkpoints, or copies at neighbours, cost a run that makes them.

    bossman data fetch sotu --to examples/gpt-sotu/data
    bench/checkpoints.py
    bench/checkpoints.py --neighbour --every 10
    bench/checkpoints.py --neighbour --every 1 --also 'replicas: 2'

Trains the small GPT on two workers, alternately without and with a checkpoint (or a copy at a
neighbour) every 20 steps, and compares the time of a run from its first step to its last."""

import argparse
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import faults_page
import pages
import result_files
from pool import release
from recovery import run_file


def seconds(place, run, steps):
    """From the end of the first step to the end of the run, the last checkpoint written."""
    own = dict(
        os.environ,
        BOSSMAN_CONFIG_DIR=str(place / "config"),
        BOSSMAN_RUNS_DIR=str(place / "runs"),
    )
    train = [release("bossman"), "train", run, "--workers", "2", "--port", "0"]
    boss = subprocess.Popen(
        train,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=own,
    )
    began, workers = None, []
    for line in boss.stdout:
        if not workers and (port := re.search(r"MODEL_PORT=(\d+)", line)):
            command = [release("worker"), "--port", port[1], "--device", "cpu", "--threads", "1"]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": own}
            workers = [subprocess.Popen(command, **quiet) for _ in range(2)]
        if began is None and re.match(r"step 1/", line):
            began = time.monotonic()
    took = time.monotonic() - (began or 0)
    for worker in workers:
        worker.wait()
    if boss.wait() != 0 or began is None:
        raise SystemExit(
            f"bench/checkpoints.py: a run of {steps} steps in {place} ended with {boss.returncode}"
        )
    return took


def with_lines(run, lines):
    """The same run with more in its file."""
    with run.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return run


def main():
    """The pairs, and what they come to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between them")
    parser.add_argument(
        "--neighbour", action="store_true", help="copies at neighbours instead of checkpoints"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="LINE",
        help="for both run files, as `replicas: 2`",
    )
    result_files.add_keep(parser)
    asked = parser.parse_args()
    what = "neighbour" if asked.neighbour else "checkpoint"
    found = {**result_files.header(), "command": result_files.command(), "steps": asked.steps}
    found.update({"what": what, "every": asked.every, "also": asked.also, "pairs": []})
    for number in range(asked.pairs):
        pair = {}
        for every, side in ((0, "without"), (asked.every, "with")):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                run = run_file(place, asked.steps, 0 if asked.neighbour else every)
                copies = (
                    [f"redundancy: {{neighbour: {every}}}"] if asked.neighbour and every else []
                )
                run = with_lines(run, [*asked.also, *copies])
                pair[side] = seconds(place, run, asked.steps)
        print(
            f"pair {number + 1}: {pair['without']:.2f} s without, {pair['with']:.2f} s with",
            flush=True,
        )
        found["pairs"].append(pair)
    print("\n".join(faults_page.cost(found)))
    if asked.keep:
        pages.keep(result_files.name("K", what, "every", str(asked.every), *asked.also), found)


if __name__ == "__main__":
    main()
