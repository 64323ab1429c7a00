"""Functions of aten without a layer of their own, as `Aten`.

The rule that says which operators a worker takes is in crates/tensor/cpp/aten.cpp. Here is what
their schemas tell."""

import torch

from .inputs import DTYPES
from .table import fake, is_tensor, number

RANDOM = "it draws random numbers, of which BossMan has Dropout alone"
NO_LAYER = "BossMan has no layer for this function"
# An output lies where the inputs do, in the usual layout.
IMPLIED = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


def operator(t, node, arguments, named):
    """The entry of an operator. An in-place one becomes its functional twin."""
    target = functional(t, node)
    given = bound(target._schema, arguments, named)
    inputs, plain = [], {}
    absent = False
    for argument in target._schema.arguments:
        value = given.get(argument.name)
        if takes_tensors(argument.type):
            parts = value if isinstance(value, (list, tuple)) else [value]
            parts = [part for part in parts if part is not None]
            if parts and absent or not all(map(is_tensor, parts)):
                raise t.unknown(node, f"{NO_LAYER} with these tensors")
            absent = absent or not parts
            inputs.extend(parts)
        elif argument.name in given and not is_implied(argument, value):
            plain[argument.name] = said(t, node, argument.name, value)
    made = node.meta["val"]
    several = isinstance(made, (list, tuple))
    fakes = list(made) if several else [made]
    says = {"op": name_of(target)}
    if plain:
        says["args"] = plain
    outputs = [output(t, node, one) for one in fakes]
    first = fake(inputs[0])
    if several or str(list(made.shape)) != str(list(first.shape)) or made.dtype != first.dtype:
        says["out"] = outputs if several else outputs[0]
    refuse_mixed_samples(t, node, target, given, fakes)
    return t.emit(node, "Aten", says, inputs, fakes=fakes if several else None)


def is_implied(argument, value):
    return argument.name in IMPLIED or value == argument.default_value


def functional(t, node):
    """The operator, which is allowed as far as can be told here."""
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        raise t.unknown(node, NO_LAYER)
    name = schema.name.removeprefix("aten::")
    if schema.is_mutable:
        twin = getattr(torch.ops.aten, name.removesuffix("_"), None)
        target = getattr(twin, schema.overload_name or "default", None)
        if target is None or target._schema.is_mutable:
            raise t.unknown(node, NO_LAYER)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise t.unknown(node, RANDOM)
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if name.startswith("_") or any(tag in target.tags for tag in tags):
        raise t.unknown(node, NO_LAYER)
    return target


def name_of(target):
    schema = target._schema
    name = schema.name.removeprefix("aten::")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def bound(schema, arguments, named):
    """The arguments by their names."""
    return {
        **{known.name: value for known, value in zip(schema.arguments, arguments)},
        **named,
    }


def takes_tensors(kind):
    return "Tensor" in str(kind)


def said(t, node, name, value):
    """An argument as the model file has it."""
    if isinstance(value, (list, tuple)):
        return [said(t, node, name, part) for part in value]
    if isinstance(value, torch.dtype):
        return dtype(t, node, value)
    if isinstance(value, torch.SymInt):
        return size(t, node, value)
    if isinstance(value, (bool, int, float, str)):
        return value
    raise t.unknown(node, f"{NO_LAYER} with the argument {name}")


def size(t, node, value):
    """A number, or the word of a size."""
    if number(value) is not None:
        return number(value)
    word = t.exported.symbols.get(value.node.expr)
    if word is None:
        raise t.unknown(node, f"a size of it is {value}; BossMan takes numbers and single words")
    return word


def dtype(t, node, value):
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise t.unknown(node, f"{NO_LAYER} that makes {name}")
    return name


def output(t, node, made):
    if not isinstance(made, torch.Tensor) or not made.dim():
        raise t.unknown(
            node, "one of its outputs is a number; BossMan has tensors of one dimension up"
        )
    shape = [size(t, node, one) for one in made.shape]
    kind = dtype(t, node, made.dtype)
    return shape if kind == "float32" else {"shape": shape, "dtype": kind}


def refuse_mixed_samples(t, node, target, given, fakes):
    """Refuses an operator that computes across the samples of a batch: of random inputs, the first
    row alone and the last one must give that row of the result."""
    rows = (slice(0, 1), slice(-1, None))
    try:
        whole = results(t, target, given, None)
        parts = [results(t, target, given, row) for row in rows]
    except Exception as problem:
        said = str(problem).strip().splitlines() or [type(problem).__name__]
        raise t.unknown(node, f"{NO_LAYER}: {said[0]}") from problem
    for place, made in enumerate(fakes):
        if not t.is_batch_size(made.shape[0]):
            raise t.unknown(node, "its output does not begin with the batch")
        for row, part in zip(rows, parts):
            one, other = whole[place][row], part[place]
            if one.shape != other.shape or not close(one, other):
                raise t.unknown(
                    node,
                    "it computes across the samples of a batch, of which a layer sees a part only",
                )


def close(one, other):
    return torch.allclose(one.double(), other.double(), 1e-4, 1e-5, equal_nan=True)


def results(t, target, given, row):
    """What the operator gives for random inputs, or for a row of them."""
    generator = torch.Generator().manual_seed(0)

    def concrete(value):
        if isinstance(value, (list, tuple)):
            return [concrete(part) for part in value]
        if is_tensor(value):
            return sample(value)
        if isinstance(value, torch.SymInt):
            return 1 if row and t.is_batch_size(value) else t.exported.size(value, 1)
        return value

    def sample(value):
        if hasattr(value, "trials"):
            made = value.trials[1]
            return made if value.fixed or row is None else made[row]
        if hasattr(value, "tensor"):
            return value.tensor.detach()
        tensor = value.fake
        shape = [t.exported.size(one, 1) for one in tensor.shape]
        if tensor.dtype.is_floating_point:
            made = torch.rand(shape, generator=generator, dtype=tensor.dtype)
        else:
            made = torch.randint(0, 2, shape, generator=generator).to(tensor.dtype)
        batch = bool(shape) and t.is_batch_size(tensor.shape[0])
        return made[row] if batch and row else made

    with torch.no_grad():
        found = target(**{name: concrete(value) for name, value in given.items()})
    return list(found) if isinstance(found, (list, tuple)) else [found]
