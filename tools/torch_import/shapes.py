"""Functions that move elements as layers."""

import torch

from .exported import SIZES
from .operators import call, converted
from .table import (
    fake,
    function,
    is_constant,
    is_tensor,
    number,
    place,
    refuse_batch,
    same,
    same_shape,
)

WHOLE = 2**62


def unchanged(x):
    """The same value under another name, which a function in place may change alone."""
    return x.copy() if hasattr(x, "copy") else x


@function("alias", "contiguous", "clone", "lift_fresh_copy", "lift_fresh")
def same_value(t, node, x, **_):
    return unchanged(x)


@function("detach")
def detach(t, node, x):
    if fake(x).is_floating_point():
        raise t.unknown(node, "it stops gradients, which BossMan cannot; use requires_grad instead")
    return unchanged(x)


@function("to", "_to_copy", "type_as")
def to(t, node, x, *_, **__):
    return unchanged(converted(t, node, x, node.meta["val"].dtype))


@function("view", "reshape", "_unsafe_view", "view_as", "reshape_as")
def reshape(t, node, x, *_):
    return reshaped(t, node, x, node.meta["val"].shape)


def reshaped(t, node, x, shape):
    """The layer that reads best: Flatten and Unflatten where they say it, else Reshape."""
    before = fake(x).shape
    if same_shape(before, shape):
        return unchanged(x)
    head = 0
    while head < min(len(before), len(shape)) and same(before[head], shape[head]):
        head += 1
    tail = 0
    while tail < min(len(before), len(shape)) - head and same(before[-1 - tail], shape[-1 - tail]):
        tail += 1
    old, new = before[head : len(before) - tail], shape[head : len(shape) - tail]
    if len(new) == 1 and len(old) > 1:
        end = len(before) - tail - 1
        arguments = {} if head == 1 else {"start_dim": head}
        if tail:
            arguments["end_dim"] = end
        return t.emit(node, "Flatten", arguments, [x])
    sizes = [-1 if number(size) is None else number(size) for size in new]
    if len(old) == 1 and len(new) > 1 and sizes.count(-1) <= 1:
        return t.emit(node, "Unflatten", {"dim": head, "unflattened_size": sizes}, [x])
    sizes = [number(size) for size in shape]
    if sizes.count(None) > 1:
        raise t.unknown(node, "its result has more than one size that is known only at run time")
    return t.emit(node, "Reshape", {"shape": [-1 if size is None else size for size in sizes]}, [x])


@function("flatten")
def flatten(t, node, x, start=0, end=-1):
    return reshaped(t, node, x, node.meta["val"].shape)


@function("unflatten")
def unflatten(t, node, x, dim, sizes):
    return reshaped(t, node, x, node.meta["val"].shape)


@function("transpose", "swapaxes", "swapdims")
def transpose(t, node, x, dim0, dim1):
    return t.emit(node, "Transpose", {"dim0": dim0, "dim1": dim1}, [x])


@function("t", "numpy_T", "mT")
def turned(t, node, x):
    if fake(x).dim() != 2:
        raise t.unknown(node, "a transpose of other than a matrix")
    return transpose(t, node, x, 0, 1)


@function("permute")
def permute(t, node, x, dims):
    rank = len(dims)
    dims = [place(dim, rank) for dim in dims]
    return (
        unchanged(x) if dims == list(range(rank)) else t.emit(node, "Permute", {"dims": dims}, [x])
    )


@function("movedim", "moveaxis")
def movedim(t, node, x, source, to):
    rank = fake(x).dim()
    sources = [source] if isinstance(source, int) else source
    targets = [to] if isinstance(to, int) else to
    sources, targets = [place(s, rank) for s in sources], [place(d, rank) for d in targets]
    rest = [dim for dim in range(rank) if dim not in sources]
    known = dict(zip(targets, sources))
    return permute(t, node, x, [known[dim] if dim in known else rest.pop(0) for dim in range(rank)])


@function("unsqueeze")
def unsqueeze(t, node, x, dim):
    return t.emit(node, "Unsqueeze", {"dim": dim}, [x])


@function("squeeze")
def squeeze(t, node, x, dim=None):
    shape = fake(x).shape
    rank = len(shape)
    dims = list(range(rank)) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = sorted(place(one, rank) for one in dims if number(shape[one]) == 1)
    made = unchanged(x)
    for one in reversed(gone):
        made = t.emit(node, "Squeeze", {"dim": one}, [made])
    return made


@function("slice")
def cut(t, node, x, dim=0, start=None, end=None, step=1):
    size = number(fake(x).shape[dim])
    if is_symbol(start) or is_symbol(end):
        if same_shape(fake(x).shape, node.meta["val"].shape) and step == 1:
            return unchanged(x)
        raise t.unknown(node, "it cuts at a place that depends on the batch size")
    start = start or 0
    end = None if end is None or end > WHOLE else end
    if size is not None:
        start = max(start + size, 0) if start < 0 else min(start, size)
        if end is not None:
            end = max(end + size, 0) if end < 0 else min(end, size)
            end = None if end == size else end
        if (size if end is None else end) <= start:
            # No elements: the same for every batch, whatever x is.
            sizes = node.meta["val"].shape
            shapes = [[t.exported.size(one, trial) for one in sizes] for trial in range(2)]
            return t.stand_in([torch.zeros(one, dtype=fake(x).dtype) for one in shapes])
    elif same_shape(fake(x).shape, node.meta["val"].shape) and step == 1:
        return unchanged(x)
    else:
        raise t.unknown(node, "it cuts the batch, or another size known only at run time")
    arguments = {"dim": place(dim, fake(x).dim())}
    if start:
        arguments["start"] = start
    if end is not None:
        arguments["end"] = end
    if step != 1:
        arguments["step"] = step
    return unchanged(x) if len(arguments) == 1 else t.emit(node, "Slice", arguments, [x])


def is_symbol(value):
    return isinstance(value, torch.SymInt) and number(value) is None


@function("narrow")
def narrow(t, node, x, dim, start, length):
    if is_tensor(start):
        raise t.no_layer(node, "it cuts at a computed place")
    end = start + length
    # Counted from the end, a part that ends there ends at 0.
    to_end = not is_symbol(start) and not is_symbol(end) and start < 0 and end == 0
    return cut(t, node, x, dim, start, None if to_end else end)


@function("select")
def select(t, node, x, dim, index):
    if number(fake(x).shape[dim]) is None or is_symbol(index):
        raise t.unknown(node, "it takes one sample of the batch, of which a layer sees a part only")
    return t.emit(node, "Select", {"dim": dim, "index": index}, [x])


@function("unbind")
def unbind(t, node, x, dim=0):
    size = number(fake(x).shape[dim])
    if size is None:
        raise t.unknown(node, "it takes the batch apart")
    return [
        named(t.emit(node, "Select", {"dim": dim, "index": index}, [x]), node, index)
        for index in range(size)
    ]


def named(value, node, index):
    """The shape of one of several results."""
    value.fake, value.hint = node.meta["val"][index], f"{node.name}_{index}"
    return value


@function("getitem")
def getitem(t, node, found, index):
    raise t.unknown(node, "it takes a part of a value that has none")


def parts(t, node, kind, arguments, x):
    fakes = list(node.meta["val"])
    return t.emit(node, kind, arguments, [x], fakes=fakes)


@function("split", "split_with_sizes")
def split(t, node, x, sizes, dim=0):
    if len(node.meta["val"]) == 1:
        return [unchanged(x)]
    if number(fake(x).shape[dim]) is None:
        raise t.unknown(node, "it takes the batch apart")
    return parts(t, node, "Split", {"split_size_or_sections": sizes, "dim": dim}, x)


@function("chunk")
def chunk(t, node, x, chunks, dim=0):
    if len(node.meta["val"]) == 1:
        return [unchanged(x)]
    if number(fake(x).shape[dim]) is None:
        raise t.unknown(node, "it takes the batch apart")
    return parts(t, node, "Chunk", {"chunks": chunks, "dim": dim}, x)


@function("tensor_split")
def tensor_split(t, node, x, places, dim=0):
    sizes = [number(one.shape[dim]) for one in node.meta["val"]]
    if None in sizes or 0 in sizes or len(sizes) == 1:
        raise t.no_layer(node, "BossMan splits a known size into parts that have elements")
    return parts(t, node, "Split", {"split_size_or_sections": sizes, "dim": dim}, x)


@function("cat", "concat", "concatenate")
def concat(t, node, tensors, dim=0):
    # PyTorch leaves out empty vectors, whatever the shapes of the others.
    tensors = [one for one in tensors if number(fake(one).numel()) != 0]
    if len(tensors) == 1:
        return unchanged(tensors[0])
    if place(dim, node.meta["val"].dim()) == 0 and number(node.meta["val"].shape[0]) is None:
        raise t.unknown(node, "it makes one batch of several")
    tensors = [converted(t, node, one, node.meta["val"].dtype) for one in tensors]
    return t.emit(node, "Concat", {"dim": dim}, tensors)


@function("stack")
def stack(t, node, tensors, dim=0):
    return t.emit(node, "Stack", {"dim": dim} if dim else {}, tensors)


@function("roll")
def roll(t, node, x, shifts, dims=()):
    if not dims:
        raise t.unknown(node, "it rolls a tensor without dimensions; name them")
    refuse_batch(t, node, x, listed(dims))
    return t.emit(node, "Roll", {"shifts": listed(shifts), "dims": listed(dims)}, [x])


@function("flip")
def flip(t, node, x, dims):
    refuse_batch(t, node, x, listed(dims))
    return t.emit(node, "Flip", {"dims": listed(dims)}, [x])


def listed(value):
    return [value] if isinstance(value, int) else list(value)


@function("index")
def index(t, node, x, indices):
    found = [(dim, one) for dim, one in enumerate(indices) if one is not None]
    if len(found) == 2 and found[0][0] == 0 and found[1][0] == 1:
        one = of_each_sample(x, found[0][1], found[1][1])
        if one is not None:
            return indexed(t, node, x, 1, one)
        if is_place_of_each(t, found[0][1], found[1][1]):
            return taken(t, node, x, found[1][1])
    if len(found) != 1:
        raise t.unknown(node, "it has indices for several dimensions, and Index has one")
    return indexed(t, node, x, *found[0])


def of_each_sample(x, samples, one):
    """The index of dimension 1 if the one of dimension 0 is the number of each sample itself, as in
    `mask[batch, keys]` of transformers; else None."""
    if not is_constant(samples) or not is_constant(one) or not one.fixed or samples.fixed:
        return None
    rank = max(samples.tensor.dim(), one.tensor.dim())
    for trial in samples.trials:
        size = len(trial)
        shape = [size] + [1] * (rank - 1)
        if trial.dim() != rank or not torch.equal(trial, torch.arange(size).reshape(shape)):
            return None
    if one.tensor.dim() == rank and len(one.tensor) != 1:
        return None
    head = [1] * (rank - one.tensor.dim())
    return type(one)([trial.reshape(*head, *trial.shape)[0] for trial in one.trials])


def is_place_of_each(t, samples, one):
    """Whether an index has a computed place for each sample, as in `x[batch, last]`."""
    return (
        is_constant(samples)
        and not samples.fixed
        and all(torch.equal(trial, torch.arange(len(trial))) for trial in samples.trials)
        and [len(trial) for trial in samples.trials] == list(SIZES[0])
        and not is_constant(one)
        and fake(one).dim() == 1
        and not hasattr(one, "names")
        and t.is_batch(one)
        and fake(one).dtype in (torch.int32, torch.int64)
    )


def taken(t, node, x, one):
    """The place of dimension 1 that each sample has; places below zero count from the end."""
    aten, size = torch.ops.aten, number(fake(x).shape[1])
    rest = [number(size) for size in fake(x).shape[2:]]
    if size is None or None in rest or not t.is_batch(x):
        raise t.unknown(node, "it takes places of a dimension whose size is known at run time only")
    one = converted(t, node, one, torch.int64)
    batch = fake(one).shape[0]
    below = like_node(node, x, [batch]).to(torch.bool)
    below = call(t, node, aten.lt.Scalar, {"self": one, "other": 0}, below)
    below = converted(t, node, below, torch.int64)
    below = call(t, node, aten.mul.Scalar, {"self": below, "other": size}, fake(one))
    one = step(t, node, "Add", {}, one, [batch], below)
    for _ in range(1 + len(rest)):
        one = step(t, node, "Unsqueeze", {"dim": -1}, one, [*fake(one).shape, 1])
    if rest:
        one = step(t, node, "Expand", {"size": [-1, 1, *rest]}, one, [batch, 1, *rest])
    given = {"self": x, "dim": 1, "index": one}
    made = call(t, node, aten.gather.default, given, like_node(node, x, [batch, 1, *rest]))
    return t.emit(node, "Squeeze", {"dim": 1}, [made])


@function("index_select")
def index_select(t, node, x, dim, one):
    return indexed(t, node, x, dim, one)


def indexed(t, node, x, dim, one):
    if number(fake(x).shape[dim]) is None:
        raise t.unknown(node, "it takes samples of the batch, of which a layer sees a part only")
    if is_constant(one) and one.tensor.dtype == torch.bool:
        one = type(one)([trial.nonzero().flatten() for trial in one.trials])
    if fake(one).dtype in (torch.bool, torch.uint8):
        raise t.unknown(node, "its index is a mask, whose values decide the size of the result")
    one = converted(t, node, one, torch.int64)
    if is_constant(one):
        size = number(fake(x).shape[dim])
        one = type(one)([trial % size for trial in one.trials])
        if one.fixed and torch.equal(one.tensor.flatten(), torch.arange(size)):
            return reshaped(t, node, x, node.meta["val"].shape)
    return t.emit(node, "Index", {"dim": dim}, [x, one])


@function("expand", "expand_as", "broadcast_to")
def expand(t, node, x, *_, **__):
    return expanded(t, node, x, node.meta["val"].shape)


def expanded(t, node, x, shape):
    if is_constant(x):
        rank = len(shape) - x.tensor.dim()
        x = type(x)([trial.reshape([1] * rank + list(trial.shape)) for trial in x.trials])
    before = list(fake(x).shape)
    if same_shape(before, shape):
        return unchanged(x)
    grown = [
        place
        for place, (old, new) in enumerate(zip([1] * (len(shape) - len(before)) + before, shape))
        if not same(old, new)
    ]
    to_batch = grown[:1] == [0] and t.is_batch_size(shape[0])
    if to_batch and grown == [0] and hasattr(x, "names") and len(before) == len(shape):
        return t.parameter(x, node, expand=True)
    made = x
    for _ in range(len(shape) - len(before)):
        made = t.emit(node, "Unsqueeze", {"dim": 0}, [made])
        # The value has no batch yet, though the function's result has.
        made.fake = fake(x).new_empty([1] * (len(shape) - len(before)) + before)
    if to_batch:
        # Nothing is added, and the sum has the batch.
        zeros = torch.zeros([1] * len(shape), dtype=fake(x).dtype)
        made = t.emit(node, "Add", {}, [made, t.batch_of(zeros)])
        grown = grown[1:]
    if not grown:
        return made
    if any(number(shape[place]) is None for place in grown):
        raise t.unknown(node, "it grows to a size that is known only at run time")
    sizes = [number(size) if place in grown else -1 for place, size in enumerate(shape)]
    return t.emit(node, "Expand", {"size": sizes}, [made])


@function("repeat")
def repeat(t, node, x, repeats):
    """Expand where sizes are 1, and copies for each sample; what is left is an operator."""
    repeats = [known(t, times) for times in repeats]
    before = [1] * (len(repeats) - fake(x).dim()) + list(fake(x).shape)
    if all(number(size) == 1 or times == 1 for size, times in zip(before, repeats)):
        return expanded(t, node, x, node.meta["val"].shape)
    if not t.is_batch_size(repeats[0]) or number(before[0]) is None:
        raise t.no_layer(node, "BossMan repeats sizes of 1 (Expand)")
    batch = repeats[0]
    for _ in range(1 + len(repeats) - fake(x).dim()):
        x = step(t, node, "Unsqueeze", {"dim": 0}, x, [1, *fake(x).shape])
    made = expanded(t, node, x, [batch, *before])
    made.fake = like_node(node, x, [batch, *before])
    rest = {"self": made, "repeats": [1, 1, *repeats[1:]]}
    if any(times != 1 for times in repeats[1:]):
        sizes = [batch, before[0], *node.meta["val"].shape[1:]]
        made = call(t, node, torch.ops.aten.repeat.default, rest, like_node(node, x, sizes))
    return t.emit(node, "Flatten", {"start_dim": 0, "end_dim": 1}, [made])


def step(t, node, kind, arguments, x, shape, *more):
    """A layer on the way to a result: its shape is not that of the node."""
    made = t.emit(node, kind, arguments, [x, *more])
    made.fake = like_node(node, x, shape)
    return made


def like_node(node, x, shape):
    """What stands for a tensor of x's dtype; only that of the node can have symbols as sizes."""
    return node.meta["val"].new_empty(shape, dtype=fake(x).dtype)


def known(t, times):
    """A number that PyTorch computes from sizes: a plain one, or the batch, if it is that."""
    if number(times) is not None:
        return number(times)
    found = [t.exported.size(times, trial) for trial in range(2)]
    if found[0] == found[1] == t.exported.size_of_one(times):
        return found[0]
    batch = next(value.fake.shape[0] for value in t.inputs if t.is_batch(value))
    same_as_batch = found == [t.exported.size(batch, trial) for trial in range(2)]
    return batch if same_as_batch else times


@function("repeat_interleave")
def repeat_interleave(t, node, x, repeats, dim=None, output_size=None):
    times = known(t, repeats) if isinstance(repeats, (int, torch.SymInt)) else None
    if dim is None or not isinstance(times, int):
        raise t.no_layer(node, "BossMan repeats along one dimension, a number of times")
    shape = list(fake(x).shape)
    dim = place(dim, len(shape))
    if times == 1:
        return unchanged(x)
    between = [*shape[: dim + 1], 1, *shape[dim + 1 :]]
    made = step(t, node, "Unsqueeze", {"dim": dim + 1}, x, between)
    between[dim + 1] = times
    sizes = [times if one == dim + 1 else -1 for one in range(len(between))]
    made = step(t, node, "Expand", {"size": sizes}, made, between)
    return t.emit(node, "Flatten", {"start_dim": dim, "end_dim": dim + 1}, [made])


@function("pixel_shuffle")
def pixel_shuffle(t, node, x, factor):
    return t.emit(node, "PixelShuffle", {"upscale_factor": factor}, [x])


@function("pixel_unshuffle")
def pixel_unshuffle(t, node, x, factor):
    return t.emit(node, "PixelUnshuffle", {"downscale_factor": factor}, [x])


@function("pad", "constant_pad_nd")
def pad(t, node, x, sizes, mode="constant", value=None):
    if not isinstance(mode, str):
        mode, value = "constant", mode
    arguments = {"pad": sizes}
    if mode != "constant":
        arguments["mode"] = mode
    if value:
        arguments["value"] = value
    return t.emit(node, "Pad", arguments, [x]) if any(sizes) else unchanged(x)


@function("copy")
def copy(t, node, x, source, non_blocking=False):
    """What `x.copy_(source)` and `x[..] = source` give: the source in the shape and dtype of x."""
    source = converted(t, node, source, fake(x).dtype)
    made = expanded(t, node, source, fake(x).shape)
    return t.value(made, node)


@function("fill", "zero")
def fill(t, node, x, number=0):
    """What `x[..] = number` gives."""
    if not isinstance(number, (bool, int, float)):
        return copy(t, node, x, number)
    sizes = [1] * fake(x).dim()
    source = t.stand_in([torch.full(sizes, number, dtype=fake(x).dtype) for _ in range(2)])
    return copy(t, node, x, source)


@function(
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
)
def like(t, node, x, *more, **named):
    """A constant of which a tensor gives the dtype, or the shape."""
    trials = [
        torch.empty([t.exported.size(size, trial) for size in fake(x).shape], dtype=fake(x).dtype)
        for trial in range(2)
    ]
    return t.fold(node, [t.stand_in(trials), *more], named)
