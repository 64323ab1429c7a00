"""Sums, products and means as layers."""

import torch

from .operators import converted
from .table import fake, function, is_constant, is_tensor, place, refuse_batch, same_shape


def scalar(t, node, value, other):
    """The number that an operand is, if it is one and does not change the other's shape."""
    if isinstance(value, (int, float)):
        return value
    if is_constant(value) and same_shape(fake(other).shape, node.meta["val"].shape):
        return value.number()
    return None


def size_of_run(t, node, *values):
    """Refuses sizes that are known only at run time as operands."""
    if any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in values):
        raise t.unknown(node, "it computes with the batch size as a number")


def cast(t, node, value):
    """A tensor in the result's dtype."""
    return converted(t, node, value, node.meta["val"].dtype)


@function("add")
def add(t, node, x, y, alpha=1):
    size_of_run(t, node, x, y, alpha)
    if not is_tensor(x) or scalar(t, node, x, y) is not None:
        # The number comes second, and the tensor keeps its factor.
        x, y = times(t, node, y, alpha), x
    elif alpha != 1:
        y = times(t, node, y, alpha) if is_tensor(y) else y * alpha
    found = scalar(t, node, y, x)
    if found is not None:
        return plus(t, node, x, found)
    return t.emit(node, "Add", {}, [cast(t, node, x), cast(t, node, y)])


def plus(t, node, x, found):
    if found == 0:
        return same(t, node, x)
    whole_numbers(t, node, x, found)
    return t.emit(node, "Add", {"number": found}, [cast(t, node, x)])


def same(t, node, x):
    """x itself, in the result's dtype."""
    found = cast(t, node, x)
    return found.copy() if hasattr(found, "copy") else found


def whole_numbers(t, node, x, found):
    if not node.meta["val"].is_floating_point() and not isinstance(found, (int, bool)):
        raise t.no_layer(node, f"it makes {node.meta['val'].dtype} of fractions")


def times(t, node, x, factor):
    """x times a number; also of a constant."""
    if is_constant(x):
        return type(x)([trial * factor for trial in x.trials])
    if factor == 1:
        return same(t, node, x)
    return t.emit(node, "Scale", {"factor": factor}, [x])


@function("sub", "subtract")
def sub(t, node, x, y, alpha=1):
    size_of_run(t, node, x, y, alpha)
    if alpha != 1:
        y = times(t, node, y, alpha) if is_tensor(y) else y * alpha
    found = scalar(t, node, y, x) if is_tensor(x) else None
    if found is not None:
        return plus(t, node, x, -found)
    found = scalar(t, node, x, y)
    if found is not None:
        return plus(t, node, times(t, node, y, -1), found)
    return t.emit(node, "Sub", {}, [cast(t, node, x), cast(t, node, y)])


@function("rsub")
def rsub(t, node, x, y, alpha=1):
    return sub(t, node, y, times(t, node, x, alpha))


@function("mul", "multiply")
def mul(t, node, x, y):
    size_of_run(t, node, x, y)
    if not is_tensor(x) or is_constant(x):
        x, y = y, x
    found = scalar(t, node, y, x)
    if found is not None:
        whole_numbers(t, node, x, found)
        return times(t, node, cast(t, node, x), found)
    return t.emit(node, "Mul", {}, [cast(t, node, x), cast(t, node, y)])


@function("div", "true_divide", "divide")
def div(t, node, x, y, rounding_mode=None):
    size_of_run(t, node, x, y)
    if rounding_mode is not None:
        raise t.no_layer(node, "it rounds")
    found = scalar(t, node, y, x) if is_tensor(x) else None
    if found:
        return times(t, node, cast(t, node, x), 1 / found)
    if found is not None:
        # 1 / 0 is an error in Python, and infinite in PyTorch.
        y = t.stand_in([torch.full((1,), found, dtype=node.meta["val"].dtype) for _ in range(2)])
    if is_constant(y):
        inverse = type(y)([1 / trial for trial in y.trials])
        return t.emit(node, "Mul", {}, [cast(t, node, x), cast(t, node, inverse)])
    if not is_tensor(x):
        x = t.stand_in([torch.full((1,), x, dtype=node.meta["val"].dtype) for _ in range(2)])
    return t.emit(node, "Div", {}, [cast(t, node, x), cast(t, node, y)])


@function("reciprocal")
def reciprocal(t, node, x):
    return div(t, node, 1.0, x)


@function("neg", "negative")
def neg(t, node, x):
    return times(t, node, x, -1)


@function("square")
def square(t, node, x):
    return power(t, node, x, 2)


@function("pow")
def power(t, node, x, exponent):
    # A power of whole numbers with a fraction as exponent, also 2.0, is a fraction.
    if exponent in (2, 3):
        return t.emit(node, "Mul", {}, [cast(t, node, x)] * int(exponent))
    if exponent == 1:
        return same(t, node, x)
    if exponent == -0.5:
        return t.emit(node, "Rsqrt", {}, [cast(t, node, x)])
    raise t.no_layer(node, "BossMan has the powers 1, 2, 3 and -0.5")


@function("bitwise_and", "logical_and", "__and__")
def both(t, node, x, y):
    """A product of truth values is true if both are."""
    return t.emit(node, "Mul", {}, [truth(t, node, x), truth(t, node, y)])


@function("bitwise_or", "logical_or", "__or__")
def either(t, node, x, y):
    return t.emit(node, "Add", {}, [truth(t, node, x), truth(t, node, y)])


def truth(t, node, value):
    if not is_tensor(value) or fake(value).dtype != torch.bool:
        raise t.no_layer(node, "its operands are not truth values")
    return value


@function("matmul", "bmm", "mm")
def matmul(t, node, x, y):
    """A vector becomes a matrix of one row or column, and the product loses it again."""
    first, second = fake(x).dim() == 1, fake(y).dim() == 1
    inner, outer = fake(x).shape[-1], None if second else fake(y).shape[-1]
    if any(size is not None and t.has_batch(size) for size in (inner, outer)):
        raise t.unknown(node, "it multiplies samples of a batch with each other")
    if first:
        x = t.emit(node, "Unsqueeze", {"dim": 0}, [x])
    if second:
        y = t.emit(node, "Unsqueeze", {"dim": 1}, [y])
    made = t.emit(node, "MatMul", {}, [x, y])
    if second:
        made = t.emit(node, "Squeeze", {"dim": -1}, [made])
    if first:
        made = t.emit(node, "Squeeze", {"dim": -1 if second else -2}, [made])
    return made


@function("addmm", "baddbmm")
def addmm(t, node, bias, x, y, beta=1, alpha=1):
    product = times(t, node, t.emit(node, "MatMul", {}, [x, y]), alpha)
    return t.emit(node, "Add", {}, [product, times(t, node, bias, beta)])


def reduce(kind):
    def handler(t, node, x, dim=None, keepdim=False, dtype=None):
        rank = fake(x).dim()
        dims = [dim] if isinstance(dim, int) else list(range(rank)) if not dim else dim
        dims = [place(one, rank) for one in dims]
        refuse_batch(t, node, x, dims)
        if dtype is not None:
            x = converted(t, node, x, dtype)
        arguments = {"dim": dims[0] if len(dims) == 1 else dims}
        return t.emit(node, kind, {**arguments, **({"keepdim": True} if keepdim else {})}, [x])

    return handler


function("mean")(reduce("Mean"))
function("sum")(reduce("Sum"))


@function("scaled_dot_product_attention")
def attention(
    t,
    node,
    query,
    key,
    value,
    mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    for one in (query, key):
        refuse_batch(t, node, one, [-2])
    arguments = {}
    if dropout_p and not t.training:
        raise t.unknown(node, "it drops elements in evaluation, too; give 0 there")
    if dropout_p and t.random:
        arguments["dropout_p"] = dropout_p
    if is_causal:
        arguments["is_causal"] = True
    if scale is not None:
        arguments["scale"] = scale
    if enable_gqa:
        arguments["enable_gqa"] = True
    inputs = [query, key, value] + ([mask] if mask is not None else [])
    return t.emit(node, "ScaledDotProductAttention", arguments, inputs)
