"""Writes in place: the tensor, the tensor that it is a part of, and its views get new values."""

import operator

import torch

from .entries import Value
from .operators import bound
from .shapes import listed, reshaped, step
from .table import number, same_shape

# Functions that always give a view. `reshape`, `to` and others give one or a copy.
VIEWS = set(
    """
    alias chunk expand getitem mT movedim narrow numpy_T permute select slice split split_with_sizes
    squeeze swapaxes t tensor_split transpose unbind unflatten unsqueeze view view_as
    """.split()
)
USED_LATER = "it writes to a tensor of which a view is used later; write to a copy"


def roots(graph_module):
    """The tensor whose memory each node shows."""
    found = {}
    for node in graph_module.graph.nodes:
        first = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
        if first is None:
            continue
        schema = getattr(node.target, "_schema", None)
        shows = schema and any(result.alias_info is not None for result in schema.returns)
        if shows or node.target is operator.getitem:
            found[node] = found.get(first, first)
    return found


def written(t, node, tensor, made):
    """Gives a written tensor its new value, and all that show its memory and are used later."""
    root = t.roots.get(tensor, tensor)
    nodes = list(node.graph.nodes)
    if root.op == "placeholder" and node.graph is not t.nodes[0].graph:
        raise t.unknown(node, "it writes to a tensor from outside of its mode of gradients")
    place = nodes.index(node)
    later = {used for other in nodes[place + 1 :] for used in other.all_input_nodes}
    same, own = t.env[tensor], [one for one in nodes[:place] if t.roots.get(one, one) is root]
    own = [one for one in own if one in t.env and t.env[one] is not same]
    t.rebind(tensor, made)
    if not later & set(own):
        return
    changed = {one for one in nodes[:place] if t.env.get(one) is made}
    while tensor in t.roots:
        part, tensor = tensor, tensor.args[0]
        if tensor not in changed:
            changed.update(put(t, node, tensor, part))
    again(t, node, [one for one in own if one not in changed], later)


def put(t, node, whole, part):
    """Gives a tensor its new value, which has that of a part of it; all names of the tensor."""
    old, made = t.env[whole], t.env[part]
    if not hasattr(part.target, "_schema") or not isinstance(old, Value):
        raise t.unknown(node, USED_LATER)
    given = bound(part.target._schema, part.args, part.kwargs)
    shape, name = list(whole.meta["val"].shape), name_of(part)
    if name == "slice":
        start, end = (given.get(key) for key in ("start", "end"))
        made = placed(t, node, old, made, given.get("dim", 0), start, end, given.get("step", 1))
    elif name == "select":
        dim, start = given["dim"] % len(shape), given["index"]
        size = number(shape[dim])
        if size is None or not isinstance(start, int):
            raise t.unknown(node, USED_LATER)
        start %= size
        between = [*shape[:dim], 1, *shape[dim + 1 :]]
        made = step(t, node, "Unsqueeze", {"dim": dim}, made, between)
        made = placed(t, node, old, made, dim, start, start + 1, 1)
    elif name == "transpose":
        dims = {"dim0": given["dim0"], "dim1": given["dim1"]}
        made = step(t, node, "Transpose", dims, made, shape)
    elif name == "permute":
        dims = [dim % len(shape) for dim in listed(given["dims"])]
        turned = {"dims": [dims.index(dim) for dim in range(len(dims))]}
        made = step(t, node, "Permute", turned, made, shape)
    elif name in ("view", "unsqueeze", "squeeze", "alias"):
        made = reshaped(t, node, made, shape)
        made.fake = whole.meta["val"]
    else:
        raise t.unknown(node, USED_LATER)
    t.rebind(whole, made)
    return {one for one, value in t.env.items() if value is made}


def placed(t, node, whole, part, dim, start, end, by):
    """A tensor with another part in place of its own from `start` to `end`."""
    shape = list(whole.fake.shape)
    dim %= len(shape)
    if same_shape(part.fake.shape, shape):
        return part
    size = number(shape[dim])
    plain = all(one is None or isinstance(one, int) for one in (start, end))
    if size is None or by != 1 or not plain:
        raise t.unknown(node, USED_LATER)
    start, end, _ = slice(start, end).indices(size)
    parts = [part]
    if start > 0:
        left = [*shape[:dim], start, *shape[dim + 1 :]]
        parts.insert(0, step(t, node, "Slice", {"dim": dim, "end": start}, whole, left))
    if end < size:
        left = [*shape[:dim], size - end, *shape[dim + 1 :]]
        parts.append(step(t, node, "Slice", {"dim": dim, "start": end}, whole, left))
    return step(t, node, "Concat", {"dim": dim}, parts[0], shape, *parts[1:])


def again(t, node, views, later):
    """Takes views once more of a tensor that has a new value."""
    unknown = set()
    for view in views:
        parent = view.args[0] if view in t.roots else None
        known = parent not in unknown and view not in t.done
        if parent is not None and known and name_of(view) in VIEWS:
            t.call(view)
        elif parent is not None and known and view.target._schema.is_mutable:
            t.env[view] = t.env[parent]
        else:
            unknown.add(view)
            if view in later:
                raise t.unknown(node, USED_LATER)


def name_of(node):
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def zeroed(translation, node):
    """Whether a node fills a slice of a fresh tensor with zeros; gives the tensor its new value,
    which is the old one times a mask."""
    view = node.args[0] if node.args else None
    aten = torch.ops.aten
    if node.target is not aten.zero_.default or view.target is not aten.slice.Tensor:
        return False
    whole = view.args[0]
    fresh = whole.op == "call_function" and whole not in translation.roots
    shape = whole.meta["val"].shape
    others = [other for other, root in translation.roots.items() if root is whole]
    # No other view, which would have the old value.
    alone = all(other in (view, node) for other in others) and set(view.users) == {node}
    if not fresh or not alone or node.users or any(not isinstance(size, int) for size in shape):
        return False
    mask = torch.ones(shape)
    aten.slice.Tensor(mask, *view.args[1:], **view.kwargs).zero_()
    mask = translation.stand_in([mask, mask.clone()])
    translation.env[whole] = translation.emit(node, "Mul", {}, [translation.env[whole], mask])
    translation.env[node] = translation.env[view]
    return True
