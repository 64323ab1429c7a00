"""Compares what BossMan's programs compute of a traced module with PyTorch."""

import contextlib
import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import tensor_file
import torch

from . import regions
from .problem import Unknown
from .weights import DTYPES, save

LIMIT = 1e-4
# A number near zero is compared as if it were this large: its last bits come from larger ones.
FLOOR = 1e-2
STEPS, BATCH, RATE = 3, 4, 0.01
# The factor of the rate of the last step, which leaves the gradients in the parameters: what they
# were is small beside them.
LAST = 2.0**30
# How often last bits are drawn to see what they change, and the change above which a comparison
# means nothing.
DRAWS, CHAOS = 3, 0.1
DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d"}


class Figure:
    """One comparison: on how many workers, of what ("output", "loss", "gradient" or "buffer"), how
    it is called, its error and the limit of that; None if it could not be made, for the reason in
    `name`. A "cut" has no error: its name is the first layer of the second worker."""

    def __init__(self, workers, kind, name, error, limit=LIMIT):
        self.workers, self.kind, self.name, self.error = workers, kind, name, error
        self.limit = limit

    @property
    def right(self):
        return self.error is None or self.error <= self.limit

    def __str__(self):
        cut = "cut before " if self.kind == "cut" else ""
        said = f"{self.workers} worker{'s' if self.workers > 1 else ''}: {cut}{self.name}"
        if self.error is None:
            return said
        verdict = "ok" if self.right else f"WRONG, the limit is {self.limit:.2g}"
        if self.limit > LIMIT:
            verdict += f" (last bits of the parameters change PyTorch's own by {self.limit:.1e})"
        return f"{said}: error {self.error:.1e} {verdict}"


def check(traced, programs):
    """Yields a figure as soon as it is known."""
    for program in ("bossman", "worker"):
        if not (programs / program).is_file():
            raise Unknown(
                f"--check: {programs / program} does not exist; build it or give --programs"
            )
    # Sums of other numbers of threads differ in the last bits, which batch norms over few numbers
    # make large.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        expected, repeat = reference(traced, folder)
        rounding = functools.cache(lambda: last_bits(expected, repeat))
        for workers in (1, 2):
            if min(len(one.entries) for one in (traced.translation, traced.quiet)) < workers:
                why = "not compared, because one layer cannot be cut in two"
                yield Figure(workers, "cut", why, None)
                continue
            found = predicted(traced, folder, programs, workers)
            for name, output in expected.outputs.items():
                error = difference(output, as_tensor(found[name]))
                yield Figure(workers, "output", f"output {name}", error)
            found, first_layer = trained(traced, folder, programs, workers)
            if workers > 1:
                yield Figure(workers, "cut", first_layer, None)
            yield from training_figures(workers, expected, found, rounding)
        forgotten = without_layer(expected.gradients, traced.tensors(traced.quiet).values())
        if forgotten:
            raise Unknown(f"--check: no layer has the trained {', '.join(forgotten)}")


def without_layer(gradients, paths):
    """The paths of gradients that no tensor of these paths has. Tied parameters have several."""
    known = {id(gradients[path]) for path in paths if path in gradients}
    return [path for path, one in gradients.items() if id(one) not in known and one.any()]


def training_figures(workers, expected, found, rounding):
    """Compares the losses, the gradients of the last step, and all buffers after it. If an error is
    too large, `rounding` tells what last bits change."""
    for kind, errors in training_errors(expected, found).items():
        if not errors:
            continue
        worst, limit = worst_of(errors), LIMIT
        # No limit is for an error that is no number.
        if errors[worst] > LIMIT:
            changes = rounding()[kind]
            limit = max(LIMIT, *(changes[path] for path in errors))
        said = f"{STEPS} losses" if kind == "loss" else f"{len(errors)} {kind}s of step {STEPS}"
        if limit <= CHAOS:
            yield Figure(workers, kind, f"{said}, worst {worst}", errors[worst], limit)
        else:
            why = f"last bits of the parameters change PyTorch's own by {limit:.1e}"
            yield Figure(workers, kind, f"{said} are not compared: {why}", None, limit)


def worst_of(errors):
    """The path with the largest error. NaN is the worst, and no number is above or below it."""
    return max(errors, key=lambda path: (errors[path] != errors[path], errors[path]))


def training_errors(expected, found):
    """The errors by kind: of the losses by step, and of the last step's gradients and all buffers
    after it by path."""
    largest = max([float(one.abs().max()) for one in expected.gradients.values()], default=0.0)
    # A gradient of 0 has an error, too: sums of other terms end in other last bits.
    magnitude = {
        path: RATE * LAST * max(float(one.abs().max()), FLOOR * largest)
        for path, one in expected.gradients.items()
    }
    errors = {"loss": {}, "gradient": {}, "buffer": {}}
    for step, (loss, seen) in enumerate(zip(expected.losses, found.losses), 1):
        errors["loss"][f"step {step}"] = abs(loss - seen) / abs(loss)
    for path, tensor in found.state.items():
        kind = "gradient" if path in magnitude else "buffer"
        errors[kind][path] = difference(expected.state[path], tensor, magnitude.get(path))
    return errors


def difference(expected, found, magnitude=None):
    """The largest error, as a part of the largest magnitude."""
    expected, found = expected.detach().double(), found.double()
    if not expected.dim() and found.shape == (1,):
        expected = expected.reshape(1)
    if expected.shape != found.shape:
        shapes = list(expected.shape), list(found.shape)
        raise Unknown("--check: expected the shape {}, BossMan has {}".format(*shapes))
    if not expected.numel():
        return 0.0
    magnitude = magnitude or max(float(expected.abs().max()), FLOOR)
    return float((expected - found).abs().max() / magnitude)


def as_tensor(found):
    """The tensor of an entry of a file."""
    code, shape, content = found
    dtype = next(dtype for dtype, known in DTYPES.items() if known == code)
    if not content:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    # A copy, because PyTorch warns of memory that it must not write to.
    return torch.frombuffer(bytearray(content), dtype=getattr(torch, dtype)).reshape(shape)


class Expected(NamedTuple):
    """What PyTorch computes: the outputs before training, the losses, the gradients of the last
    step, and the `state_dict` after it."""

    outputs: dict
    losses: list
    gradients: dict
    state: dict


class Found(NamedTuple):
    """What another training computes: the losses, and the `state_dict` after the last step."""

    losses: list
    state: dict


def reference(traced, folder):
    """What PyTorch computes, after writing all that BossMan needs to repeat it, and a function that
    trains the module again. It may change the module first."""
    module = traced.module
    if traced.translation.outputs[0].fake.dtype != torch.float32:
        raise Unknown("--check: the first output is no float32, so there is no loss of it")
    generator = torch.Generator().manual_seed(0)
    samples = {
        given.name: sample(traced, given, value, generator)
        for given, value in zip(traced.inputs, traced.translation.inputs)
    }
    with as_before(module):
        module.eval()
        with torch.no_grad():
            results = run(traced, samples, slice(0, BATCH))
        named = dict(zip(output_names(traced), results))
        one = results[0]
        targets = torch.randn(STEPS * BATCH, *one.shape[1:], generator=generator)
        write_folder(traced, folder, samples, targets)
        losses, gradients = train(traced, samples, targets)
        expected = Expected(named, losses, gradients, copied(module))

    def repeat(change=lambda module: None):
        with as_before(module):
            change(module)
            losses, _ = train(traced, samples, targets)
            return Found(losses, copied(module))

    return expected, repeat


def copied(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@contextlib.contextmanager
def as_before(module):
    """The module is afterwards what it was."""
    before, modes = copied(module), {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                tensor.copy_(before[name])
        for part, mode in modes.items():
            part.training = mode


def last_bits(expected, repeat):
    """The most that PyTorch's own losses, gradients and buffers change if each parameter moves by
    its last bit, as [`training_errors`]: much where a unit turns on or off, or where a batch norm
    divides by next to nothing."""
    changes = training_errors(expected, repeat())
    if any(error for of_one in changes.values() for error in of_one.values()):
        raise Unknown("--check: PyTorch itself does not compute the same gradients again")
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        errors = training_errors(expected, repeat(lambda module: move(module, generator)))
        for kind, of_one in errors.items():
            for path, error in of_one.items():
                # `max` takes the first one if the other is no number.
                changes[kind][path] = max(changes[kind][path], error)
    return changes


@torch.no_grad()
def move(module, generator):
    """Moves each parameter up or down by its last bit. Zeros are often exact, and stay."""
    for part in module.parameters():
        if part.dtype in (torch.float32, torch.float64):
            ends = torch.tensor([-torch.inf, torch.inf], dtype=part.dtype)
            towards = ends[torch.randint(2, part.shape, generator=generator)]
            part.copy_(torch.where(part == 0, part, torch.nextafter(part, towards)))


def sample(traced, given, value, generator):
    """Random numbers for an input; whole ones are rows of the embedding that takes them."""
    sizes = [STEPS * BATCH if size == given.sizes[0] else size for size in given.sizes]
    if any(isinstance(size, str) for size in sizes):
        raise Unknown(f"--check: {given.name} has more words than the batch; give numbers")
    dtype = getattr(torch, given.dtype)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(dtype)
    rows = [
        entry.arguments["num_embeddings"]
        for entry in traced.translation.entries
        if entry.kind == "Embedding" and entry.inputs[0].key == value.key
    ]
    if rows:
        return torch.randint(min(rows), sizes, generator=generator).to(dtype)
    # Masks: all is there.
    return torch.ones(sizes).to(dtype)


def run(traced, samples, rows):
    """All outputs of the module that are tensors."""
    given = {name: tensor[rows] for name, tensor in samples.items()}
    arguments = set(traced.training.argument_names())
    if set(given) <= arguments:
        found = traced.module(**given)
    else:
        found = traced.module(*given.values())
    return [part for part in torch.utils._pytree.tree_leaves(found) if torch.is_tensor(part)]


def train(traced, samples, targets):
    """Three steps; the losses, and the gradients of the last one."""
    module = traced.module
    module.train()
    parameters = [part for part in module.parameters() if part.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses = []
    with quiet(module):
        for step in range(STEPS):
            rows = slice(step * BATCH, (step + 1) * BATCH)
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = RATE * (LAST if step == STEPS - 1 else 1.0)
            output = run(traced, samples, rows)[0]
            loss = torch.nn.functional.mse_loss(output, targets[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    named = module.named_parameters(remove_duplicate=False)
    return losses, {path: part.grad for path, part in named if part.grad is not None}


class WithoutDropout(torch.overrides.TorchFunctionMode):
    """Functions that drop elements give them all."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            kwargs["dropout_p"] = 0.0
            args = args[:4] + (0.0,) + args[5:] if len(args) > 4 else args
            kwargs = (
                kwargs
                if len(args) <= 4
                else {key: value for key, value in kwargs.items() if key != "dropout_p"}
            )
        return function(*args, **kwargs)


@contextlib.contextmanager
def quiet(module):
    """Nothing is random: neither layers, nor functions, nor attention."""
    changed = []
    for part in module.modules():
        drops = type(part).__name__.startswith("Dropout") or (
            (regions.known(part) or ("",))[0] == "DropPath"
        )
        names = ["p", "drop_prob"] if drops else []
        if isinstance(part, torch.nn.MultiheadAttention) or hasattr(part, "flatten_parameters"):
            names = ["dropout"]
        for name in names:
            if isinstance(getattr(part, name, None), float):
                changed.append((part, name, getattr(part, name)))
                setattr(part, name, 0.0)
    try:
        with WithoutDropout():
            yield
    finally:
        for part, name, value in changed:
            setattr(part, name, value)


def output_names(traced):
    """What BossMan's file of outputs calls them."""
    outputs = traced.translation.outputs
    return ["output"] if len(outputs) == 1 else called(traced)


def called(traced):
    last = traced.text.rstrip().splitlines()[-1]
    return [name.strip() for name in last.split("[", 1)[1].rstrip("]").split(",")]


def write_folder(traced, folder, samples, targets):
    """Two models with their weights, and what to do with them. The one that is trained has nothing
    random, and the first output alone, of which there is a loss."""
    save(folder / "data.safetensors", {**samples, "target": targets})
    save(folder / "inputs.safetensors", {name: part[:BATCH] for name, part in samples.items()})
    models = {"predict": (traced.text, traced.translation), "train": traced.quiet_first()}
    for name, (text, translation) in models.items():
        (folder / name).mkdir()
        (folder / name / "model.yaml").write_text(text, encoding="utf-8")
        traced.write_tensors(folder / name, translation)
        (folder / name / "run.yaml").write_text(
            "model: model.yaml\ndata: {train: ../data.safetensors}\nloss: MSELoss\n"
            f"optimizer: {{SGD: {{lr: {RATE}}}}}\n"
            f"lr_schedule: {{step: {{step_size: {STEPS - 1}, gamma: {LAST}}}}}\n"
            f"batch_size: {BATCH}\nmicrobatches: 1\n"
            f"steps: {STEPS}\nschedule: gpipe\nshuffle: false\n",
            encoding="utf-8",
        )


def call(folder, programs, *command):
    """Runs bossman in this folder, where it leaves the folders of runs."""
    programs = programs.absolute()
    environment = {**os.environ, "BOSSMAN_WORKER": str(programs / "worker")}
    done = subprocess.run(
        [str(programs / "bossman"), *map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unknown(
            f"--check: `bossman {' '.join(map(str, command))}` failed: {' '.join(said[-3:])}"
        )


def predicted(traced, folder, programs, workers):
    """BossMan's outputs by name."""
    to = folder / "outputs.safetensors"
    command = ["predict", folder / "predict" / "run.yaml", "--local", workers, "--threads", 1]
    command += ["--weights", folder / "predict" / "model.safetensors"]
    call(folder, programs, *command, "--data", folder / "inputs.safetensors", "--to", to)
    found = tensor_file.read_bytes(to)
    return {"output": next(iter(found.values()))} if len(found) == 1 else found


def trained(traced, folder, programs, workers):
    """What BossMan computes in training, and the first layer of the second worker."""
    metrics, saved, final = (
        folder / name for name in ("metrics.jsonl", "saved.safetensors", "final.safetensors")
    )
    command = ["train", folder / "train" / "run.yaml", "--local", workers, "--threads", 1]
    command += [
        "--no-shuffle",
        "--init",
        folder / "train" / "model.safetensors",
        "--metrics",
        metrics,
        "--save",
        saved,
    ]
    call(folder, programs, *command)
    export = [
        "export",
        folder / "train" / "run.yaml",
        "--weights",
        saved,
        "--format",
        "safetensors",
    ]
    call(folder, programs, *export, "--to", final)
    losses = [json.loads(one)["loss"] for one in metrics.read_text().splitlines()]
    if len(losses) != STEPS:
        raise Unknown(f"--check: expected {STEPS} losses, bossman wrote {len(losses)}")
    tensors, paths = tensor_file.read_bytes(final), traced.tensors(traced.quiet)
    state = {path: as_tensor(tensors[name]) for name, path in paths.items()}
    return Found(losses, state), cut(folder)


def cut(folder):
    """The first layer of the second stage of the last run, if there is one."""
    lines = (folder / "runs" / "latest" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    stages = [event["stages"] for event in events if event["event"] == "planned"][-1]
    return stages[1]["first_layer"] if len(stages) > 1 else None
