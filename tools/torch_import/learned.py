"""Functions with parameters of a module as layers of the module's name."""

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
        if made is None:
            raise outside(t, node, "weight")
        return made

    return handler


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
    raise outside(t, node, "weight")


@function("batch_norm")
def batch_norm(
    t, node, x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn=True
):
    rank = fake(x).dim()
    kind = f"BatchNorm{max(rank - 2, 1)}d"
    if training is not t.training and running_mean is not None:
        raise t.unknown(node, "a batch norm that stays in evaluation mode while training")
    arguments = {"num_features": number(fake(x).shape[1])}
    if eps != 1e-5:
        arguments["eps"] = eps
    if momentum != 0.1 and t.training:
        arguments["momentum"] = momentum
    if (weight is None) != (bias is None) or running_mean is None:
        raise t.unknown(node, "a batch norm with a weight or statistics alone")
    if weight is None:
        arguments["affine"] = False
    tensors = {
        "weight": weight,
        "bias": bias,
        "running_mean": running_mean,
        "running_var": running_var,
    }
    made = layer(t, node, kind, arguments, [x], tensors, more=["num_batches_tracked"])
    if made is None:
        raise outside(t, node, "weight")
    return made


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
        raise outside(t, node, "weight")
    return made
