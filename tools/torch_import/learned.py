"""Functions with parameters of a module as layers of the module's name."""

import math

import torch

from . import operators
from .entries import Value
from .modules import plain
from .table import fake, function, is_constant, number


def prefix(t, tensors):
    """The module that has these parameters, {its own name: a parameter or buffer}, under those
    names; None if there is no such module."""
    found = None
    for local, tensor in tensors.items():
        names = getattr(tensor, "names", None) or [getattr(tensor, "name", "")]
        heads = {
            name[: -len(local)].rstrip(".")
            for name in names
            if name == local or name.endswith(f".{local}")
        }
        found = heads if found is None else found & heads
    return min(found, key=lambda head: (head not in t.taken, head)) if found else None


def layer(t, node, kind, arguments, inputs, tensors, more=()):
    """An entry of the module's name; None if the parameters are not those of one module."""
    tensors = {local: tensor for local, tensor in tensors.items() if tensor is not None}
    head = prefix(t, tensors)
    if head is None:
        return None
    paths = {local: f"{head}.{local}" if head else local for local in [*tensors, *more]}
    if any(path not in t.state for path in paths.values()):
        return None
    return t.native(node, kind, arguments, inputs, paths, head or "0")


def affine(t, node, made, weight, bias):
    """A product with a weight and a sum with a bias that belong to no layer."""
    if weight is not None:
        made = t.emit(node, "Mul", {}, [made, weight])
    return made if bias is None else t.emit(node, "Add", {}, [made, bias])


def channels_first(t, node, x, vector):
    """A number for each channel, in the shape that broadcasts against [batch, channels, ..]."""
    shape = [number(fake(vector).shape[0]), *[1] * (fake(x).dim() - 2)]
    return vector if len(shape) == 1 else shaped(t, node, vector, shape)


def shaped(t, node, x, shape):
    if is_constant(x):
        return type(x)([trial.reshape(shape) for trial in x.trials])
    made = t.emit(node, "Reshape", {"shape": shape}, [x])
    made.fake = fake(x).new_empty(shape)
    return made


def affine_channels(t, node, made, weight, bias):
    """The same for a weight and a bias of each channel."""
    weight, bias = (
        None if vector is None else channels_first(t, node, made, vector)
        for vector in (weight, bias)
    )
    return affine(t, node, made, weight, bias)


def outside(t, node, what):
    return t.unknown(
        node, f"its {what} is not a parameter called `weight` (or `bias`) of one module"
    )


@function("linear")
def linear(t, node, x, weight, bias=None):
    outputs, inputs = fake(weight).shape
    arguments = {"in_features": inputs, "out_features": outputs}
    if bias is None:
        arguments["bias"] = False
    made = layer(t, node, "Linear", arguments, [x], {"weight": weight, "bias": bias})
    if made is not None:
        return made
    turned = t.emit(node, "Transpose", {"dim0": 0, "dim1": 1}, [weight])
    made = t.emit(node, "MatMul", {}, [x, turned])
    return made if bias is None else t.emit(node, "Add", {}, [made, bias])


def convolution(size, transposed=False):
    def handler(t, node, x, weight, bias=None, stride=1, padding=0, *more):
        names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        defaults = {"output_padding": 0, "groups": 1, "dilation": 1}
        others = {name: plain(value) for name, value in zip(names, more)}
        groups = others.get("groups", 1)
        first, second = fake(weight).shape[:2]
        channels = (first, second * groups) if transposed else (second * groups, first)
        arguments = {
            "in_channels": channels[0],
            "out_channels": channels[1],
            "kernel_size": plain(list(fake(weight).shape[2:])),
        }
        if plain(stride) != 1:
            arguments["stride"] = plain(stride)
        if plain(padding) != 0:
            arguments["padding"] = plain(padding)
        arguments.update({name: value for name, value in others.items() if value != defaults[name]})
        if bias is None:
            arguments["bias"] = False
        kind = f"Conv{'Transpose' if transposed else ''}{size}d"
        made = layer(t, node, kind, arguments, [x], {"weight": weight, "bias": bias})
        if made is None and not transposed:
            made = columns(t, node, x, weight, bias, stride, padding, *more)
        if made is None:
            raise outside(t, node, "weight")
        return made

    return handler


def columns(t, node, x, weight, bias, stride=1, padding=0, dilation=1, groups=1):
    """A convolution with a weight that is computed or constant: the windows of each image as the
    columns of a matrix, times the weight as a matrix. None if its sizes are not known."""
    kernel = list(fake(weight).shape[2:])
    sizes = [number(size) for size in node.meta["val"].shape[1:]]
    if isinstance(padding, str) or None in sizes:
        return None
    channels, rank = number(fake(x).shape[1]), len(kernel)
    stride, padding, dilation = (each(value, rank) for value in (stride, padding, dilation))
    made = x
    if any(padding):
        made = t.emit(node, "Pad", {"pad": [one for one in padding[::-1] for _ in "12"]}, [made])
        # Its size plays no part below, but for the batch.
        wide = [number(size) + 2 * one for size, one in zip(fake(x).shape[2:], padding)]
        made.fake = node.meta["val"].new_empty([fake(x).shape[0], channels, *wide])
    for place in range(rank):
        made = windows(t, node, made, 2 + place, kernel[place], stride[place], dilation[place])
    order = [0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)]
    made = t.emit(node, "Permute", {"dims": order}, [made])
    made = t.emit(node, "Flatten", {"end_dim": rank + 1}, [made])
    if rank > 1:
        made = t.emit(node, "Flatten", {"start_dim": 2}, [made])
    inner = channels // groups * math.prod(kernel)
    shape = [sizes[0], inner]
    if groups > 1:
        made = t.emit(node, "Unflatten", {"dim": 1, "unflattened_size": [groups, inner]}, [made])
        shape = [groups, sizes[0] // groups, inner]
    made = t.emit(node, "MatMul", {}, [shaped(t, node, weight, shape), made])
    if groups > 1:
        made = t.emit(node, "Flatten", {"end_dim": 2}, [made])
    if rank > 1:
        made = t.emit(node, "Unflatten", {"dim": 2, "unflattened_size": sizes[1:]}, [made])
    return affine_channels(t, node, made, None, bias)


def each(value, rank):
    """A number for each dimension."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def windows(t, node, x, dim, size, step, dilation):
    """The windows along a dimension, with their elements in a new last dimension."""
    shape = list(fake(x).shape)
    wide = dilation * (size - 1) + 1
    shape[dim] = (shape[dim] - wide) // step + 1
    given = {"self": x, "dimension": dim, "size": wide, "step": step}
    made = node.meta["val"].new_empty([*shape, wide])
    made = operators.call(t, node, torch.ops.aten.unfold.default, given, made)
    if dilation > 1:
        made = t.emit(node, "Slice", {"dim": len(shape), "step": dilation}, [made])
        made.fake = node.meta["val"].new_empty([*shape, size])
    return made


for size in (1, 2, 3):
    function(f"conv{size}d")(convolution(size))
    function(f"conv_transpose{size}d")(convolution(size, transposed=True))


@function("layer_norm")
def layer_norm(t, node, x, shape, weight=None, bias=None, eps=1e-5, cudnn=True):
    arguments = {"normalized_shape": plain(shape) if len(shape) == 1 else list(shape)}
    if eps != 1e-5:
        arguments["eps"] = eps
    if weight is not None:
        own = {**arguments, **({} if bias is not None else {"bias": False})}
        made = layer(t, node, "LayerNorm", own, [x], {"weight": weight, "bias": bias})
        if made is not None:
            return made
    made = t.emit(node, "LayerNorm", {**arguments, "elementwise_affine": False}, [x])
    return affine(t, node, made, weight, bias)


@function("rms_norm")
def rms_norm(t, node, x, shape, weight=None, eps=None):
    arguments = {"normalized_shape": plain(shape) if len(shape) == 1 else list(shape)}
    if eps is not None:
        arguments["eps"] = eps
    if weight is not None:
        made = layer(t, node, "RMSNorm", arguments, [x], {"weight": weight})
        if made is not None:
            return made
    made = t.emit(node, "RMSNorm", {**arguments, "elementwise_affine": False}, [x])
    return affine(t, node, made, weight, None)


@function("group_norm")
def group_norm(t, node, x, groups, weight=None, bias=None, eps=1e-5, cudnn=True):
    arguments = {"num_groups": groups, "num_channels": number(fake(x).shape[1])}
    if eps != 1e-5:
        arguments["eps"] = eps
    if weight is None and bias is None:
        return t.emit(node, "GroupNorm", {**arguments, "affine": False}, [x])
    if weight is not None and bias is not None:
        made = layer(t, node, "GroupNorm", arguments, [x], {"weight": weight, "bias": bias})
        if made is not None:
            return made
    made = t.emit(node, "GroupNorm", {**arguments, "affine": False}, [x])
    return affine_channels(t, node, made, weight, bias)


@function("batch_norm")
def batch_norm(
    t, node, x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn=True
):
    if running_mean is None:
        return norm_of_weight(t, node, x, weight, bias, training, eps)
    rank = fake(x).dim()
    kind = f"BatchNorm{max(rank - 2, 1)}d"
    if training is not t.training:
        raise t.unknown(node, "a batch norm that stays in evaluation mode while training")
    arguments = {"num_features": number(fake(x).shape[1])}
    if eps != 1e-5:
        arguments["eps"] = eps
    if momentum != 0.1 and t.training:
        arguments["momentum"] = momentum
    statistics = {"running_mean": running_mean, "running_var": running_var}
    own = {"weight": weight, "bias": bias}
    more = ["num_batches_tracked"]
    if weight is not None and bias is not None:
        made = layer(t, node, kind, arguments, [x], {**own, **statistics}, more)
        if made is not None:
            return made
    made = layer(t, node, kind, {**arguments, "affine": False}, [x], statistics, more)
    if made is None:
        raise outside(t, node, "weight")
    return affine_channels(t, node, made, weight, bias)


def norm_of_weight(t, node, x, weight, bias, training, eps):
    """A batch norm without running statistics. Of a weight [1, channels, ..], which is the same
    for all batches, it is a layer norm of each channel."""
    shape = [number(size) for size in fake(x).shape]
    if not training or None in shape or shape[0] != 1 or len(shape) < 3:
        raise t.unknown(
            node,
            "a batch norm without running statistics, which would compute across the samples of "
            "a batch",
        )
    sizes = shape[2:]
    arguments = {
        "normalized_shape": sizes[0] if len(sizes) == 1 else sizes,
        "eps": eps,
        "elementwise_affine": False,
    }
    made = t.emit(node, "LayerNorm", arguments, [x])
    return affine_channels(t, node, made, weight, bias)


@function("_weight_norm")
def weight_norm(t, node, direction, magnitude, dim=0):
    """A weight of which the norm is learned by itself."""
    rank = fake(direction).dim()
    given = {
        "self": direction,
        "ord": 2,
        "dim": [one for one in range(rank) if one != dim],
        "keepdim": True,
    }
    sizes = [size if one == dim else 1 for one, size in enumerate(fake(direction).shape)]
    made = node.meta["val"].new_empty(sizes)
    norm = operators.call(t, node, torch.ops.aten.linalg_vector_norm.default, given, made)
    factor = t.emit(node, "Div", {}, [magnitude, norm])
    factor.fake = made
    return t.emit(node, "Mul", {}, [direction, factor])


@function("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(t, node, *_):
    """What no call of a module has become."""

    def caller(one):
        return list(one.meta.get("nn_module_stack") or {})[-1:]

    states = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    # Without states, the module itself makes zeros.
    if any(caller(state) != caller(node) for state in states):
        raise t.unknown(
            node,
            "it takes states that forward() gives it, and BossMan's layer begins with zeros; call "
            "it without states",
        )
    raise t.unknown(
        node,
        "BossMan has it as a module that is called with one tensor [batch, sequence, features] and "
        "has no hooks",
    )


@function("embedding")
def embedding(t, node, weight, x, padding_idx=-1, by_frequency=False, sparse=False):
    if by_frequency or sparse:
        raise t.unknown(node, "an embedding with scale_grad_by_freq or sparse gradients")
    rows, size = fake(weight).shape
    arguments = {"num_embeddings": rows, "embedding_dim": size}
    if padding_idx >= 0:
        arguments["padding_idx"] = padding_idx
    if isinstance(x, Value) or is_constant(x):
        made = layer(t, node, "Embedding", arguments, [x], {"weight": weight})
        if made is not None:
            return made
    if padding_idx >= 0:
        raise outside(t, node, "weight")
    return t.emit(node, "Index", {"dim": 0}, [weight, x])


@function("prelu")
def prelu(t, node, x, weight):
    made = layer(
        t, node, "PReLU", {"num_parameters": fake(weight).shape[0]}, [x], {"weight": weight}
    )
    if made is None:
        raise t.no_layer(node, "its weight is not a parameter called `weight` of one module")
    return made
