#!/usr/bin/env python3
"""Turns weights under BossMan's names into a state_dict of the module that from_torch.py has read.

    tools/to_torch.py runs/latest --names net/names.json --to state_dict.safetensors
    tools/to_torch.py weights.safetensors --names net/names.json --to state_dict.safetensors

The weights are those of a run, for which `bossman export` is called, or a file that it has written:
a safetensors file, or the index of several. In Python:

    module.load_state_dict(safetensors.torch.load_file("state_dict.safetensors"))

Each tensor has all names that the module has for it. Tensors that no layer has, such as masks, are
those of the module as it was read, from `rest.safetensors` beside the names. Tensors are copied one
by one as they are in the files, so there is no limit of memory. Needs neither torch nor others.
"""

import argparse
import contextlib
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from from_torch import programs
from torch_import.names import REST, read

PART = 1 << 22
MOST_HEAD = 100 << 20


class Wrong(Exception):
    """Files that do not fit: which, and what of them."""


# The bytes of an element, by the format's names of types.
BYTES = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"], 1),
    **dict.fromkeys(["U16", "I16", "F16", "BF16"], 2),
    **dict.fromkeys(["U32", "I32", "F32"], 4),
    **dict.fromkeys(["U64", "I64", "F64", "C64"], 8),
}


class Tensor:
    """A tensor in a file: where its bytes are."""

    def __init__(self, path, begin, end, entry):
        self.path, self.dtype, self.shape = path, entry["dtype"], entry["shape"]
        first, last = entry["data_offsets"]
        numbers = [first, last, *self.shape]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("expected whole numbers")
        self.begin, self.size = begin + first, last - first
        if self.size != math.prod(self.shape) * BYTES[self.dtype] or begin + last > end:
            raise ValueError("a tensor of another size")

    def copy(self, out):
        """Writes its bytes to another file."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            left = self.size
            while left:
                part = file.read(min(PART, left))
                if not part:
                    raise Wrong(f"{self.path} ends too early")
                out.write(part)
                left -= len(part)


def tensors(path):
    """The tensors of a safetensors file, or those that an index names, by name."""
    return of_index(path) if path.name.endswith(".json") else of_file(path)


def of_index(path):
    """The tensors of the files of an index, each from the file that it names for it."""
    index = loaded(path)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(map(is_file_name, places.values())):
        raise Wrong(f"{path} is not an index of safetensors files")
    files = {name: of_file(path.parent / name) for name in set(places.values())}
    missing = sorted(name for name, file in places.items() if name not in files[file])
    if missing:
        raise Wrong(f"{path} names tensors that its files do not have: {', '.join(missing)}")
    return {name: files[file][name] for name, file in places.items()}


def is_file_name(name):
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def of_file(path):
    """The tensors of a safetensors file by name."""
    end = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else MOST_HEAD + 1
        text = file.read(size) if size <= MOST_HEAD else b""
    try:
        head = json.loads(text)
        head.pop("__metadata__", None)
        return {name: Tensor(path, 8 + size, end, entry) for name, entry in head.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise Wrong(f"{path} is not a safetensors file, or is damaged") from problem


def loaded(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise Wrong(f"{path} is not JSON: {problem}") from problem


def renamed(found, names_path):
    """The tensors under the module's names, in the order of these."""
    try:
        names, rest = read(loaded(names_path))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise Wrong(f"{names_path} is not a names.json of from_torch.py") from problem
    beside = names_path.parent / REST
    others = tensors(beside) if rest and beside.is_file() else {}
    missing = [name for name in names if name not in found]
    missing += [f"{name} (of {REST})" for name in rest if name not in others]
    surplus = [name for name in found if name not in names]
    problems = [
        f"{what} {', '.join(sorted(which))}"
        for what, which in (("missing", missing), ("surplus", surplus))
        if which
    ]
    if problems:
        raise Wrong(f"the weights do not fit {names_path}: {'; '.join(problems)}")
    made = {own: found[name] for name, all_own in names.items() for own in all_own}
    made.update({name: others[name] for name in rest})
    return dict(sorted(made.items()))


def write(path, made):
    """Writes tensors of files to a safetensors file, which is there as a whole or not at all."""
    head, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in made.items():
        offsets = [end, end + tensor.size]
        head[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        end += tensor.size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for tensor in made.values():
                tensor.copy(out)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def convert(weights, names, to):
    """Writes the state_dict of weights under BossMan's names."""
    write(to, renamed(tensors(weights), names))


def export(run, folder, program):
    """The weights of a run in a file in this folder."""
    to = Path(folder) / "weights.safetensors"
    command = [program, "export", run, "--format", "safetensors", "--to", to]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise Wrong(f"`{' '.join(map(str, command))}` failed")
    return to


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "weights",
        type=Path,
        help="a run (its folder or file), a safetensors file, or the index of several",
    )
    parser.add_argument("--names", required=True, type=Path, help="names.json of from_torch.py")
    parser.add_argument("--to", required=True, type=Path, help="the safetensors file to write")
    parser.add_argument(
        "--bossman",
        type=Path,
        default=programs() / "bossman",
        help="the program that exports a run [default: %(default)s]",
    )
    chosen = parser.parse_args()
    try:
        if chosen.weights.name.endswith((".safetensors", ".json")):
            convert(chosen.weights, chosen.names, chosen.to)
            return
        # Beside the result, because it is as large.
        with tempfile.TemporaryDirectory(dir=chosen.to.absolute().parent) as folder:
            weights = export(chosen.weights, folder, chosen.bossman)
            convert(weights, chosen.names, chosen.to)
    except (Wrong, OSError) as problem:
        sys.exit(f"to_torch: {problem}")


if __name__ == "__main__":
    main()
