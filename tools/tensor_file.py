"""Reads and writes safetensors files of float32, int64 and bool tensors with nothing but the standard library."""

import array
import json
import math
import struct

_CODES = {"F32": "f", "I64": "q", "BOOL": "B"}


def write(path, tensors):
    """Writes `tensors`, a dict from name to (dtype, shape, flat list of numbers); dtype is "F32", "I64", or "BOOL" of 0 and 1."""
    head, body = {}, b""
    for name, (dtype, shape, numbers) in tensors.items():
        content = array.array(_CODES[dtype], numbers).tobytes()
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read(path):
    """What `write` was given."""
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    head = json.loads(content[8 : 8 + size])
    head.pop("__metadata__", None)
    tensors = {}
    for name, entry in head.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        numbers = array.array(_CODES[entry["dtype"]], content[begin:end])
        if len(numbers) != math.prod(entry["shape"]):
            raise ValueError(f"{path}: {name} holds {len(numbers)} numbers, its shape is {entry['shape']}")
        tensors[name] = (entry["dtype"], entry["shape"], numbers.tolist())
    return tensors
