#!/usr/bin/env python3
"""R: workers of a run are killed and stopped again and again, and the weights are those of a quiet
run, to the bit.

    bossman data fetch sotu --to examples/gpt-sotu/data
    bench/recovery.py --kills 100
    bench/recovery.py --example attention-is-all-you-need --kills 10 --steps 120

Trains the small GPT, or another example's `small.yaml`, twice with the release programs on two
local workers: left alone, and with a worker that is killed (SIGKILL) or, every fifth time, only
falls silent (SIGSTOP) at a random moment, again and again. Then all weights are compared. It
prints the time until training reached its earlier step, with its parts, and ends with an error if
a bit differs."""

import argparse
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import faults_page
import pages
import result_files
from pool import compared, release, weights
from programs import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
NEEDED = {"gpt-sotu": "sotu.txt", "attention-is-all-you-need": "tokenizer.json"}
PATIENCE = 120  # seconds until a line that must come
DONE = re.compile(
    r"recovery: repeated (\d+) steps? in ([\d.]+) s: "
    r"([\d.]+) s to rejoin, ([\d.]+) s to restore, ([\d.]+) s"
)


def run_file(place, steps, every, name="gpt-sotu"):
    """An example's small run with `steps` steps, and checkpoints."""
    example = EXAMPLES / name
    text = (example / "small.yaml").read_text(encoding="utf-8")
    text = text.replace("data/", f"{example}/data/").replace("model: ", f"model: {example}/")
    text = re.sub(r"(?m)^(steps|epochs): .*$", f"steps: {steps}", text)
    path = place / f"every-{every}.yaml"
    path.write_text(
        text + (f"checkpoint: {{dir: checkpoints, every: {every}, keep: 2}}\n" if every else ""),
        encoding="utf-8",
    )
    return path


class Run:
    """A boss with two workers, and what it says."""

    def __init__(self, run, save):
        train = [release("bossman"), "train", run, "--local", "2", "--threads", "1", "--save", save]
        self.boss = subprocess.Popen(
            train,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines, self.last = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Every line with when it came; nothing at the end."""
        for line in self.boss.stdout:
            self.last = [*self.last[-9:], line.rstrip()]
            self.lines.put((time.monotonic(), line.rstrip()))
        self.lines.put((time.monotonic(), None))

    def line(self, text):
        """The next line with this text, and when it came; None if the run ends before."""
        while True:
            when, line = self.lines.get(timeout=PATIENCE)
            if line is None:
                # Asking again gives the same answer.
                self.lines.put((when, line))
                return when, line
            if text in line:
                return when, line

    def workers(self):
        """The numbers of its workers' processes."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.boss.pid)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return [int(word) for word in listed.stdout.split()]

    def lose_one(self, how, chosen):
        """Has a worker killed or stopped: the parts of the time until training reached its earlier
        step."""
        workers = self.workers()
        if len(workers) < 2:
            return None
        began = time.monotonic()
        os.kill(chosen.choice(workers), how)
        noticed, line = self.line("workers were lost")
        _, done = self.line("recovery: repeated") if line else (0, None)
        if done is None:
            return None
        _, _, *parts = DONE.search(done).groups()
        return dict(zip(faults_page.PARTS, [noticed - began, *map(float, parts)]))

    def end(self):
        """Waits for the end."""
        while self.line("\0")[1] is not None:
            pass
        if self.boss.wait() != 0:
            sys.exit(
                "\n".join(
                    [*self.last, f"bench/recovery.py: the run ended with {self.boss.returncode}"]
                )
            )


def main():
    """Both runs, and the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--example", choices=sorted(NEEDED), default="gpt-sotu")
    result_files.add_keep(parser)
    asked = parser.parse_args()
    found = {**result_files.header(), "command": result_files.command(), "example": asked.example}
    found.update({"steps": asked.steps, "every": asked.every, "losses": []})
    needed = EXAMPLES / asked.example / "data" / NEEDED[asked.example]
    if not needed.exists():
        sys.exit(
            f"bench/recovery.py: there is no {needed} yet: see examples/{asked.example}/README.md"
        )
    with tempfile.TemporaryDirectory() as folder:
        place, chosen = Path(folder), random.Random(asked.seed)
        quiet, began = (
            Run(run_file(place, asked.steps, 0, asked.example), place / "quiet.safetensors"),
            time.monotonic(),
        )
        quiet.end()
        found["quiet_seconds"] = time.monotonic() - began
        print(f"quiet: {asked.steps} steps in {found['quiet_seconds']:.0f} s", flush=True)
        run, began = (
            Run(
                run_file(place, asked.steps, asked.every, asked.example), place / "lost.safetensors"
            ),
            time.monotonic(),
        )
        run.line("checkpoint of step")
        for kill in range(asked.kills):
            time.sleep(chosen.uniform(0.5, 2.0))
            how = signal.SIGSTOP if kill % 5 == 4 else signal.SIGKILL
            parts = run.lose_one(how, chosen)
            if parts is None:
                break
            found["losses"].append({"signal": how.name, **parts})
        run.end()
        found["seconds"] = time.monotonic() - began
        expected, left = weights(place / "quiet.safetensors"), weights(place / "lost.safetensors")
        different = [name for name in expected if expected[name] != left.get(name)]
        found.update(compared(expected, different))
        print("\n\n".join(faults_page.losses(found)))
        if different or expected.keys() != left.keys():
            sys.exit(f"bench/recovery.py: other weights than the quiet run: {', '.join(different)}")
        if asked.keep:
            pages.keep(result_files.name("R", asked.example), found)


if __name__ == "__main__":
    main()
