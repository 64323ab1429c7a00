"""Writes through a view of a tensor."""

import torch


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
