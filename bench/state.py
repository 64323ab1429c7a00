#!/usr/bin/env python3
"""L: what the state of a large model costs in memory and time: checkpoints, recovery, weights.

    bossman data fetch smollm2 --to ~/models/SmolLM2-135M
    bench/state.py --folder ~/models/SmolLM2-135M
    bench/state.py --random 10
    bench/state.py --folder ~/models/SmolLM2-135M --line 300

With `--folder`, a folder of Hugging Face is imported and trained on two local workers of one thread
each, alternately without and with checkpoints, and then with checkpoints and a worker that is
killed. With `--random`, a model of so many gigabytes of random weights is loaded and evaluated
once. With `--line N`, a run resumes on one worker at the other end of a line of N megabits a
second, which takes root. Peaks are what the system counts as resident (VmHWM), sampled until a
process ends."""

import argparse
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import faults_page
import machine
import namespaces
import pages
import programs
import result_files
from namespaces import ADDRESSES, inside
from pool import release
from programs import CHECKOUT, Problem

sys.path.insert(0, str(CHECKOUT / "tools"))
import tensor_file

# A checkpoint may take the time of several steps.
STEPS_PER_KILL = 10
WORKERS = 2
BATCH, LENGTH = 8, 128
STEP = re.compile(r"step (\d+)/")
WRITTEN = re.compile(r"checkpoint of step \d+ written")
RESUMED = re.compile(r"recovery: resuming with .* from (.*)")
RESTORED = re.compile(r"recovery: repeated .*?, ([\d.]+) s to restore")
WIDTH = 8192  # of each layer of the random model
BLOCK = 4 << 20  # bytes of random numbers that are made at once
PORT = 1098


class Run:
    """A boss with its local workers, their peaks, and what it says."""

    def __init__(self, place, words):
        own = dict(os.environ, BOSSMAN_RUNS_DIR=str(place / "runs"))
        local = ["--local", str(WORKERS), "--threads", "1"]
        command = [release("bossman"), *words, *local]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        self.boss = subprocess.Popen(
            command, cwd=place, env=own, text=True, stderr=subprocess.STDOUT, **pipes
        )
        self.peaks, self.lines = {}, []
        self.sampler = threading.Thread(target=self.sample)
        self.sampler.start()

    def processes(self):
        """The boss and its workers."""
        children = Path(f"/proc/{self.boss.pid}/task/{self.boss.pid}/children")
        try:
            return [self.boss.pid, *map(int, children.read_text(encoding="ascii").split())]
        except OSError:
            return []

    def sample(self):
        """Notes peaks until the boss ends."""
        while self.boss.poll() is None:
            for process in self.processes():
                try:
                    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
                except OSError:
                    continue
                if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
                    self.peaks[process] = int(peak[1]) * 1024
            time.sleep(0.02)

    def until_end(self, on_line=lambda line: None):
        """Reads what the boss says until it ends well."""
        for line in self.boss.stdout:
            self.lines.append(line.rstrip())
            on_line(line)
        self.sampler.join()
        if self.boss.wait() != 0:
            raise Problem("\n".join([*self.lines[-9:], "bench/state.py: a run failed"]))

    def memory(self):
        """The peaks of the boss and of each worker, the largest first."""
        boss = self.peaks.pop(self.boss.pid, 0)
        return {"boss": boss, "workers": sorted(self.peaks.values(), reverse=True)}


def imported(place, folder):
    """The run file of an imported folder of Hugging Face, which trains on a text of a few words."""
    text = place / "text.txt"
    chosen = random.Random(0)
    words = ["the", "boss", "gives", "each", "stage", "to", "a", "worker", "and", "waits"]
    text.write_text(" ".join(chosen.choices(words, k=200_000)), encoding="utf-8")
    data = ["--data", text, "--to", place / "model"]
    subprocess.run(
        [release("bossman"), "import", folder, *data], check=True, stdout=subprocess.DEVNULL
    )
    return place / "model" / "run.yaml"


def run_file(place, model, steps, every):
    """The imported run with this shape."""
    text = model.read_text(encoding="utf-8")
    shape = {"sequence_length": LENGTH, "batch_size": BATCH, "microbatches": 4, "steps": steps}
    for key, value in shape.items():
        text = re.sub(rf"(?m)^(\s*){key}: .*$", rf"\g<1>{key}: {value}", text)
    text = re.sub(r"(?m)^(  validation|checkpoint): .*$", "", text)
    path = model.parent / f"{place.name}-{steps}-{every}.yaml"
    checkpoint = f"checkpoint: {{every: {every}, keep: 1}}\n" if every else ""
    path.write_text(text + checkpoint, encoding="utf-8")
    return path


def trained(place, model, steps, every):
    """A quiet run: the milliseconds of each step, and peaks."""
    metrics = place / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    path = run_file(place, model, steps, every)
    run = Run(place, ["train", path, "--metrics", metrics])
    run.until_end()
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {**run.memory(), "step_ms": [line["step_ms"] for line in lines if "step_ms" in line]}


def restored(place, model, kills):
    """The seconds in which a run gets its state back after each kill of a worker."""
    path = run_file(place, model, STEPS_PER_KILL * (kills + 1), 2)
    run, seconds, killed = Run(place, ["train", path]), [], set()
    # Whether a checkpoint was written since the last kill. Without one nothing would be restored.
    written = False

    def strike(line):
        nonlocal written
        if found := RESTORED.search(line):
            seconds.append(float(found[1]))
        if (found := RESUMED.search(line)) and not found[1].startswith("the checkpoint"):
            raise Problem(f"bench/state.py: a run resumed from {found[1]}")
        written = written or WRITTEN.search(line) is not None
        due = STEP.match(line) and written and len(killed) == len(seconds)
        if due and len(killed) < kills:
            worker = run.processes()[-1]
            killed.add(worker)
            written = False
            os.kill(worker, signal.SIGKILL)

    run.until_end(strike)
    if len(seconds) < kills:
        raise Problem(f"bench/state.py: {len(seconds)} of {kills} kills before the run ended")
    return {**run.memory(), "restore_s": seconds}


def state_bytes(place):
    """The bytes of the newest checkpoint of all runs."""
    manifests = sorted(place.glob("runs/*/checkpoints/*/manifest.json"), key=os.path.getmtime)
    if not manifests:
        raise Problem(f"bench/state.py: there is no checkpoint below {place}")
    return sum(file["bytes"] for file in json.loads(manifests[-1].read_text())["files"])


def of_folder(asked):
    """The pairs, and the recoveries."""
    found = {"pairs": [], "every": asked.every, "steps": asked.steps}
    found["fresh_page_us"] = machine.fresh_page_us()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = imported(place, Path(asked.folder).expanduser().resolve())
        for number in range(asked.pairs):
            pair = {
                side: trained(place, model, asked.steps, every)
                for side, every in (("without", 0), ("with", asked.every))
            }
            found["pairs"].append(pair)
            print(f"pair {number + 1}: {json.dumps(pair)}", flush=True)
        found["state_bytes"] = state_bytes(place)
        found.update({"restored": restored(place, model, asked.kills)})
    return found


def over_a_line(asked):
    """How fast the state of a run that resumes goes to a worker at the other end of a line."""
    if why := namespaces.possible():
        raise Problem(f"bench/state.py: there is no line here: {why}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = imported(place, Path(asked.folder).expanduser().resolve())
        Run(place, ["train", run_file(place, model, 2, 2), "--name", "run"]).until_end()
        state = place / "runs" / "run"
        more = run_file(place, model, 3, 2)
        own = {**os.environ, "BOSSMAN_RUNS_DIR": str(place / "runs")}
        own.pop("MODEL_TICKET", None)
        with namespaces.line(0, asked.line):
            line = namespaces.check()["bandwidth"]
            joined = {**own, "MODEL_HOST": ADDRESSES[0], "MODEL_PORT": str(PORT)}
            worker = programs.silent(inside(1, [release("worker"), "--threads", "1"]), joined)
            try:
                words = ["train", more, "--resume", "--name", "run", "--workers", "1"]
                boss = inside(0, [release("bossman"), *words, "--port", str(PORT)])
                programs.finish(boss, own)
            finally:
                programs.end(worker)
        events = (state / "events.jsonl").read_text(encoding="utf-8").splitlines()
        ends = [event for event in map(json.loads, events) if event["event"] == "transfer"]
        sent = [event for event in ends if event["ended"] and event["direction"] == "to_workers"]
        if not sent:
            raise Problem("bench/state.py: the state came within ten seconds; take a slower line")
        return {
            "mbit": asked.line,
            "line": line,
            "bytes": sent[-1]["bytes"],
            "seconds": sent[-1]["elapsed_s"],
        }


def random_weights(path, layers):
    """Writes square matrices of random numbers, a block at a time."""
    each = WIDTH * WIDTH * 4
    head = {
        f"{layer}.weight": {
            "dtype": "F32",
            "shape": [WIDTH, WIDTH],
            "data_offsets": [layer * each, (layer + 1) * each],
        }
        for layer in range(layers)
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    exponents = bytes(0xBA if byte & 1 else 0x3A for byte in range(256))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(layers * each // BLOCK):
            block = bytearray(os.urandom(BLOCK))
            block[3::4] = block[3::4].translate(exponents)
            file.write(block)


def of_random(gigabytes):
    """Loads and evaluates a model of so many gigabytes."""
    layers = max(1, round(gigabytes * 1e9 / (WIDTH * WIDTH * 4)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        random_weights(place / "weights.safetensors", layers)
        numbers = [chosen / 1000 for chosen in range(4 * WIDTH)]
        samples = {name: ("F32", [4, WIDTH], numbers) for name in ("x", "target")}
        tensor_file.write(place / "data.safetensors", samples)
        linear = f"  - Linear: {{in_features: {WIDTH}, out_features: {WIDTH}, bias: false}}\n"
        (place / "model.yaml").write_text(
            f"inputs: {{x: [batch, {WIDTH}]}}\nlayers:\n{linear * layers}", encoding="utf-8"
        )
        (place / "run.yaml").write_text(
            "model: model.yaml\nloss: MSELoss\n"
            "data: {train: data.safetensors, test: data.safetensors}\n"
            "optimizer: SGD\nsteps: 1\nweights: weights.safetensors\n"
            "batch_size: 4\nmicrobatches: 1\n",
            encoding="utf-8",
        )
        began = time.monotonic()
        run = Run(place, ["eval", "run.yaml"])
        run.until_end()
        seconds = time.monotonic() - began
        size = (place / "weights.safetensors").stat().st_size
    return {**run.memory(), "bytes": size, "seconds": seconds}


def main():
    """One of the three measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--folder", help="a folder of Hugging Face to train")
    what.add_argument("--random", type=float, metavar="GB", help="gigabytes of random weights")
    parser.add_argument("--line", type=float, metavar="MBIT", help="with --folder: over a line")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--kills", type=int, default=3)
    result_files.add_keep(parser)
    asked = parser.parse_args()
    if asked.line and asked.random:
        parser.error("--line goes with --folder")
    found = {**result_files.header(), "command": result_files.command()}
    try:
        measure = over_a_line if asked.line else of_folder
        found.update(of_random(asked.random) if asked.random else measure(asked))
    except Problem as problem:
        sys.exit(str(problem))
    print("\n".join(faults_page.state(found)))
    if asked.keep:
        kind = ["random"] if asked.random else [Path(asked.folder).name]
        pages.keep(result_files.name("L", *kind, *(["line"] if asked.line else [])), found)


if __name__ == "__main__":
    main()
