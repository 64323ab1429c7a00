"""Writes PyTorch tensors to safetensors files."""

import ctypes
import sys

import tensor_file

from .names import REST
from .problem import Unknown

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
# What safetensors files have and BossMan has not.
MORE_DTYPES = {
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "complex64": "C64",
}


def kept(tensors):
    """Those tensors whose types safetensors files have. Warns of the others."""
    known = {**DTYPES, **MORE_DTYPES}
    found = {name: tensor for name, tensor in tensors.items() if short(tensor) in known}
    for name in tensors.keys() - found.keys():
        said = f"{name} is {tensors[name].dtype}, so it is not kept for to_torch.py"
        print(f"from_torch: warning: {said}", file=sys.stderr)
    return found


def short(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def save_rest(folder, tensors):
    """Writes the tensors that no layer has, if there are any."""
    if tensors:
        save(folder / REST, tensors, {**DTYPES, **MORE_DTYPES})
    else:
        (folder / REST).unlink(missing_ok=True)


def save(path, tensors, dtypes=None):
    """Writes PyTorch tensors by name to a safetensors file."""
    # They must live until they are written, because `memory` does not own what it shows.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    shown = {
        name: (code(name, tensor, dtypes or DTYPES), list(tensor.shape), memory(tensor))
        for name, tensor in tensors.items()
    }
    tensor_file.write_bytes(path, shown)


def code(name, tensor, dtypes):
    """The format's name of a tensor's type."""
    found = dtypes.get(short(tensor))
    if found is None:
        raise Unknown(f"{name} is {tensor.dtype}, which BossMan has not")
    return found


def memory(tensor):
    """The bytes of a contiguous tensor, without a copy."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
