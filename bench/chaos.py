#!/usr/bin/env python3
"""C: a run that is hard to kill. Faults strike its workers, its boss and its network, and its
weights are those of a quiet run.

    bossman data fetch mnist --to examples/mnist-resnet/data
    bossman data fetch sotu --to examples/gpt-sotu/data
    bench/chaos.py
    bench/chaos.py --preset digits --only cut,loss --minutes 5 --seed 7

Trains with checkpoints, with the release programs, each started by itself as on machines of their
own, while faults that are drawn from a seed strike: workers are killed, stopped for long or for a
moment, and told to leave; the boss is killed, or stopped; and if the system has network
namespaces, workers lose packets, are cut off, or have a slow line. A program that has ended is
started again after a moment, as a supervisor would, the boss with `--resume`. One time in five
(`--two`) a second fault comes while the first is being made good.

When all were given the boss is killed once more and started with an end in sight; then the same is
trained without faults, and all metrics and weights are compared. It ends with an error if a bit
differs, the run ended with an error or stood still, or a worker ended that nobody had told to."""

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults_page
import pages
import programs
import result_files
import star
from faults import BORNE, NETWORK, SECONDS, draw
from pool import release, weights
from programs import CHECKOUT, Problem
from world import PATIENCE, World, bound

NEVER = 1_000_000_000  # steps
SHORT = 1.5  # seconds that a program may be stopped without being missed
LEFT = 30  # steps that are done after the last fault
DIGITS = """\
model: {examples}/digits/digits.yaml
data: {{train: {examples}/digits/digits-train.csv.gz}}
loss: {{CrossEntropyLoss: {{label_smoothing: 0.1}}}}
optimizer: {{Adam: {{lr: 3e-3}}}}
batch_size: 256
microbatches: 4
seed: 0
"""
EVERY = {"digits": 20, "mnist": 5, "gpt": 3}  # steps between checkpoints
# An example's folder, its run file, and what of it lies there.
EXAMPLES = {
    "mnist": (
        "mnist-resnet",
        "run.yaml",
        ("mnist-resnet.yaml", "data/train-images-idx3-ubyte", "data/train-labels-idx1-ubyte"),
    ),
    "gpt": ("gpt-sotu", "small.yaml", ("gpt-small.yaml", "data/sotu.txt")),
}
# Each run has an end of its own, long after that of the example's schedule; and no faults strike
# while it tests.
LEFT_OUT = re.compile(r"(?m)^(steps|epochs|lr_schedule|  test): .*\n")


def run_file(folder, name, preset, steps, more, checkpoints):
    """The preset with `steps` steps, in a file of its own."""
    if preset == "digits":
        text = DIGITS.format(examples=CHECKOUT / "examples")
    else:
        name_of_example, run, paths = EXAMPLES[preset]
        example = CHECKOUT / "examples" / name_of_example
        text = LEFT_OUT.sub("", (example / run).read_text(encoding="utf-8"))
        for path in paths:
            text = text.replace(path, str(example / path))
    text += f"steps: {steps}\n" + "".join(f"{line}\n" for line in more)
    text += (
        f"checkpoint: {{dir: {folder}/checkpoints, every: {EVERY[preset]}, keep: 2}}\n"
        if checkpoints
        else ""
    )
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def inject_all(world, asked, kinds):
    """The run with its faults: how each went."""
    outcomes, given, strikes = [], 0, draw(asked.seed, kinds, asked.two)
    world.start_boss(
        run_file(world.folder, "chaos", world.preset, asked.steps or NEVER, asked.also, True)
    )
    for machine in world.machines:
        world.start_worker(machine)
    world.moved = time.monotonic()
    world.until(lambda: world.step >= 2, PATIENCE)
    began = time.monotonic()
    while (
        not world.over
        and given < asked.faults
        and (not asked.minutes or time.monotonic() - began < 60 * asked.minutes)
    ):
        strike = next(strikes)
        outcomes.append(world.strike(strike))
        given += len(strike.faults)
    if not asked.steps and not world.over:
        # The number of steps is set only now, because the faults decide how many fit.
        world.boss.end()
        world.until(lambda: world.boss is None, PATIENCE)
        world.start_boss(
            run_file(world.folder, "end", world.preset, world.step + LEFT, asked.also, True)
        )
    world.until(lambda: False, 24 * 3600)
    return outcomes


def run_without_faults(world, steps, limit):
    """The same number of steps without a fault, on workers that the boss starts."""
    folder = world.folder / "quiet"
    folder.mkdir()
    # Workers that the boss starts keep nothing, and need not.
    also = [line for line in world.asked.also if not line.startswith("redundancy")]
    run = run_file(folder, "quiet", world.preset, steps, also, False)
    command = [release("bossman"), "train", run, "--local", world.asked.workers, "--threads", "1"]
    command += ["--metrics", folder / "metrics.jsonl", "--save", folder / "weights.safetensors"]
    boss = programs.start(bound(command), world.boss_environment(), stderr=subprocess.PIPE)
    programs.output_of(boss, limit)
    return folder


def metrics(path):
    """The lines of a run's metrics without what the clock says."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "step_ms"} for line in lines]


def differences(found, expected):
    """In what a run differs from the quiet one, in words."""
    one, other = (weights(folder / "weights.safetensors") for folder in (found, expected))
    words = [name for name in other if one.get(name) != other[name]] + [
        name for name in one if name not in other
    ]
    lines, others = metrics(found / "metrics.jsonl"), metrics(expected / "metrics.jsonl")
    words += (
        [f"{len(lines)} lines of metrics, not {len(others)}"] if len(lines) != len(others) else []
    )
    first = next(((a, b) for a, b in zip(lines, others) if a != b), None)
    return words + ([f"metrics {first[0]}, not {first[1]}"] if first else [])


def chaos(preset, asked, kinds):
    """One preset with its faults and without, compared: what is wrong, in words."""
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        network = any(kind in NETWORK for kind in kinds)
        lines = (
            undo.enter_context(star.lines(asked.workers + asked.spares, asked.seed))
            if network
            else None
        )
        world = World(folder, preset, asked, lines)
        if asked.log:
            # Also of a run that went wrong, which is of use only with what was said.
            undo.callback(lambda: shutil.copy(folder / "log", asked.log))
        undo.callback(world.end)
        try:
            outcomes = inject_all(world, asked, kinds)
        except Problem as problem:
            last = (folder / "log").read_text(encoding="utf-8").splitlines()[-60:]
            return ["\n".join([*last, *world.surprises, str(problem)])]
        took, steps = time.monotonic() - world.began, world.step
        wrong = list(world.surprises)
        for outcome in outcomes:
            if outcome.strike.name in BORNE and outcome.recoveries and outcome.stood < SHORT:
                wrong.append(f"{outcome.strike.name} took a recovery, and should have been borne")
        world.end()
        print(f"\n{preset}, {steps} steps in {took:.0f} s; now the quiet run", flush=True)
        try:
            equals = differences(folder, run_without_faults(world, steps, 300 + 2 * took))
        except Problem as problem:
            return [*wrong, f"the quiet run: {problem}"]
        found = {
            **asked.header,
            "command": result_files.command(),
            "preset": preset,
            "seed": asked.seed,
            "steps": steps,
            "seconds": took,
            "strikes": [outcome.measured() for outcome in outcomes],
            "equal": not equals,
        }
        table = "\n\n".join(faults_page.chaos(found))
        print(f"\n{preset}, seed {asked.seed}:\n\n{table}\n", flush=True)
        if asked.keep and not wrong and not equals:
            pages.keep(result_files.name("C", preset, *asked.also), found)
        return wrong + [f"differs from the quiet run: {', '.join(equals)}" for _ in equals[:1]]


def options():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100, help="how many, for each preset")
    parser.add_argument(
        "--minutes", type=float, help="no new fault after so many minutes, for each preset"
    )
    parser.add_argument("--steps", type=int, help="end after so many steps, faults or not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--preset", choices=(*EVERY, "all"), default="all", help="`all`: the two examples"
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(SECONDS)}")
    parser.add_argument(
        "--two", type=float, default=0.2, help="share of strikes that are of two faults"
    )
    parser.add_argument("--workers", type=int, default=2, help="as many as the boss asks for")
    parser.add_argument("--spares", type=int, default=1, help="workers beyond those")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="LINE",
        help="for the run file, as `replicas: 2`",
    )
    parser.add_argument(
        "--log", type=Path, help="where to write down all that boss and workers said"
    )
    result_files.add_keep(parser)
    asked = parser.parse_args()
    asked.header = result_files.header()
    asked.only = asked.only.split(",") if asked.only else []
    unknown = [kind for kind in asked.only if kind not in SECONDS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: expected some of {','.join(SECONDS)}")
    return asked


def kinds_of(asked):
    """The faults that can be given here."""
    kinds = asked.only or list(SECONDS)
    problem = star.problem() if any(kind in NETWORK for kind in kinds) else None
    if problem:
        print(f"no faults of the network here: {problem}", flush=True)
        kinds = [kind for kind in kinds if kind not in NETWORK]
    return kinds or sys.exit(f"bench/chaos.py: {problem}")


def main():
    """Every preset that was asked for."""
    asked = options()
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(how, lambda *_: sys.exit("bench/chaos.py: told to end"))
    presets = tuple(EXAMPLES) if asked.preset == "all" else (asked.preset,)
    for name, _, paths in (EXAMPLES[preset] for preset in presets if preset in EXAMPLES):
        if not all((CHECKOUT / "examples" / name / path).exists() for path in paths):
            sys.exit(
                f"bench/chaos.py: examples/{name} has no data yet: see its README for `bossman "
                "data fetch`"
            )
    try:
        kinds, wrong = kinds_of(asked), []
    except Problem as problem:
        sys.exit(f"bench/chaos.py: {problem}")
    for preset in presets:
        try:
            wrong += [f"{preset}: {text}" for text in chaos(preset, asked, kinds)]
        except Problem as problem:
            wrong.append(f"{preset}: {problem}")
    if wrong:
        sys.exit("\n".join([*wrong, "bench/chaos.py: see above"]))
    print("all metrics and weights are equal to the bit to those of the quiet runs")


if __name__ == "__main__":
    main()
