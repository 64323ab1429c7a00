#!/usr/bin/env python3
"""J: workers join and leave a run all the time, and the weights are those of a quiet run, to the
bit.

    bench/pool.py --steps 12000

Trains examples/digits twice with the release programs: alone with one worker, and as `bossman
serve` while every five seconds a worker joins, is told to leave (SIGTERM), or is killed (SIGKILL),
up to four at a time. Then all weights are compared. It prints the events to standard output, and
ends with an error if a step was lost or a bit differs."""

import argparse
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import faults_page
import pages
import result_files
from programs import CHECKOUT, profile, target

sys.path.insert(0, str(CHECKOUT / "tools"))
from tensor_file import read_bytes as weights

MOST = 4
# Below those that systems give to programs that ask for any.
OWN_PORTS = (20000, 30000)


def release(name):
    """One of our programs, as `make build` makes it."""
    return target() / profile() / name


def run_file(place, steps):
    """The digits with `steps` steps, in a folder of their own."""
    digits = CHECKOUT / "examples" / "digits"
    text = f"""model: {digits / "digits.yaml"}
data: {{train: {digits / "digits-train.csv.gz"}}}
loss: CrossEntropyLoss
optimizer: {{Adam: {{lr: 1e-3}}}}
batch_size: 64
microbatches: 8
steps: {steps}
seed: 0
replicas: 1
"""
    path = place / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def compared(expected, different):
    """The number of tensors of the quiet run, and of those that another run has, too."""
    return {"tensors": len(expected), "equal": len(expected) - len(different)}


def free_port():
    """A UDP port that nobody has, and that no program is given that asks for any: a boss that is
    started again needs it again."""
    while True:
        port = random.randrange(*OWN_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return str(port)


class Pool:
    """A boss that serves, and workers that come and go."""

    def __init__(self, run, save, environment, seed):
        self.environment, self.port, self.random = environment, free_port(), random.Random(seed)
        # One from the first step on: the boss reports the number of workers only if it changes.
        self.working, self.unnoticed = 1, 0
        self.began, self.workers, self.counts = (
            time.monotonic(),
            [],
            {"joins": 0, "SIGTERM": 0, "SIGKILL": 0},
        )
        self.boss = subprocess.Popen(
            [
                release("bossman"),
                "serve",
                run,
                "--workers",
                "1",
                "--port",
                self.port,
                "--save",
                save,
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self.repeat, daemon=True).start()

    def say(self, text):
        """A line with the time."""
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def repeat(self):
        """The output of the boss."""
        for line in self.boss.stderr:
            self.say(line.rstrip())
            told = re.search(r"step \d+: (\d+) workers", line)
            self.working = int(told[1]) if told else self.working
            if re.search(r"worker \d+ left", line):
                self.unnoticed = max(0, self.unnoticed - 1)

    def join(self):
        """A worker comes."""
        command = [release("worker"), "--port", self.port, "--device", "cpu", "--threads", "1"]
        self.workers.append(
            subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
        )
        self.counts["joins"] += 1

    def at_work(self):
        """The number of workers that take part, as the boss reports it, less those whose end it
        does not know yet."""
        return self.working - self.unnoticed

    def turn(self):
        """Somebody comes or goes; the last one with the weights does not."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        if len(self.workers) < MOST and (self.at_work() < 2 or self.random.random() < 0.5):
            return self.join()
        if self.at_work() < 2:
            return None
        # The oldest workers, so that each has been at work.
        how = self.random.choice(["SIGTERM", "SIGKILL"])
        worker = self.workers.pop(0)
        worker.send_signal(getattr(signal, how))
        worker.wait()
        self.counts[how] += 1
        self.unnoticed += 1
        return self.say(f"process {worker.pid} got {how}")

    def end(self):
        """Whatever is left ends."""
        for process in [self.boss, *self.workers]:
            if process.poll() is None:
                process.kill()


def main():
    """Both runs, and the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between changes")
    parser.add_argument("--seed", type=int, default=0)
    result_files.add_keep(parser)
    asked = parser.parse_args()
    found = {**result_files.header(), "command": result_files.command()}
    found.update({"steps": asked.steps, "every": asked.every})
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        environment = {
            **os.environ,
            "BOSSMAN_CONFIG_DIR": str(place / "config"),
            "BOSSMAN_RUNS_DIR": str(place / "runs"),
        }
        run, quiet, pooled = (
            run_file(place, asked.steps),
            place / "quiet.safetensors",
            place / "pool.safetensors",
        )
        began = time.monotonic()
        train = [
            release("bossman"),
            "train",
            run,
            "--local",
            "1",
            "--threads",
            "1",
            "--save",
            quiet,
        ]
        subprocess.run(train, env=environment, stdout=subprocess.DEVNULL, check=True)
        found["quiet_seconds"] = time.monotonic() - began
        print(
            f"quiet: {asked.steps} steps with one worker in {found['quiet_seconds']:.0f} s",
            flush=True,
        )
        pool = Pool(run, pooled, environment, asked.seed)
        try:
            pool.join()
            while pool.boss.poll() is None:
                try:
                    pool.boss.wait(timeout=asked.every)
                except subprocess.TimeoutExpired:
                    pool.turn()
        finally:
            pool.end()
        took = time.monotonic() - pool.began
        if pool.boss.returncode:
            sys.exit(f"bench/pool.py: the run ended with {pool.boss.returncode} after {took:.0f} s")
        expected, left = weights(quiet), weights(pooled)
        different = [name for name in expected if expected[name] != left.get(name)]
        found.update({**pool.counts, "seconds": took, **compared(expected, different)})
        print("\n".join(faults_page.pool(found)))
        if different or expected.keys() != left.keys():
            sys.exit(f"bench/pool.py: other weights than the quiet run: {', '.join(different)}")
        if asked.keep:
            pages.keep("J", found)


if __name__ == "__main__":
    main()
