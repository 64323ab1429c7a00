"""Writes PyTorch tensors to safetensors files."""

import ctypes

import tensor_file

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
    found = DTYPES.get(str(tensor.dtype)[len("torch.") :])
    if found is None:
        raise Unknown(f"{name} is {tensor.dtype}, which BossMan has not")
    return found


def memory(tensor):
    """The bytes of a contiguous tensor, without a copy."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
