"""nn.Sequential, however nested, of layers that BossMan has: it needs no graph."""

from . import modules
from .entries import Entry
from .problem import Unknown
from .yaml_text import head

# Layers that only this way knows: in a graph they leave nothing, or have more than one input.
MORE = {"Identity", "TransformerDecoderLayer"}


def layers(module, name=""):
    """[(name, module)] of all layers, in the order they run."""
    kind = type(module).__name__
    # A class of other code has a forward() of its own, though it has the name of one of PyTorch.
    if not type(module).__module__.startswith("torch.nn."):
        raise Unknown(
            f"{name or 'the model'} is a {kind}, whose forward() only Python knows; use "
            "nn.Sequential"
        )
    if kind == "Sequential":
        return [
            found
            # named_children() leaves out a module that it has seen.
            for child, layer in module._modules.items()
            for found in layers(layer, below(name, child))
        ]
    if kind == "TransformerEncoder":
        found = [
            (f"{below(name, 'layers')}.{number}", layer)
            for number, layer in enumerate(module.layers)
        ]
        return found + ([(below(name, "norm"), module.norm)] if module.norm is not None else [])
    return [(name or "0", module)]


def below(name, child):
    return f"{name}.{child}" if name else child


def is_plain(module):
    """Whether a module is such layers only, each of which runs once and owns its parameters."""
    try:
        found = layers(module)
    except Unknown:
        return False
    known = all(modules.is_native(layer) or type(layer).__name__ in MORE for _, layer in found)
    known &= not any(map(modules.is_altered, module.modules()))
    known = known and not any(modules.may_mix_samples(layer) for _, layer in found)
    own = [[*layer.parameters(), *layer.buffers()] for _, layer in found]
    tensors = [id(tensor) for layer in own for tensor in layer]
    learned = [
        tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if not modules.is_statistic(name)
    ]
    trained = all(modules.is_trained(tensor) and not tensor._backward_hooks for tensor in learned)
    return known and trained and len(tensors) == len(set(tensors))


def text(module, inputs, name="from-torch"):
    """The model file."""
    lines = [f"model: {name}", "inputs:", *(f"  {line}" for line in inputs), "layers:"]
    for path, layer in layers(module):
        said = head(Entry(type(layer).__name__, modules.arguments(layer), []))
        lines.append(f"  - {said}" if said.endswith("}") else f"  - {said}:")
        lines.append(f'    name: "{path}"')
    return "\n".join(lines) + "\n"


def state(module):
    """The weights by the names of the model file."""
    return {name: value for name, (_, value) in named(module).items()}


def own_names(module):
    """The module's names by those of the model file."""
    return {name: [own] for name, (own, _) in named(module).items()}


def named(module):
    """By the name in the model file, the module's name and the tensor."""
    alone = len(layers(module)) == 1 and layers(module)[0][1] is module
    own = module.state_dict()
    return {f"0.{name}" if alone else name: (name, tensor) for name, tensor in own.items()}
