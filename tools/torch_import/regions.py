"""Calls of modules that are one layer each as a whole."""

import functools

import torch

from . import modules
from .entries import Value
from .views import written

FOUR = {"Upsample", "Dropout2d", "InstanceNorm2d", "AdaptiveMaxPool2d"}
LAST = {"RNN": "rnn", "GRU": "gru", "LSTM": "lstm"}


def key(translation, node):
    """The outermost module call around a node that may be one layer."""
    for call, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        path = path.split("@")[0]
        if call in translation.declined or call.startswith("_empty"):
            continue
        try:
            module = translation.module.get_submodule(path)
        except AttributeError:
            continue
        if modules.is_native(module) or known(module):
            return call, path, module
    return None


def known(module):
    """The layer of a class outside torch.nn: its name, its arguments and its parameters."""
    kind = type(module)
    name, home = kind.__name__, kind.__module__.split(".")[0]
    if home not in ("torchvision", "timm", "transformers"):
        return None
    if name == "StochasticDepth":
        return "DropPath", {"p": float(module.p), "mode": module.mode}
    if name.endswith("DropPath"):
        if not getattr(module, "scale_by_keep", True):
            return None
        return "DropPath", {"p": float(module.drop_prob or 0.0), "mode": "row"}
    if name.endswith("RMSNorm"):
        return rms_norm(module)
    if name == "Conv1D" and kind.__module__ == "transformers.pytorch_utils":
        inputs, outputs = module.weight.shape
        return "Linear", {"in_features": inputs, "out_features": outputs, "transposed": True}
    return None


@functools.cache
def rms_norm(module):
    """The arguments of an RMSNorm that computes what BossMan's does: it is run to see."""
    parameters = dict(module.named_parameters())
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if list(parameters) != ["weight"] or not isinstance(eps, float) or module.weight.dim() != 1:
        return None
    size = module.weight.shape[0]
    x = torch.linspace(-2, 3, 7 * size).sin().reshape(7, size) * 3
    weight = torch.linspace(-1, 2, size).cos()
    normal = torch.nn.functional.rms_norm(x, (size,), None, eps)
    with torch.no_grad():
        found = torch.func.functional_call(module, {"weight": weight}, (x,))
    for offset in (0.0, 1.0):
        if torch.allclose(found, normal * (weight + offset), rtol=1e-5, atol=1e-6):
            arguments = {"normalized_shape": size, "eps": eps}
            return "RMSNorm", {**arguments, **({"offset": offset} if offset else {})}
    return None


def convert(translation, found, first, nodes):
    """Makes one entry of a module call; whether that was possible. If not, its functions are
    entries of their own."""
    call, path, module = found
    inside = [node for node in nodes if call in (node.meta.get("nn_module_stack") or {})]
    if not one_layer(translation, call, path, module, inside):
        translation.declined.add(call)
        return False
    return True


def one_layer(translation, call, path, module, inside):
    chosen, kind = known(module), type(module).__name__
    own = {f"{path}.{name}" if path else name for name in module.state_dict()}
    members = set(inside)
    given, outside = [], []
    for node in inside:
        for before in node.all_input_nodes:
            if before in members or before in given or before.op == "get_attr":
                continue
            value = translation.env.get(before)
            if isinstance(value, (list, tuple)):
                return False
            if is_own(translation, value, own) or not is_tensor(value):
                continue
            given.append(before)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return False
        if any(user not in members for user in node.users):
            outside.append(node)
    # A change of dtype that changes nothing is the input itself.
    same = [node for node in outside if is_unchanged(node) and node.args[0] in given]
    outside = [node for node in outside if is_tensor_node(node) and node not in same]
    if len(given) != 1 or not isinstance(translation.env[given[0]], Value):
        return False
    name = path or "0"
    value = translation.env[given[0]]
    for node in same:
        translation.env[node] = value.copy()
    in_place = [node for node in inside if writes(node) and node.args[0] is given[0]]
    if chosen:
        layer, arguments = chosen
    else:
        layer, arguments = kind, modules.arguments(module)
    if kind in ("Dropout", "Dropout2d") or layer == "DropPath":
        probability = arguments.get("p", 0.5)
        dropped = [node for node in inside if is_random(node)]
        if not translation.random or probability == 0 or not dropped:
            translation.done.update(inside)
            for node in outside:
                translation.env[node] = value.copy()
            return True
    if not fits(translation, layer, module, inside, outside, value, arguments):
        return False
    fakes = None
    if layer in LAST:
        fakes = [None] * (3 if layer == "LSTM" else 2)
    elif len(outside) != 1:
        return False
    tensors = {local: f"{path}.{local}" if path else local for local in module.state_dict()}
    node = outside[0] if outside else inside[-1]
    made = translation.native(node, layer, arguments, [value], tensors, name, fakes)
    translation.done.update(inside)
    if fakes is None:
        translation.env[node] = made
    else:
        for node in outside:
            output = made[node.args[1]]
            output.fake, output.hint = node.meta["val"], node.name
            translation.env[node] = output
    for node in in_place:
        written(translation, node, given[0], made)
    return True


def fits(translation, layer, module, inside, outside, value, arguments):
    """Whether the call computes what the layer does; adds arguments that only the call knows."""
    targets = {str(node.target).split(".")[1] for node in inside if str(node.target).count(".")}
    if layer.startswith("BatchNorm"):
        for node in inside:
            norm = str(node.target).startswith("aten.batch_norm")
            if norm and module.track_running_stats and node.args[5] is not translation.training:
                raise translation.unknown(
                    node, "a batch norm that stays in evaluation mode while training"
                )
        return True
    if layer == "TransformerEncoderLayer" or layer == "MultiheadAttention":
        if len(value.fake.shape) != 3 or len(outside) != 1:
            return False
        # Across the samples of a batch: the function inside says why not.
        if translation.has_batch(value.fake.shape[1 if batch_first(module) else 0]):
            return False
        if layer == "MultiheadAttention" and not from_projection(translation, module, outside[0]):
            return False
        for node in inside:
            if str(node.target).startswith("aten.scaled_dot_product_attention"):
                causal = node.args[5] if len(node.args) > 5 else node.kwargs.get("is_causal")
                if causal:
                    arguments["is_causal"] = True
        return True
    if layer in FOUR and len(value.fake.shape) != 4:
        return False
    if layer in modules.ALONG and translation.has_batch(value.fake.shape[module.dim]):
        return False
    if layer in LAST:
        return (
            LAST[layer] in " ".join(targets)
            and all(len(node.args) == 2 and isinstance(node.args[1], int) for node in outside)
            and len(value.fake.shape) == 3
            and not translation.has_batch(value.fake.shape[1 if module.batch_first else 0])
        )
    return True


def batch_first(module):
    return getattr(module, "self_attn", module).batch_first


def from_projection(translation, module, node):
    """Whether an output of attention is its result, and not its weights."""
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for before in node.all_input_nodes:
            value = translation.env.get(before)
            if getattr(value, "tensor", None) is module.out_proj.weight:
                return True
            waiting.append(before)
    return False


def is_own(translation, value, own):
    names = getattr(value, "names", None) or [getattr(value, "name", None)]
    return any(name in own for name in names)


def is_tensor(value):
    return isinstance(value, Value) or hasattr(value, "tensor")


def is_unchanged(node):
    before = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else None
    return (
        str(node.target).startswith(("aten.to.", "aten.contiguous.", "aten.alias."))
        and getattr(before, "dtype", None) == node.meta["val"].dtype
    )


def is_tensor_node(node):
    return isinstance(node.meta.get("val"), torch.Tensor) and not (
        writes(node) and not node.meta["val"].is_floating_point()
    )


def writes(node):
    schema = getattr(node.target, "_schema", None)
    return bool(
        schema
        and schema.arguments
        and schema.arguments[0].alias_info is not None
        and schema.arguments[0].alias_info.is_write
    )


def is_random(node):
    """Whether a node draws random numbers; a dropout outside training does not."""
    if "dropout" in str(node.target):
        return bool(node.args[2]) and node.args[1] != 0
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
