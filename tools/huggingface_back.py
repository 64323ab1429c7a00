"""Compares models that went to BossMan and back: transformers loads the folder that `bossman
export` made of a trained run, and must compute what BossMan computes with its weights."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import setup_libtorch
import tensor_file

BOSSMAN = setup_libtorch.CHECKOUT / "target" / "debug" / "bossman"
# The most by which an element may differ, as a share of the largest, and the least by which
# training must have changed one.
TOLERANCE, LEAST_CHANGE = 1e-5, 1e-3
LOCAL = ["--local", "1", "--threads", "1"]
# Enough for outputs that differ clearly from those of untrained weights.
TRAINING = "steps: 4\noptimizer: {AdamW: {lr: 1.0e-3}}\n"


def check(torch, case, folder, input_name, load):
    """Imports, trains, exports and loads the model of a folder. `load` makes a model of
    transformers from a folder."""
    recorded = tensor_file.read(folder / "expected.safetensors")
    samples = recorded[f"train.{input_name}"]
    given = {input_name: tensor(torch, samples)}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        run = place / "imported" / "run.yaml"
        bossman(place, "import", folder / "model", "--to", run.parent)
        targets = recorded.get("train.targets") or next_tokens(torch, given[input_name])
        data = {input_name: samples, "target": targets}
        tensor_file.write(place / "data.safetensors", data)
        prepare(run, place / "data.safetensors")
        bossman(place, "train", run, "--name", "trained", *LOCAL)
        trained, back = place / "runs" / "trained", place / "back"
        outputs = place / "outputs.safetensors"
        bossman(place, "predict", trained, "--data", "train", "--to", outputs, *LOCAL)
        # The types of the files may be less exact than those that BossMan computes with.
        bossman(place, "export", trained, "--to", back, "--dtype", "f32")
        (found,) = tensor_file.read(outputs).values()
        found = tensor(torch, found)
        if names(back) != names(folder / "model"):
            sys.exit(f"huggingface_back: {case.name}: the names are not those of the source")
        with torch.no_grad():
            expected, untrained = (load(of)(**given)[0] for of in [back, folder / "model"])
    error, change = worst(expected, found.reshape(expected.shape)), worst(untrained, expected)
    print(f"{case.name:16} back in transformers: {error:.1e}, training changed {change:.1e}")
    if not (error <= TOLERANCE and change >= LEAST_CHANGE):
        sys.exit(f"huggingface_back: {case.name}: outputs are off by {error:.1e}")


def names(folder):
    """The names of the tensors of a folder."""
    files = folder.glob("*.safetensors")
    return sorted(name for file in files for name in tensor_file.read_bytes(file))


def bossman(place, *arguments):
    """Runs the program, with keys and folders of runs in a place of their own. Returns what it
    prints."""
    command = [str(argument) for argument in (BOSSMAN, *arguments)]
    places = {"BOSSMAN_CONFIG_DIR": str(place / "keys"), "BOSSMAN_RUNS_DIR": str(place / "runs")}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **places},
    )
    if done.returncode != 0:
        sys.exit(f"huggingface_back: `{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def next_tokens(torch, ids):
    """The targets of a model that predicts each next token: none at the last position."""
    following = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
    return "I64", list(following.shape), following.flatten().tolist()


def prepare(run, data):
    """Gives a run file data and a short training."""
    lines = run.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("optimizer:")]
    run.write_text("\n".join(kept) + f"\ndata: {{train: {data}}}\n{TRAINING}")


def tensor(torch, entry):
    _, shape, numbers = entry
    return torch.tensor(numbers).reshape(shape)


def worst(expected, found):
    return float((expected - found).abs().max() / expected.abs().max())
