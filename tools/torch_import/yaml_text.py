"""The text of a model file."""

import json
import math
import re

NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def scalar(value):
    """An argument as YAML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {scalar(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def head(entry):
    """The name of an entry's layer with its arguments; as it is in a line."""
    return f"{entry.kind}: {scalar(entry.arguments)}" if entry.arguments else entry.kind


def names(entries):
    """Gives names to entries without one that would otherwise be called like another, and to those
    whose parameters others share."""
    taken = {entry.name for entry in entries if entry.name}
    for place, entry in enumerate(entries):
        if entry.name is None and (str(place) in taken or entry.tensors):
            name = f"{entry.kind.lower()}_{place}"
            while name in taken:
                name += "_"
            entry.name = name
            taken.add(name)


def variables(entries, inputs, outputs):
    """The names of the values that are variables, by their keys."""
    called = {value.key: value.hint for value in inputs}
    taken = set(called.values())
    above, needed = inputs[0].key, []
    for entry in entries:
        first, *others = [value.key for value in entry.inputs]
        needed.extend(others if first == above else [first, *others])
        above = entry.outputs[0].key
    if [value.key for value in outputs] != [above]:
        needed.extend(value.key for value in outputs)
    needed = set(needed)
    for entry in entries:
        used = [place for place, value in enumerate(entry.outputs) if value.key in needed]
        # An output before the last one that is used needs a name, too.
        for place, value in enumerate(entry.outputs[: used[-1] + 1] if used else []):
            unused = f"{entry.kind.lower()}_unused_{place}"
            hint = value.hint if value.key in needed else unused
            if value.key not in called:
                name = re.sub(r"[\W_]+", "_", hint).strip("_")
                while name in taken:
                    name += "_"
                called[value.key] = name
                taken.add(name)
    return called


def text(model, inputs, input_lines, entries, outputs):
    """The model file of entries in their order."""
    names(entries)
    called = variables(entries, inputs, outputs)
    lines = [f"model: {model}", "inputs:", *(f"  {line}" for line in input_lines), "layers:"]
    above = inputs[0].key
    for entry in entries:
        lines.extend(entry_lines(entry, above, called))
        above = entry.outputs[0].key
    if [value.key for value in outputs] != [above]:
        lines.append(f"outputs: [{', '.join(called[value.key] for value in outputs)}]")
    return "\n".join(lines) + "\n"


def entry_lines(entry, above, called):
    below = {}
    if entry.name:
        below["name"] = json.dumps(entry.name)
    first, *others = [value.key for value in entry.inputs]
    if first != above:
        below["input"] = called[first]
    if others:
        below["in_variables"] = f"[{', '.join(called[key] for key in others)}]"
    outputs = list(entry.outputs)
    while outputs and outputs[-1].key not in called:
        outputs.pop()
    if outputs:
        below["out_variables"] = f"[{', '.join(called[value.key] for value in outputs)}]"
    if entry.share:
        below["share"] = json.dumps(entry.share.name)
    if entry.freeze:
        below["freeze"] = "true"
    said = head(entry)
    if below and not entry.arguments:
        said += ":"
    return [f"  - {said}", *(f"    {key}: {value}" for key, value in below.items())]
