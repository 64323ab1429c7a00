#!/usr/bin/env python3
"""Compares every kind of layer with PyTorch, each alone: outputs, gradients of inputs and
parameters, buffers, initialisation.

    tools/layer_oracle.py               compute in PyTorch here and now, then compare
    tools/layer_oracle.py --page        the same, and write docs/reference/parity.md
    tools/layer_oracle.py --record      write what PyTorch computes to tests/layers/recorded

`cargo test -p worker` compares with what is recorded; it needs no PyTorch.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import layer_modules
import pytorch
import setup_libtorch
import tensor_file

CASES = setup_libtorch.CHECKOUT / "tests" / "layers" / "cases.json"
RECORDED = CASES.parent / "recorded"
PAGE = setup_libtorch.CHECKOUT / "docs" / "reference" / "parity.md"
HEAD = """# Layer by layer beside PyTorch

<!-- written by `tools/layer_oracle.py --page`; change that instead -->

{kinds} kinds of layer in {cases} cases. PyTorch 2.11 and the engine compute each case from the same
inputs and parameters, in float32 on a CPU. The columns show the worst relative error of the outputs
(and buffers), of the inputs' gradients, and of the parameters'. 0 is equal to the bit. A number
below a tenth of its tensor's largest, or below 0.01, counts as that limit in the comparison. The
highest error allowed is 1e-5.

`make oracle` computes the cases with PyTorch. `cargo test -p worker` compares with recorded results
of PyTorch. Both also compare each layer's initialisation, and check that a backward pass in halves
and a recomputed one have the same bits.

| layer | cases | outputs | input gradients | parameter gradients |
| --- | ---: | ---: | ---: | ---: |
"""
# The number of fresh layers from which PyTorch's initialisation is measured; as many as the test
# draws.
DRAWS = 1000


def functions(torch):
    """What has no class in torch.nn, as functions of the inputs and the layer's arguments."""

    def part(x, dim=0, start=None, end=None, step=1):
        places = range(x.shape[dim])[start:end:step]
        return x.index_select(dim, torch.tensor(places))

    def add(*inputs, number=None):
        total = functools.reduce(torch.add, inputs)
        return total if number is None else total + number

    return {
        "Abs": torch.abs,
        "Add": add,
        "Chunk": torch.chunk,
        "Clamp": torch.clamp,
        "Concat": lambda *inputs, dim: torch.cat(inputs, dim),
        "Div": torch.div,
        "Exp": torch.exp,
        "Expand": torch.Tensor.expand,
        "Flip": lambda x, dims: torch.flip(x, dims if isinstance(dims, tuple) else (dims,)),
        "Index": lambda x, index, dim=0: x[(slice(None),) * (dim % x.dim()) + (index,)],
        "MaskedFill": torch.masked_fill,
        "MatMul": torch.matmul,
        "Mean": torch.mean,
        "Mul": lambda *inputs: functools.reduce(torch.mul, inputs),
        "Pad": torch.nn.functional.pad,
        "Permute": torch.permute,
        "Reshape": torch.reshape,
        "Roll": torch.roll,
        "Rsqrt": torch.rsqrt,
        "Scale": lambda x, factor: x * factor,
        "Select": torch.select,
        "Slice": part,
        "Split": lambda x, split_size_or_sections, dim=0: torch.split(
            x, split_size_or_sections, dim
        ),
        "Sqrt": torch.sqrt,
        "Squeeze": torch.squeeze,
        "Stack": lambda *inputs, dim=0: torch.stack(inputs, dim),
        "Sub": torch.sub,
        "Sum": torch.sum,
        "Transpose": torch.transpose,
        "Unsqueeze": torch.unsqueeze,
    }


def make(torch, case):
    """The layer of a case: a module, and a function of the inputs."""
    ((kind, arguments),) = case["layer"].items()
    arguments = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
    function = functions(torch).get(kind)
    if function is not None:
        return torch.nn.Module(), lambda *inputs: function(*inputs, **arguments)
    special = getattr(layer_modules, kind, None)
    if special is not None:
        return special(torch, **arguments)
    module = getattr(torch.nn, kind)(**arguments)
    return module, module


def drawn(torch, given, batch):
    """An input: normal numbers of a shape, perhaps times a number, or numbers above a bound, or
    whole numbers below one, or true and false."""
    given = {"shape": given, "times": 1} if isinstance(given, list) else given
    shape = [batch if size == "batch" else size for size in given["shape"]]
    if "above" in given:
        return (torch.rand(shape) + given["above"]).requires_grad_()
    if "times" in given:
        return (torch.randn(shape) * given["times"]).requires_grad_()
    if given.get("dtype") == "bool":
        return torch.rand(shape) < 0.5
    return torch.randint(given["below"], shape)


def fill(torch, module):
    """Numbers that differ from each other and from what layers begin with. A variance is above
    zero."""
    for parameter in module.parameters():
        parameter.data.normal_(std=0.5)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(
                torch.rand(buffer.shape) + 0.5 if "var" in name else torch.randn(buffer.shape)
            )


def record(torch, case, path):
    """Runs a case forward and back, and writes all that went in and came out, as
    tests/layers/README.md says."""
    torch.manual_seed(zlib.crc32(case["name"].encode()))
    tensors = {f"init.{name}": numbers for name, numbers in initial(torch, case).items()}
    module, function = make(torch, case)
    module.train(not case.get("eval", False))
    fill(torch, module)
    tensors.update(
        {f"state.{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    )
    first = case["inputs"][0]
    batch = (first if isinstance(first, list) else first["shape"] or [None])[0]
    inputs = [drawn(torch, given, batch) for given in case["inputs"]]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
    tensors.update({f"input.{port}": tensor for port, tensor in enumerate(inputs)})
    tensors.update({f"output.{port}": tensor for port, tensor in enumerate(outputs)})
    tensors.update({f"buffer.{name}": tensor for name, tensor in module.named_buffers()})
    if module.training:
        grads = [torch.randn(output.shape) for output in outputs]
        leaves = {
            f"input_grad.{port}": leaf for port, leaf in enumerate(inputs) if leaf.requires_grad
        }
        leaves.update({f"param_grad.{name}": leaf for name, leaf in module.named_parameters()})
        found = torch.autograd.grad(outputs, list(leaves.values()), grads) if leaves else []
        tensors.update({f"grad.{port}": tensor for port, tensor in enumerate(grads)})
        tensors.update(zip(leaves, found))
    tensor_file.write(path, tensor_file.plain(tensors))


def initial(torch, case):
    """Mean, standard deviation and largest size of each parameter's elements over many fresh
    layers."""
    fresh = [dict(make(torch, case)[0].named_parameters()) for _ in range(DRAWS)]
    all_of = {
        name: torch.stack([parameters[name].detach() for parameters in fresh]).double()
        for name in fresh[0]
    }
    figures = {
        name: (drawn.mean(), drawn.std(correction=0), drawn.abs().max())
        for name, drawn in all_of.items()
    }
    return {name: torch.stack(of_one).float() for name, of_one in figures.items()}


def record_all(torch, folder):
    for case in json.loads(CASES.read_text()):
        record(torch, case, folder / f"{case['name']}.safetensors")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if pytorch.version() != setup_libtorch.VERSION:
        sys.exit(
            f"layer_oracle: {sys.executable} has no torch {setup_libtorch.VERSION}; `make oracle` "
            "fetches one"
        )
    torch = pytorch.load()
    torch.set_num_threads(1)
    if options.record:
        shutil.rmtree(RECORDED, ignore_errors=True)
        RECORDED.mkdir()
        record_all(torch, RECORDED)
        return
    with tempfile.TemporaryDirectory() as fresh:
        record_all(torch, Path(fresh))
        command = [
            "cargo",
            "test",
            "--package",
            "worker",
            "--lib",
            "engine::tests::pytorch::",
            "--",
            "--nocapture",
        ]
        environment = {**os.environ, "BOSSMAN_RECORDED_LAYERS": fresh}
        done = subprocess.run(
            command,
            cwd=setup_libtorch.CHECKOUT,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        print(done.stdout, end="")
        if options.page and done.returncode == 0:
            PAGE.write_text(page(done.stdout), encoding="utf-8")
        sys.exit(done.returncode)


def page(printed):
    """docs/reference/parity.md, of the table that the test prints: the worst error of each kind of
    layer."""
    kinds = {case["name"]: next(iter(case["layer"])) for case in json.loads(CASES.read_text())}
    worst = {}
    for line in printed.splitlines():
        name, *errors = line.split() or [""]
        if name in kinds and len(errors) == 3:
            numbers = [None if error == "-" else float(error) for error in errors]
            of_kind = worst.setdefault(kinds[name], (0, [None] * 3))
            both = zip(of_kind[1], numbers)
            most = [max((n for n in pair if n is not None), default=None) for pair in both]
            worst[kinds[name]] = (of_kind[0] + 1, most)
    missing = set(kinds.values()) - set(worst)
    if missing:
        sys.exit(f"layer_oracle: the test printed nothing of {', '.join(sorted(missing))}")

    def column(error):
        return "-" if error is None else "0" if error == 0 else f"{error:.0e}"

    rows = [
        f"| {kind} | {count} | {' | '.join(map(column, errors))} |"
        for kind, (count, errors) in worst.items()
    ]
    return HEAD.format(kinds=len(worst), cases=len(kinds)) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
