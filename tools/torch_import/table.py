"""The table of aten functions that are layers, and what those that fill it share."""

import re

import torch

HANDLERS = {}
# Layers that compute along the last dimensions, as many as the name says.
WINDOWS = re.compile(r"(?:Conv|ConvTranspose|MaxPool|AvgPool|AdaptiveAvgPool|AdaptiveMaxPool)(\d)d")


def function(*names):
    """Enters a function (of a translation, a node and aten's arguments) under aten's names."""

    def enter(handler):
        for name in names:
            HANDLERS[name] = handler
        return handler

    return enter


def fake(value):
    """A tensor that has the shape and dtype of a value, a parameter or a constant."""
    return value.fake if hasattr(value, "fake") else value.tensor


def is_constant(value):
    return hasattr(value, "trials")


def is_tensor(value):
    return hasattr(value, "fake") or hasattr(value, "tensor")


def number(size):
    """A size as a number; None if it is known only at run time."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression) if expression.is_number else None
    return size


def same(first, second):
    """Whether two sizes are equal for every batch."""
    if isinstance(first, torch.SymInt) or isinstance(second, torch.SymInt):
        return str(first) == str(second)
    return first == second


def same_shape(first, second):
    return len(first) == len(second) and all(map(same, first, second))


def place(dim, rank):
    """A dimension counted from the first."""
    return dim + rank if dim < 0 else dim


def neighbours(kind, arguments, rank):
    """The dimensions along which a layer computes an element of several ones, or moves it."""
    windows = WINDOWS.fullmatch(kind)
    if windows:
        return range(-int(windows[1]), 0)
    if kind in ("Upsample", "GroupNorm", "InstanceNorm2d"):
        return range(2, rank)
    if kind == "Pad":
        pairs = zip(arguments["pad"][::2], arguments["pad"][1::2])
        return [-1 - place for place, pair in enumerate(pairs) if any(pair)]
    return []


def refuse_batch(translation, node, value, dims):
    """Refuses to compute across samples: a layer sees a part of the batch only."""
    shape = fake(value).shape
    if shape and any(translation.has_batch(shape[dim]) for dim in dims):
        raise translation.unknown(
            node, "it computes across the samples of a batch, of which a layer sees a part only"
        )
