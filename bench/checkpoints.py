#!/usr/bin/env python3
"""K: what checkpoints cost a run that makes them.

    bossman data fetch sotu --to examples/gpt-sotu/data
    bench/checkpoints.py

Trains the small GPT on two local workers, alternately without and with a checkpoint every 20 steps, and compares the time of
a run from its first step to its last.
"""

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path

from figures import ratio, spread
from pool import release
from recovery import run_file


def seconds(place, run, steps):
    """From the end of the first step to the end of the run, the last checkpoint written."""
    train = [release("bossman"), "train", run, "--local", "2", "--threads", "1"]
    boss = subprocess.Popen(train, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    began = None
    for line in boss.stdout:
        if began is None and re.match(r"step 1/", line):
            began = time.monotonic()
    if boss.wait() != 0 or began is None:
        raise SystemExit(f"bench/checkpoints.py: a run of {steps} steps in {place} ended with {boss.returncode}")
    return time.monotonic() - began


def main():
    """The pairs, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    asked = parser.parse_args()
    without, having = [], []
    for number in range(asked.pairs):
        for every, times in ((0, without), (asked.every, having)):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                times.append(seconds(place, run_file(place, asked.steps, every), asked.steps))
        print(f"pair {number + 1}: {without[-1]:.2f} s without, {having[-1]:.2f} s with", flush=True)
    low, high = spread([b / a for a, b in zip(without, having, strict=True)])
    print(f"with a checkpoint every {asked.every} steps: {ratio(having, without):.3f} of the time without ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
