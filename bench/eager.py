"""E: models on one worker, beside the same modules in PyTorch's eager mode."""

import importlib.util
import json
import shutil

import programs
from figures import settled
from programs import Problem, built, target

MODELS = {"gpt": "GPT", "resnet50": "ResNet-50", "swin_t": "Swin-T"}
# The share of PyTorch's speed to reach.
LEAST = {"gpt": 1.0, "resnet50": 0.95, "swin_t": 0.9}
STEPS, WARM_UP = 6, 2
# Losses that differ by more are not of the same work.
LIMIT = 1e-3


def pair(bench):
    """One pair of each model."""
    for library in ("torchvision", "transformers"):
        if importlib.util.find_spec(library) is None:
            reason = f"this Python has no {library}; `tools/pytorch.py --zoo` names one that has"
            raise Problem(reason)
    found = {}
    for name in MODELS:
        folder = target() / "bench" / "eager" / name
        shutil.rmtree(folder, ignore_errors=True)
        theirs = bench.pytorch("eager", name, "--steps", STEPS, "--to", folder)
        ours = bossman(bench, folder)
        check(name, theirs["losses"], ours["losses"])
        found[f"pytorch {name}"] = settled(theirs["steps"], WARM_UP)
        found[f"bossman {name}"] = settled(ours["steps"], WARM_UP)
    return found


def bossman(bench, folder):
    """The time and the loss of each step on one worker."""
    metrics = folder / "metrics.jsonl"
    one = ["--local", 1, "--threads", 1, "--metrics", metrics]
    programs.finish([built("bossman"), "train", folder / "run.yaml", *one], bench.bossman)
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {
        "steps": [line["step_ms"] / 1e3 for line in lines],
        "losses": [line["loss"] for line in lines],
    }


def check(name, theirs, ours):
    """Refuses to compare the times of different work."""
    if len(theirs) != len(ours):
        raise Problem(f"{name}: {len(theirs)} steps in PyTorch, {len(ours)} in BossMan")
    off = max(abs(a - b) / abs(a) for a, b in zip(theirs, ours))
    if not off <= LIMIT:
        raise Problem(f"{name}: a loss differs from PyTorch's by {off:.1e}")
