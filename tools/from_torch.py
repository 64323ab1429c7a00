#!/usr/bin/env python3
"""Writes a PyTorch module as a model file and its weights.

    tools/from_torch.py my_model.py:net --input 'x: [batch, 3, 32, 32]' --to folder

`my_model.py:net` is a file and a module in it, or a function that makes one. The folder gets
`model.yaml` and `model.safetensors`, under PyTorch's names:

    bossman check folder/model.yaml
    bossman train run.yaml --weights folder/model.safetensors  # with `model: folder/model.yaml`

`names.json` has the module's names of each tensor. `constants.safetensors` has the tensors that are
no weights, such as masks, and `rest.safetensors` those of the module that no layer has; each is
there if it is needed. `tools/to_torch.py` makes the module's state_dict of trained weights.

`--input` is given once for each input. If all have names of arguments of forward(), they are these
arguments, else they are given in order.

Needs a Python with torch. It runs the code of the file it is given, as `import` does.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import setup_libtorch
from torch_import import names
from torch_import.modules import arguments
from torch_import.problem import Unknown
from torch_import.sequential import is_plain, layers, own_names, state, text
from torch_import.weights import DTYPES, save

__all__ = ["DTYPES", "Unknown", "arguments", "layers", "save", "text", "write"]


def trace(module, inputs, name="from-torch"):
    """The translation of a module's graph."""
    # They import torch, which those who only save tensors may load later, in their own way.
    from torch_import.traced import Traced

    return Traced(module, list(inputs), name)


def write(module, inputs, folder, name="from-torch"):
    """Writes the files; the names of parameters that no layer has."""
    folder = Path(folder)
    if not is_plain(module):
        traced = trace(module, inputs, name)
        traced.write(folder)
        return traced.unused()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(text(module, inputs, name), encoding="utf-8")
    save(folder / "model.safetensors", state(module))
    names.write(folder, own_names(module), [])
    return []


def load(where):
    """The module of `file.py:name`."""
    path, _, name = where.partition(":")
    if not name or not Path(path).is_file():
        sys.exit(f"from_torch: `{where}`: expected a Python file and a name in it, as net.py:model")
    spec = importlib.util.spec_from_file_location("user_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        sys.exit(f"from_torch: {path} has no `{name}`")
    is_module = hasattr(found, "state_dict") and not isinstance(found, type)
    return found if is_module else found()


def programs():
    """The folder of the built programs: where cargo puts them here, or where `make` does."""
    own = setup_libtorch.CHECKOUT / "target"
    targets = [Path(os.environ.get("CARGO_TARGET_DIR") or own), own]
    folders = [target / profile for target in targets for profile in ("release", "debug")]
    return next((folder for folder in folders if (folder / "bossman").is_file()), folders[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", help="file.py:name of a module, or of a function that makes one")
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        help="an input as in a model file: 'x: [batch, 8]', or "
        "'ids: {shape: [batch, 16], dtype: int64}'",
    )
    parser.add_argument("--to", required=True, type=Path, help="the folder to write to")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare outputs, losses and gradients of BossMan's programs with PyTorch",
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=programs(),
        help="with --check: the folder of bossman and worker [default: %(default)s]",
    )
    chosen = parser.parse_args()
    # Here, because the twins of the examples, which import this file, are called pytorch.py, too.
    import pytorch

    pytorch.load()
    name = chosen.module.rpartition(":")[2]
    try:
        module = load(chosen.module)
        unused = write(module, chosen.input, chosen.to, name)
        for parameter in unused:
            print(f"from_torch: nothing uses {parameter}, so the model file has no such tensor")
        if chosen.check:
            from torch_import import check

            traced = trace(module, chosen.input, name)
            if is_plain(module):
                traced.text = text(module, chosen.input, name)
            fine = True
            for figure in check.check(traced, chosen.programs):
                print(figure, flush=True)
                fine &= figure.right
            sys.exit(not fine)
    except Unknown as problem:
        sys.exit(f"from_torch: {problem}")


if __name__ == "__main__":
    main()
