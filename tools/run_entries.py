"""Runs the entries that torch_import makes in PyTorch, for tests: what a model file means, said a
second time. In evaluation mode."""

import functools


def run(torch, translation, samples):
    """The outputs of a translation for the inputs by name."""
    known = {value.key: samples[value.hint] for value in translation.inputs}
    with torch.no_grad():
        for entry in translation.entries:
            tensors = tensors_of(translation, entry)
            inputs = [known[value.key] for value in entry.inputs]
            found = compute(torch, translation, entry, tensors, inputs)
            found = found if isinstance(found, (tuple, list)) else [found]
            for value, result in zip(entry.outputs, found):
                known[value.key] = result
    return [known[value.key] for value in translation.outputs]


def tensors_of(translation, entry):
    found = dict(entry.share.tensors) if entry.share else {}
    found.update(entry.tensors)
    return {local: translation.state[path] for local, path in found.items()}


def compute(torch, translation, entry, tensors, inputs):
    kind, says = entry.kind, entry.arguments
    plain = plumbing(torch, says)
    if kind == "Constant":
        tensor = translation.constants[says["tensor"]]
        size = [len(inputs[0]), *tensor.shape[1:]]
        return tensor.expand(size) if says.get("expand") else tensor
    if kind == "Parameter":
        tensor = tensors["value"].reshape(says["shape"])
        size = [len(inputs[0]), *tensor.shape[1:]]
        return tensor.expand(size) if says.get("expand", True) else tensor
    if kind == "Aten":
        return operator(torch, says, inputs)
    if kind in plain:
        return plain[kind](*inputs)
    if kind == "Linear" and says.get("transposed"):
        return torch.nn.functional.linear(inputs[0], tensors["weight"].t(), tensors.get("bias"))
    module = make(torch, kind, says, inputs).eval()
    own = {name: tensors[name] for name in module.state_dict() if name in tensors}
    if kind == "RMSNorm" and "offset" in says:
        own["weight"] = own["weight"] + says["offset"]
    module.load_state_dict(own)
    if kind == "MultiheadAttention":
        return module(*inputs * 3, need_weights=False)[0]
    found = module(*inputs)
    if kind in ("LSTM", "GRU", "RNN"):
        output, states = found
        return [output, *(states if isinstance(states, tuple) else [states])]
    return found


def operator(torch, says, inputs):
    name, _, overload = says["op"].partition(".")
    target = getattr(getattr(torch.ops.aten, name), overload or "default")
    given, left = dict(says.get("args", {})), list(inputs)
    size = {"batch": len(inputs[0])}
    for key, value in given.items():
        if isinstance(value, list):
            given[key] = [size.get(part, part) for part in value]
        elif key == "dtype":
            given[key] = getattr(torch, value)
        else:
            given[key] = size.get(value, value)
    for argument in target._schema.arguments:
        if "List[Tensor]" in str(argument.type):
            given[argument.name], left = left, []
        elif "Tensor" in str(argument.type) and left:
            given[argument.name] = left.pop(0)
    return target(**given)


def make(torch, kind, says, inputs):
    says = {name: value for name, value in says.items() if name != "offset"}
    return getattr(torch.nn, kind)(**says)


def plumbing(torch, says):
    """Layers that torch.nn does not have."""
    dim = says.get("dim")
    return {
        "Add": lambda *x: (
            functools.reduce(torch.add, x) + says.get("number", 0)
            if "number" in says
            else functools.reduce(torch.add, x)
        ),
        "Sub": torch.sub,
        "Mul": lambda *x: functools.reduce(torch.mul, x),
        "Scale": lambda x: x * says["factor"],
        "MatMul": torch.matmul,
        "Rsqrt": torch.rsqrt,
        "Sqrt": torch.sqrt,
        "Exp": torch.exp,
        "Abs": torch.abs,
        "Clamp": lambda x: x.clamp(**says),
        "Div": torch.div,
        "Flip": lambda x: x.flip(says["dims"]),
        "DropPath": lambda x: x,
        "Reshape": lambda x: x.reshape(says["shape"]),
        "Transpose": lambda x: x.transpose(says["dim0"], says["dim1"]),
        "Permute": lambda x: x.permute(says["dims"]),
        "Unsqueeze": lambda x: x.unsqueeze(dim),
        "Squeeze": lambda x: x.squeeze(dim),
        "Slice": lambda x: part(x, says),
        "Select": lambda x: x.select(dim, says["index"]),
        "Split": lambda x: x.split(says["split_size_or_sections"], dim),
        "Chunk": lambda x: x.chunk(says["chunks"], dim),
        "Concat": lambda *x: torch.cat(x, dim),
        "Stack": lambda *x: torch.stack(x, dim or 0),
        "Mean": lambda x: x.mean(dim, says.get("keepdim", False)),
        "Sum": lambda x: x.sum(dim, says.get("keepdim", False)),
        "Expand": lambda x: x.expand(says["size"]),
        "Roll": lambda x: x.roll(says["shifts"], says["dims"]),
        "Index": lambda x, index: x[(slice(None),) * dim + (index,)],
        "MaskedFill": lambda x, mask: torch.where(mask, says["value"], x),
        "Pad": lambda x: torch.nn.functional.pad(x, says["pad"], **without(says, "pad")),
        "ScaledDotProductAttention": lambda *x: torch.nn.functional.scaled_dot_product_attention(
            *x, **without(says, "dropout_p")
        ),
    }


def without(says, name):
    return {key: value for key, value in says.items() if key != name}


def part(x, says):
    cut = slice(says.get("start"), says.get("end"), says.get("step"))
    return x[(slice(None),) * says["dim"] + (cut,)]
