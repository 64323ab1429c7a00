#!/usr/bin/env python3
"""Writes a PyTorch model as a model file and its weights: nn.Sequential, however nested, of layers
that BossMan has.

    tools/from_torch.py my_model.py:net --input 'x: [batch, 3, 32, 32]' --to folder

`my_model.py:net` is a file and a module in it, or a function that makes one. The folder gets
`model.yaml` and `model.safetensors`, under PyTorch's names:

    bossman check folder/model.yaml
    bossman train run.yaml --init folder/model.safetensors     # with `model: folder/model.yaml`

Needs a Python with torch. It runs the code of the file it is given, as `import` does.
"""

import argparse
import ctypes
import importlib.util
import inspect
import json
import sys
from pathlib import Path

import tensor_file

# Say where and how a layer computes, not what.
LEFT_OUT = {"device", "dtype", "inplace", "return_indices", "enable_nested_tensor", "mask_check"}


class Unknown(Exception):
    """A module that cannot be written."""


def layers(module, name=""):
    """[(name, module)] of all layers, in the order they run."""
    kind = type(module).__name__
    if kind == "Sequential":
        return [
            found
            for child, layer in module.named_children()
            for found in layers(layer, below(name, child))
        ]
    if kind == "TransformerEncoder":
        found = [
            (f"{below(name, 'layers')}.{number}", layer)
            for number, layer in enumerate(module.layers)
        ]
        return found + ([(below(name, "norm"), module.norm)] if module.norm is not None else [])
    if not type(module).__module__.startswith("torch.nn."):
        raise Unknown(
            f"{name or 'the model'} is a {kind}, whose forward() only Python knows; use "
            "nn.Sequential"
        )
    return [(name or "0", module)]


def below(name, child):
    return f"{name}.{child}" if name else child


def arguments(module):
    """The arguments that a layer was made with, less those that are PyTorch's defaults."""
    kind = type(module).__name__
    known = TRANSFORMER.get(kind, lambda _: {})(module)
    found = {}
    for parameter in list(inspect.signature(type(module).__init__).parameters.values())[1:]:
        name = parameter.name
        if name in LEFT_OUT or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in known:
            value = known[name]
        elif name in ("bias", "affine", "elementwise_affine") and not isinstance(
            getattr(module, name, None), bool
        ):
            value = getattr(module, "bias" if name == "bias" else "weight", None) is not None
        elif hasattr(module, name):
            value = getattr(module, name)
        else:
            raise Unknown(f"{kind} does not say what its {name} is")
        if value is None or plain(value) == plain(parameter.default):
            continue
        found[name] = plain(value)
    return found


def plain(value):
    """As YAML takes it; pairs of equal numbers are one number."""
    if isinstance(value, tuple | list):
        value = [plain(part) for part in value]
        return (
            value[0]
            if value and all(part == value[0] for part in value) and not isinstance(value[0], list)
            else value
        )
    return value


def encoder(layer):
    """Arguments that an encoder or decoder layer stores under other names."""
    import torch

    activation = "gelu" if layer.activation is torch.nn.functional.gelu else "relu"
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": activation,
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }


TRANSFORMER = {"TransformerEncoderLayer": encoder, "TransformerDecoderLayer": encoder}


def text(module, inputs, name="from-torch"):
    """The model file."""
    lines = [f"model: {name}", "inputs:", *(f"  {line}" for line in inputs), "layers:"]
    for path, layer in layers(module):
        kind, given = type(layer).__name__, arguments(layer)
        shown = ", ".join(f"{key}: {json.dumps(value)}" for key, value in given.items())
        lines.append(f"  - {kind}: {{{shown}}}" if given else f"  - {kind}:")
        lines.append(f'    name: "{path}"')
    return "\n".join(lines) + "\n"


def write(module, inputs, folder, name="from-torch"):
    """Writes both files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(text(module, inputs, name), encoding="utf-8")
    state = module.state_dict()
    if len(layers(module)) == 1 and layers(module)[0][1] is module:
        state = {f"0.{key}": value for key, value in state.items()}
    save(folder / "model.safetensors", state)


DTYPES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


def save(path, tensors):
    """Writes PyTorch tensors by name to a safetensors file."""
    # They must live until they are written, because `memory` does not own what it shows.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    shown = {
        name: (code(name, tensor), list(tensor.shape), memory(tensor))
        for name, tensor in tensors.items()
    }
    tensor_file.write_bytes(path, shown)


def code(name, tensor):
    """The format's name of a tensor's type."""
    found = DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if found is None:
        raise Unknown(f"{name} is {tensor.dtype}, which BossMan has not")
    return found


def memory(tensor):
    """The bytes of a contiguous tensor, without a copy."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""


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
    return found if hasattr(found, "state_dict") else found()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", help="file.py:name of a module, or of a function that makes one")
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        help="an input as in a model file: 'x: [batch, 8]'",
    )
    parser.add_argument("--to", required=True, type=Path, help="the folder to write to")
    chosen = parser.parse_args()
    try:
        write(load(chosen.module), chosen.input, chosen.to, chosen.module.rpartition(":")[2])
    except Unknown as problem:
        sys.exit(f"from_torch: {problem}")


if __name__ == "__main__":
    main()
