"""The inputs that the command line names, as in a model file."""

import re

from .problem import Unknown

DTYPES = "float32 float64 float16 bfloat16 int64 int32 uint8 bool".split()


class Input:
    """One input: its name, its sizes (numbers and words) and its dtype."""

    def __init__(self, name, sizes, dtype):
        self.name, self.sizes, self.dtype = name, sizes, dtype


def parse(line):
    """The input of `x: [batch, 8]` or `x: {shape: [batch, 8], dtype: int64}`."""
    found = re.fullmatch(
        r"\s*([\w-]+)\s*:\s*(?:\[([^\]]*)\]|\{\s*shape:\s*\[([^\]]*)\]\s*"
        r"(?:,\s*dtype:\s*(\w+)\s*)?\})\s*",
        line,
    )
    if not found:
        raise Unknown(
            f"the input `{line}`: expected `x: [batch, 8]` or "
            "`x: {shape: [batch, 8], dtype: int64}`"
        )
    name, short, long, dtype = found.groups()
    words = [word.strip() for word in (short if long is None else long).split(",")]
    sizes = [int(word) if word.isdigit() else word for word in words if word]
    if not sizes or isinstance(sizes[0], int):
        raise Unknown(f"the input {name}: its first size is the batch, a word as in [batch, 8]")
    if dtype and dtype not in DTYPES:
        raise Unknown(f"the input {name}: the dtype {dtype} is none of {', '.join(DTYPES)}")
    return Input(name, sizes, dtype or "float32")
