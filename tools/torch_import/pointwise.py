"""Functions of each element by itself, and softmax, as layers."""

import math

import torch

from .operators import converted
from .table import fake, function, is_constant, is_tensor, refuse_batch, same

PLAIN = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "selu": "SELU",
    "silu": "SiLU",
    "mish": "Mish",
    "sigmoid": "Sigmoid",
    "log_sigmoid": "LogSigmoid",
    "tanh": "Tanh",
    "hardsigmoid": "Hardsigmoid",
    "hardswish": "Hardswish",
    "rsqrt": "Rsqrt",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "abs": "Abs",
}


def plain(kind):
    return lambda t, node, x: t.emit(node, kind, {}, [x])


for name, kind in PLAIN.items():
    function(name)(plain(kind))


def given(**arguments):
    """Arguments that are not those that PyTorch has without them."""
    return {name: value for name, (value, default) in arguments.items() if value != default}


@function("gelu")
def gelu(t, node, x, approximate="none"):
    return t.emit(node, "GELU", given(approximate=(approximate, "none")), [x])


@function("leaky_relu")
def leaky_relu(t, node, x, negative_slope=0.01):
    return t.emit(node, "LeakyReLU", given(negative_slope=(negative_slope, 0.01)), [x])


@function("elu")
def elu(t, node, x, alpha=1.0, scale=1, input_scale=1):
    if scale != 1 or input_scale != 1:
        raise t.no_layer(node, "an ELU with scales")
    return t.emit(node, "ELU", given(alpha=(alpha, 1.0)), [x])


@function("celu")
def celu(t, node, x, alpha=1.0):
    return t.emit(node, "CELU", given(alpha=(alpha, 1.0)), [x])


@function("softplus")
def softplus(t, node, x, beta=1, threshold=20):
    return t.emit(node, "Softplus", given(beta=(beta, 1), threshold=(threshold, 20)), [x])


@function("hardtanh")
def hardtanh(t, node, x, min_val=-1, max_val=1):
    return t.emit(node, "Hardtanh", given(min_val=(min_val, -1), max_val=(max_val, 1)), [x])


@function("hardshrink")
def hardshrink(t, node, x, lambd=0.5):
    return t.emit(node, "Hardshrink", given(lambd=(lambd, 0.5)), [x])


@function("softshrink")
def softshrink(t, node, x, lambd=0.5):
    return t.emit(node, "Softshrink", given(lambd=(lambd, 0.5)), [x])


@function("threshold")
def threshold(t, node, x, threshold, value):
    return t.emit(node, "Threshold", {"threshold": threshold, "value": value}, [x])


@function("clamp", "clip")
def clamp(t, node, x, min=None, max=None):
    if is_tensor(min) or is_tensor(max):
        raise t.no_layer(node, "its bounds are tensors")
    bounds = {"min": min, "max": max}
    return t.emit(
        node, "Clamp", {name: bound for name, bound in bounds.items() if bound is not None}, [x]
    )


@function("clamp_min")
def clamp_min(t, node, x, min):
    return clamp(t, node, x, min)


@function("clamp_max")
def clamp_max(t, node, x, max):
    return clamp(t, node, x, None, max)


@function("glu")
def glu(t, node, x, dim=-1):
    refuse_batch(t, node, x, [dim])
    return t.emit(node, "GLU", given(dim=(dim, -1)), [x])


def normal(kind):
    def handler(t, node, x, dim, half_to_float=False):
        dtype = half_to_float
        refuse_batch(t, node, x, [dim])
        if isinstance(dtype, torch.dtype):
            x = converted(t, node, x, dtype)
        return t.emit(node, kind, {"dim": dim}, [x])

    return handler


function("softmax", "_softmax")(normal("Softmax"))
function("log_softmax", "_log_softmax")(normal("LogSoftmax"))


def drop(kind):
    def handler(t, node, x, p, train):
        if train and p and not t.training:
            raise t.unknown(node, "it drops elements in evaluation, too; give it self.training")
        if not train or p == 0 or not t.random:
            return x.copy() if hasattr(x, "copy") else x
        if kind == "Dropout2d" and fake(x).dim() != 4:
            raise t.unknown(
                node, "it drops channels of other than [batch, channels, height, width]"
            )
        return t.emit(node, kind, {"p": p}, [x])

    return handler


function("dropout")(drop("Dropout"))
function("feature_dropout")(drop("Dropout2d"))


@function("masked_fill")
def masked_fill(t, node, x, mask, value):
    return filled(t, node, x, mask, value)


@function("where")
def where(t, node, condition, x, other):
    """`where(c, x, number)` fills where c is false; `where(c, number, x)` where it is true."""
    replaced = as_number(x)
    if replaced is not None:
        if not is_tensor(other):
            dtype = node.meta["val"].dtype
            other = t.stand_in([torch.full((1,), other, dtype=dtype) for _ in range(2)])
        return filled(t, node, other, condition, replaced)
    replaced = as_number(other)
    if replaced is None:
        raise t.no_layer(node, "BossMan chooses between a tensor and one number (MaskedFill)")
    if not is_constant(condition):
        raise t.no_layer(
            node, "BossMan fills where a mask is true; give the mask the other way round"
        )
    turned = type(condition)([~trial for trial in condition.trials])
    return filled(t, node, x, turned, replaced)


def as_number(value):
    if isinstance(value, (int, float)):
        return value
    return value.number() if is_constant(value) else None


def covered(t, shape, *parts):
    """Whether each size of a result is that of one of these. If not, a third tensor, which repeats
    one number, is larger."""

    def has(part, place):
        if place > fake(part).dim():
            return False
        if not is_constant(part):
            return same(fake(part).shape[-place], shape[-place])
        sizes = [t.exported.size(shape[-place], trial) for trial in range(2)]
        return sizes == [trial.shape[-place] for trial in part.trials]

    return all(any(has(part, place) for part in parts) for place in range(1, len(shape) + 1))


def filled(t, node, x, mask, value):
    found = as_number(value)
    if found is None:
        raise t.no_layer(node, "it fills with a tensor, and BossMan with one number")
    if math.isnan(found):
        raise t.no_layer(node, "it fills with NaN")
    if not covered(t, node.meta["val"].shape, x, mask):
        raise t.no_layer(node, "what it fills with is larger than both")
    # The result has the larger shape of both, and the layer's first input has it.
    return t.emit(node, "MaskedFill", {"value": float(found)}, [x, mask])
