"""Reads and writes safetensors files with nothing but the standard library."""

import array
import json
import math
import struct

_CODES = {"F32": "f", "I64": "q", "BOOL": "B"}


def write_bytes(path, tensors):
    """Writes `tensors`, a dict from name to (dtype, shape, content) with a content like bytes."""
    head, end = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        begin, end = end, end + len(content)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            file.write(content)


def read_bytes(path):
    """The tensors of a file as `write_bytes` takes them."""
    file = path.read_bytes()
    (size,) = struct.unpack_from("<Q", file)
    head, body = json.loads(file[8 : 8 + size]), memoryview(file)[8 + size :]
    head.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], bytes(body[slice(*entry["data_offsets"])]))
        for name, entry in head.items()
    }


def write(path, tensors):
    """Writes `tensors`, a dict from name to (dtype, shape, flat list of numbers).

    dtype is "F32", "I64", or "BOOL" of 0 and 1.
    """
    encoded = {
        name: (dtype, shape, array.array(_CODES[dtype], numbers).tobytes())
        for name, (dtype, shape, numbers) in tensors.items()
    }
    write_bytes(path, encoded)


def read(path):
    """The tensors of a file as `write` takes them."""
    tensors = {}
    for name, (dtype, shape, content) in read_bytes(path).items():
        numbers = array.array(_CODES[dtype], content)
        if len(numbers) != math.prod(shape):
            raise ValueError(f"{path}: {name} holds {len(numbers)} numbers, its shape is {shape}")
        tensors[name] = (dtype, shape, numbers.tolist())
    return tensors


def plain(tensors):
    """PyTorch tensors by name as `write` takes them: floats as F32, all others as I64."""
    found = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        floats = tensor.is_floating_point()
        numbers = (tensor if floats else tensor.long()).flatten().tolist()
        found[name] = ("F32" if floats else "I64", list(tensor.shape), numbers)
    return found
