"""Functions of aten without a layer of their own, as `Aten`.

The rule that says which operators a worker takes is in crates/tensor/cpp/aten.cpp. Here is what
their schemas tell."""

import torch

from .exported import SIZES
from .inputs import DTYPES
from .table import fake, is_constant, is_tensor, number, same_shape

RANDOM = "it draws random numbers, of which BossMan has Dropout alone"
FEW = 300
NO_LAYER = "BossMan has no layer for this function"
# The rules of aten.cpp that neither schemas nor tags show: what an operator's name begins with,
# what is anywhere in it, and what it is.
REFUSED_BEGINNINGS = """
    _ native_ sym_ lift conv_depthwise convolution_over hash_tensor set slice_inverse from_
    pin_memory empty new_empty instance_norm q_ int_repr view_as_complex fbgemm cudnn miopen mps
    xpu thnn slow_conv ctc_loss segment_reduce embedding_bag multilabel_margin_loss
    fractional_max_pool combinations tensor_split hsplit vsplit dsplit rename refine_names align_
""".split()
REFUSED_PARTS = """
    _forward _jvp backward strided unsafe resize batch_norm sparse nested jagged padded_tensor
    mkldnn quantize qparams lu_solve ldl_solve lu_unpack polynomial mvlgamma multigammaln
""".split()
REFUSED_NAMES = "view.dtype view_copy.dtype hspmm smm sspaddmm pdist where".split()
# An output lies where the inputs do, in the usual layout.
IMPLIED = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


def operator(t, node, arguments, named):
    """The entry of an operator. An in-place one becomes its functional twin."""
    target = functional(t, node)
    given = bound(target._schema, arguments, named)
    target = with_numbers(target, given)
    return call(t, node, target, with_dimensions(t, node, given))


def call(t, node, target, given, made=None):
    """The entry of an operator with arguments by name; `made` is what it gives, if not what the
    node does."""
    made = node.meta["val"] if made is None else made
    inputs, plain = taken(t, node, target, given)
    several = isinstance(made, (list, tuple))
    fakes = list(made) if several else [made]
    refuse_other_tensors(t, node, fakes)
    refuse_mixed_samples(t, node, target, given, fakes)
    first = fake(inputs[0])
    alike = not several and same_shape(made.shape, first.shape) and made.dtype == first.dtype
    if not alike and any(rows_of(t, one) > 1 for one in fakes):
        return unfolded(t, node, target, given, made)
    says = {"op": name_of(target)}
    if plain:
        says["args"] = plain
    if not alike:
        outputs = [output(t, node, one) for one in fakes]
        says["out"] = outputs if several else outputs[0]
    found = t.emit(node, "Aten", says, inputs, fakes=fakes if several else None)
    if not several:
        found.fake = made
    return found


def taken(t, node, target, given):
    """The tensors that an operator takes, and its other arguments as the model file has them."""
    inputs, plain = [], {}
    absent = False
    for argument in target._schema.arguments:
        value = given.get(argument.name)
        if takes_tensors(argument.type):
            parts = list(value) if isinstance(value, (list, tuple)) else [value]
            in_list = isinstance(value, (list, tuple)) and None in parts
            parts = [part for part in parts if part is not None]
            if parts and absent or in_list or not all(map(is_tensor, parts)):
                raise t.no_layer(node, f"{NO_LAYER} with these tensors")
            absent = absent or not parts
            inputs.extend(parts)
        elif argument.name in given and not is_implied(argument, value):
            plain[argument.name] = said(t, node, argument.name, value)
    return inputs, plain


def with_numbers(target, given):
    """The form of an operator that takes a number where a tensor may be, if one is there."""
    schema = target._schema
    tensors = [known.name for known in schema.arguments if str(known.type) == "Tensor"]
    numbers = [name for name in tensors if isinstance(given.get(name), (bool, int, float))]
    family = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
    scalar = getattr(family, "Scalar", None)
    if not numbers or scalar is None:
        return target
    there = [known.name for known in scalar._schema.arguments if str(known.type) == "Tensor"]
    return scalar if there == [name for name in tensors if name not in numbers] else target


def with_dimensions(t, node, given):
    """The arguments, of which a constant that is a number has one dimension. In PyTorch such a
    number has no say in the dtype of the result if it is of the same kind."""

    def changed(value):
        if isinstance(value, (list, tuple)):
            return [changed(part) for part in value]
        if not is_constant(value) or value.tensor.dim():
            return value
        made = node.meta["val"]
        dtype = value.tensor.dtype
        if isinstance(made, torch.Tensor) and made.is_floating_point() and dtype.is_floating_point:
            dtype = made.dtype
        return type(value)([trial.reshape(1).to(dtype) for trial in value.trials])

    return {name: changed(value) for name, value in given.items()}


def converted(t, node, value, dtype):
    """A tensor as another dtype."""
    if fake(value).dtype == dtype:
        return value
    if is_constant(value):
        return type(value)([trial.to(dtype) for trial in value.trials])
    target = torch.ops.aten.to.dtype
    made = torch.empty_like(fake(value), dtype=dtype)
    return call(t, node, target, {"self": value, "dtype": dtype}, made)


def unfolded(t, node, target, given, made):
    """An operator on tensors whose first size is a multiple of the batch, as windows of images
    are. A model file names sizes by single words, so these tensors are first
    [batch, multiple, ..]."""
    if isinstance(made, (list, tuple)):
        raise t.no_layer(node, f"{NO_LAYER} with several outputs of these sizes")
    batch = next(value.fake.shape[0] for value in t.inputs if t.is_batch(value))
    multiple = rows_of(t, made)

    def split(tensor):
        return tensor.new_empty([batch, multiple, *tensor.shape[1:]])

    changed = {}
    for name, value in given.items():
        if name == "dim" and isinstance(value, (int, list, tuple)):
            value = below(value)
        elif isinstance(value, (list, tuple, torch.SymInt)):
            raise t.no_layer(node, f"{NO_LAYER} with the argument {name} and these sizes")
        elif is_tensor(value) and is_constant(value):
            value = constant_rows(value, multiple)
        elif is_tensor(value) and rows_of(t, fake(value)) == multiple:
            sizes = {"dim": 0, "unflattened_size": [-1, multiple]}
            whole = value
            value = t.emit(node, "Unflatten", sizes, [whole])
            value.fake = split(fake(whole))
        changed[name] = value
    try:
        found, whole = (results(t, target, one, None)[0] for one in (changed, given))
        fits = alike(whole, found.flatten(0, 1))
    except (RuntimeError, IndexError):
        fits = False
    if not fits:
        raise t.no_layer(node, f"{NO_LAYER} with these sizes")
    found = call(t, node, target, changed, split(made))
    return t.emit(node, "Flatten", {"start_dim": 0, "end_dim": 1}, [found])


def below(dims):
    """Dimensions of a tensor that has one more in front."""
    if isinstance(dims, int):
        return dims if dims < 0 else dims + 1
    return [below(dim) for dim in dims]


def constant_rows(value, multiple):
    """A constant that has rows for each sample, as [batch, multiple, ..]."""
    if value.fixed or any(
        not trial.dim() or len(trial) != size * multiple
        for trial, size in zip(value.trials, SIZES[0])
    ):
        return value
    return type(value)([trial.unflatten(0, (-1, multiple)) for trial in value.trials])


def is_implied(argument, value):
    return argument.name in IMPLIED or value == argument.default_value


def functional(t, node):
    """The operator, which is allowed as far as can be told here."""
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        raise t.no_layer(node, NO_LAYER)
    name = schema.name.removeprefix("aten::")
    if schema.is_mutable:
        twin = getattr(torch.ops.aten, name.removesuffix("_"), None)
        target = getattr(twin, schema.overload_name or "default", None)
        if target is None or target._schema.is_mutable:
            raise t.no_layer(node, NO_LAYER)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise t.unknown(node, RANDOM)
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    name = target._schema.name.removeprefix("aten::")
    if is_refused(name, name_of(target)) or any(tag in target.tags for tag in tags):
        raise t.no_layer(node, NO_LAYER)
    return target


def is_refused(name, full):
    return (
        name.startswith(tuple(REFUSED_BEGINNINGS))
        or any(part in name for part in REFUSED_PARTS)
        or full in REFUSED_NAMES
    )


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
    if isinstance(value, (bool, int, float, str)) and value == value:
        return value
    raise t.no_layer(node, f"{NO_LAYER} with the argument {name}")


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
        raise t.no_layer(node, f"{NO_LAYER} that makes {name}")
    return name


def refuse_other_tensors(t, node, fakes):
    if any(not isinstance(made, torch.Tensor) or not made.dim() for made in fakes):
        raise t.unknown(
            node, "one of its outputs is a number; BossMan has tensors of one dimension up"
        )
    for made in fakes:
        dtype(t, node, made.dtype)


def output(t, node, made):
    shape = [size(t, node, one) for one in made.shape]
    kind = dtype(t, node, made.dtype)
    return shape if kind == "float32" else {"shape": shape, "dtype": kind}


def rows_of(t, tensor):
    """How many rows a tensor has for each sample, as its first size; 0 if that does not grow with
    the batch alone."""
    if not tensor.dim() or not t.has_batch(tensor.shape[0]):
        return 0
    rows = t.exported.size_of_one(tensor.shape[0])
    return rows if t.exported.size(tensor.shape[0], 1) == rows * SIZES[0][1] else 0


def refuse_mixed_samples(t, node, target, given, fakes):
    """Refuses an operator that computes across the samples of a batch: of random inputs, the first
    sample alone and the last one must give their rows of the result."""
    tensors = [fake(value) for value in leaves(list(given.values())) if is_tensor(value)]
    grows = any(t.has_batch(size) for tensor in tensors for size in tensor.shape)
    for made in fakes:
        if (grows or any(map(t.has_batch, made.shape))) and not rows_of(t, made):
            raise t.unknown(node, "its output does not begin with the batch")
    # Of few numbers, some are alike by chance.
    few = any(t.exported.size(tensor.numel(), 1) < FEW for tensor in tensors)
    for seed in range(8 if few else 1):
        try:
            whole = results(t, target, given, None, seed)
            parts = [results(t, target, given, sample, seed) for sample in (0, -1)]
        except Exception as problem:
            said = str(problem).strip().splitlines() or [type(problem).__name__]
            raise t.no_layer(node, f"{NO_LAYER}: {said[0]}") from problem
        for place, made in enumerate(fakes):
            shape = [t.exported.size(one, 1) for one in made.shape]
            if whole[place].dtype != made.dtype or list(whole[place].shape) != shape:
                raise t.no_layer(node, f"{NO_LAYER} with these dtypes")
            rows = rows_of(t, made)
            ends = [rows_at(whole[place], sample, rows) for sample in (0, -1)] if rows else []
            if not all(alike(one, part[place]) for one, part in zip(ends, parts)):
                raise t.unknown(
                    node,
                    "it computes across the samples of a batch, of which a layer sees a part only",
                )


def alike(one, other):
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), 1e-4, 1e-5, equal_nan=True
    )


def rows_at(tensor, sample, rows):
    """The rows of the first or the last sample."""
    return tensor[:rows] if sample == 0 else tensor[-rows:]


def leaves(found):
    for part in found:
        if isinstance(part, (list, tuple)):
            yield from leaves(part)
        else:
            yield part


def results(t, target, given, sample, seed=0):
    """What the operator gives for random inputs of a few samples, or for the first or last (0 and
    -1) of these."""
    generator = torch.Generator().manual_seed(seed)

    def concrete(value):
        if isinstance(value, (list, tuple)):
            return [concrete(part) for part in value]
        if is_tensor(value):
            return drawn(value)
        if isinstance(value, torch.SymInt):
            alone = sample is not None and t.has_batch(value)
            return t.exported.size_of_one(value) if alone else t.exported.size(value, 1)
        return value

    def drawn(value):
        if is_constant(value):
            made = value.trials[1]
            if value.fixed or sample is None:
                return made
            return rows_at(made, sample, len(made) // SIZES[0][1])
        if hasattr(value, "tensor"):
            return value.tensor.detach()
        tensor = value.fake
        shape = [t.exported.size(one, 1) for one in tensor.shape]
        if tensor.dtype.is_floating_point:
            made = torch.rand(shape, generator=generator, dtype=tensor.dtype)
        else:
            made = torch.randint(0, 2, shape, generator=generator).to(tensor.dtype)
        rows = rows_of(t, tensor)
        return rows_at(made, sample, rows) if rows and sample is not None else made

    with torch.no_grad():
        found = target(**{name: concrete(value) for name, value in given.items()})
    return list(found) if isinstance(found, (list, tuple)) else [found]
