#!/usr/bin/env python3
"""Compares BossMan with PyTorch: same model, same weights, same data, 20 steps; every loss and
every final weight.

tools/oracle.py                     train in PyTorch here and now, then compare
tools/oracle.py --record            write what PyTorch does to tests/oracle
tools/oracle.py --recorded          compare with tests/oracle; needs no PyTorch
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import oracle_models
import pytorch
import setup_libtorch
import tensor_file

RECORDED = setup_libtorch.CHECKOUT / "tests" / "oracle"
STEPS, BATCH = 20, 32
# Sums in another order differ in the last bits of their largest term, so a number near zero is
# compared as if it were FLOOR.
RTOL, FLOOR = 1e-5, 1e-2
ROW = "{:28} {:>7}  {:>5}  {:>10}  {:>12}  {}"


class Case:
    """One training run: a model file (with words of it replaced, to make it small or sure), a loss,
    an optimizer."""

    def __init__(
        self,
        model,
        loss,
        optimizer,
        microbatches,
        schedule,
        replaced=(),
        workers=(1, 2, 3),
        **arguments,
    ):
        self.model, self.loss, self.optimizer, self.workers = model, loss, optimizer, workers
        self.microbatches, self.schedule, self.replaced, self.arguments = (
            microbatches,
            schedule,
            replaced,
            arguments,
        )
        self.name = f"{model}-{loss[0].replace('Loss', '')}-{optimizer[0]}".lower()

    def model_text(self):
        text = (oracle_models.EXAMPLES / "models" / f"{self.model}.yaml").read_text()
        for old, new in self.replaced:
            if old not in text:
                sys.exit(
                    f"oracle: {self.model}.yaml no longer says `{old}`; change its case in "
                    "tools/oracle.py"
                )
            text = text.replace(old, new)
        return text

    def run_text(self):
        def choice(name_and_arguments):
            return json.dumps(dict([name_and_arguments]))

        return (
            "model: model.yaml\ndata: {train: data.safetensors}\n"
            f"loss: {choice(self.loss)}\noptimizer: {choice(self.optimizer)}\n"
            f"batch_size: {BATCH}\nmicrobatches: {self.microbatches}\nsteps: {STEPS}\nschedule: "
            f"{self.schedule}\n"
        )


SMALL = [("512", "32")]
NO_DROPOUT = [("Dropout: {p: 0.1}", "Dropout: {p: 0.0}")]
NO_ENCODER_DROPOUT = [("batch_first: true", "batch_first: true, dropout: 0.0")]
NESTEROV = ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True})
# A batch norm takes the bias before it out again: its gradient is rounding, of which Adam makes
# whole steps.
NO_BIAS_BEFORE_NORM = [("padding: same}", "padding: same, bias: false}")]
# Attention weights stay what they are when all keys have a bias added: its gradient is rounding
# too.
NO_BIAS_OF_KEYS = [("batch_first: true", "batch_first: true, dropout: 0.0, bias: false")]
CASES = [
    Case(
        "residual",
        ("MSELoss", {}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        4,
        "gpipe",
        SMALL,
        width=32,
    ),
    Case("residual", ("MSELoss", {}), ("Adam", {"lr": 3e-3}), 5, "1f1b", SMALL, width=32),
    Case(
        "branchy",
        ("CrossEntropyLoss", {}),
        ("AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
        5,
        "gpipe",
    ),
    Case(
        "skip", ("MSELoss", {}), ("Adam", {"lr": 3e-3, "weight_decay": 0.01}), 4, "1f1b", NO_DROPOUT
    ),
    Case("convnet", ("CrossEntropyLoss", {"label_smoothing": 0.1}), NESTEROV, 4, "1f1b"),
    Case(
        "convnet",
        ("CrossEntropyLoss", {}),
        ("AdamW", {"lr": 1e-3}),
        5,
        "gpipe",
        NO_BIAS_BEFORE_NORM,
        bias=False,
    ),
    # Layers that share a weight stay on one worker, and here they are the first and the last.
    Case(
        "encoder", ("MSELoss", {}), ("Adam", {"lr": 1e-3}), 5, "1f1b", NO_BIAS_OF_KEYS, bias=False
    ),
    Case(
        "encoder",
        ("MSELoss", {}),
        ("SGD", {"lr": 0.01, "momentum": 0.9}),
        4,
        "gpipe",
        NO_ENCODER_DROPOUT,
    ),
    Case("tied", ("MSELoss", {}), ("Adam", {"lr": 1e-3}), 4, "1f1b", workers=[1]),
]


def record(torch, case, folder):
    """Trains `case` in PyTorch and writes all that is needed to repeat it into `folder`, as
    tests/oracle/README.md says."""
    torch.manual_seed(0)
    layers, forward = oracle_models.models(torch)[case.model](**case.arguments)
    inputs, targets = oracle_models.data(torch, case.model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(case.model_text())
    (folder / "run.yaml").write_text(case.run_text())
    tensor_file.write(
        folder / "data.safetensors", tensor_file.plain({"x": inputs, "target": targets})
    )
    tensor_file.write(folder / "init.safetensors", tensor_file.plain(layers.state_dict()))

    loss_of = getattr(torch.nn, case.loss[0])(**case.loss[1])
    optimizer = getattr(torch.optim, case.optimizer[0])(layers.parameters(), **case.optimizer[1])
    losses = []
    for step in range(STEPS):
        begin = step * BATCH % len(inputs)
        batch = inputs[begin : begin + BATCH], targets[begin : begin + BATCH]
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, target in zip(*(part.tensor_split(case.microbatches) for part in batch)):
            loss = loss_of(forward(layers, x), target) * (len(x) / BATCH)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(float(f"{total.item():.9g}"))
    tensor_file.write(folder / "final.safetensors", tensor_file.plain(layers.state_dict()))
    (folder / "losses.json").write_text(json.dumps(losses) + "\n")


def compare(folder, bossman, workers):
    """Trains what `folder` holds on `workers` local workers; (worst loss error, worst weight
    error)."""
    with tempfile.TemporaryDirectory() as out:
        metrics, final = Path(out) / "metrics.jsonl", Path(out) / "final.safetensors"
        command = [
            bossman,
            "train",
            folder / "run.yaml",
            "--local",
            workers,
            "--init",
            folder / "init.safetensors",
        ]
        command += ["--metrics", metrics, "--save", final, "--no-shuffle"]
        done = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"oracle: `{' '.join(map(str, command))}` failed:\n{done.stdout}{done.stderr}")
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
        weights = tensor_file.read(final)
    loss_error = worst(json.loads((folder / "losses.json").read_text()), losses)
    return loss_error, worst_of_all(tensor_file.read(folder / "final.safetensors"), weights)


def worst_of_all(expected, found):
    if expected.keys() != found.keys():
        sys.exit(f"oracle: expected weights {sorted(expected)}, got {sorted(found)}")
    errors = []
    for name, (dtype, shape, numbers) in expected.items():
        if found[name][:2] != (dtype, shape):
            sys.exit(f"oracle: expected {name} to be {dtype} {shape}, got {found[name][:2]}")
        errors.append(worst(numbers, found[name][2]))
    return max(errors)


def worst(expected, found):
    """The worst error of a list of numbers, each relative to what was expected; infinite if a
    number is missing."""
    if len(expected) != len(found) or any(number != number for number in found):
        return float("inf")
    return max(abs(a - b) / max(abs(a), FLOOR) for a, b in zip(expected, found))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", action="store_true")
    what.add_argument("--recorded", action="store_true")
    what.add_argument(
        "--where-possible", action="store_true", help="do nothing where this Python has no torch"
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR") or setup_libtorch.CHECKOUT / "target")
    default = os.environ.get("BOSSMAN") or target / "debug" / "bossman"
    parser.add_argument(
        "--bossman", type=Path, default=default, help="the program to check [default: %(default)s]"
    )
    options = parser.parse_args()
    torch = None
    if not options.recorded:
        if pytorch.version() != setup_libtorch.VERSION:
            problem = (
                f"{sys.executable} has no torch {setup_libtorch.VERSION}; `make oracle` fetches one"
            )
            if options.where_possible:
                print(f"no comparison with PyTorch: {problem}")
                return
            sys.exit(f"oracle: {problem}")
        torch = pytorch.load()
        torch.set_num_threads(1)
    if options.record:
        for case in CASES:
            shutil.rmtree(RECORDED / case.name, ignore_errors=True)
            record(torch, case, RECORDED / case.name)
        return
    print(
        ROW.format(
            "case",
            "workers",
            "steps",
            "worst loss",
            "worst weight",
            f"error (at most {RTOL} is right)",
        )
    )
    with tempfile.TemporaryDirectory() as fresh:
        sys.exit(not all([check(torch, case, Path(fresh), options.bossman) for case in CASES]))


def check(torch, case, fresh, bossman):
    """Prints one line for each number of workers; whether all of them are right."""
    folder = (RECORDED if torch is None else fresh) / case.name
    if torch is not None:
        record(torch, case, folder)
    fine = True
    for workers in case.workers:
        loss, weight = compare(folder, bossman, workers)
        right = loss <= RTOL and weight <= RTOL
        print(
            ROW.format(
                case.name,
                workers,
                STEPS,
                f"{loss:.1e}",
                f"{weight:.1e}",
                "ok" if right else "WRONG",
            ),
            flush=True,
        )
        fine = fine and right
    return fine


if __name__ == "__main__":
    main()
