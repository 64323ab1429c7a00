"""The text of a model file."""

import json
import math
import re

from .repeats import Block, folded, local_name

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


def names(items):
    """Gives names to entries without one that would otherwise be called like another, and to those
    whose parameters others share. A name of a block goes before those of its layers."""
    taken = {item.name for item in items if item.name}
    blocks = 0
    for place, item in enumerate(items):
        if isinstance(item, Block):
            block_names(item)
            blocks += 1
            continue
        # Below each block there may be one more layer.
        places = {str(place + more) for more in range(blocks + 1)}
        if item.name is None and (places & taken or item.tensors):
            item.name = unused_name(item, place, taken)


def block_names(block):
    """The same in a block: its layers' places begin anew."""
    above = 1 if block.named else 0
    locals_ = [local_name(entry, f"{block.name}.0.") for entry in block.windows[0]]
    taken = {local for local in locals_ if local}
    for place, (local, entry) in enumerate(zip(locals_, block.windows[0])):
        if not local and (str(place + above) in taken or entry.tensors):
            local = unused_name(entry, place, taken)
        for number, window in enumerate(block.windows):
            window[place].name = f"{block.name}.{number}.{local}" if local else None


def unused_name(entry, place, taken):
    name = f"{entry.kind.lower()}_{place}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


class Variables:
    """The names of the values that are variables, by their keys."""

    def __init__(self, inputs):
        self.called = {value.key: value.hint for value in inputs}
        self.taken = set(self.called.values())

    def add(self, items, above, outputs):
        """Names what the items of a list need, of which the first gets `above` from above."""
        needed = set(needed_by(items, above, outputs))
        for item in items:
            entries = [item]
            if isinstance(item, Block):
                into = item.windows[0][0].inputs[0].key
                if item.named:
                    self.name(("into", item.name), f"{item.name} input")
                self.add(item.windows[0], into, [])
                entries = [item.windows[-1][-1]]
            for entry in entries:
                self.add_outputs(entry, needed)

    def add_outputs(self, entry, needed):
        used = [place for place, value in enumerate(entry.outputs) if value.key in needed]
        # An output before the last one that is used needs a name, too.
        for place, value in enumerate(entry.outputs[: used[-1] + 1] if used else []):
            unused = f"{entry.kind.lower()}_unused_{place}"
            self.name(value.key, value.hint if value.key in needed else unused)

    def name(self, key, hint):
        if key in self.called:
            return
        name = re.sub(r"[\W_]+", "_", hint).strip("_")
        while name in self.taken:
            name += "_"
        self.called[key] = name
        self.taken.add(name)


def needed_by(items, above, outputs):
    """The keys of the values that items need by a name."""
    for item in items:
        if isinstance(item, Block):
            own = {value.key for entry in item.windows[0] for value in entry.outputs}
            own.add(item.windows[0][0].inputs[0].key)
            for entry in item.windows[0]:
                yield from (value.key for value in entry.inputs if value.key not in own)
        else:
            first, *others = [value.key for value in item.inputs]
            yield from others if first == above else [first, *others]
        above = item.outputs[0].key
    if outputs and [value.key for value in outputs] != [above]:
        yield from (value.key for value in outputs)


def text(model, inputs, input_lines, entries, outputs):
    """The model file of entries in their order."""
    items = folded(entries, inputs[0], outputs)
    names(items)
    variables = Variables(inputs)
    variables.add(items, inputs[0].key, outputs)
    called = variables.called
    lines = [f"model: {model}", "inputs:", *(f"  {line}" for line in input_lines), "layers:"]
    above = inputs[0].key
    for item in items:
        if isinstance(item, Block):
            lines.extend(block_lines(item, called))
        else:
            lines.extend(entry_lines(item, item.name, above, called))
        above = item.outputs[0].key
    if [value.key for value in outputs] != [above]:
        lines.append(f"outputs: [{', '.join(called[value.key] for value in outputs)}]")
    return "\n".join(lines) + "\n"


def block_lines(block, called):
    """A block, and after it a name for what it makes, if one is needed."""
    into, made = block.windows[0][0].inputs[0].key, block.outputs[0].key
    # In the block the name of what comes in is that of each repetition.
    inside = {key: name for key, name in called.items() if key != made}
    lines = [f"  - name: {json.dumps(block.name)}", f"    repeat: {len(block.windows)}"]
    lines.append("    layers:")
    if block.named:
        inside[into] = called["into", block.name]
        lines += ["      - Identity:", f"        out_variables: [{inside[into]}]"]
    above = into
    for entry in block.windows[0]:
        local = local_name(entry, f"{block.name}.0.")
        lines += [f"    {line}" for line in entry_lines(entry, local, above, inside)]
        above = entry.outputs[0].key
    if made in called:
        lines += ["  - Identity:", f"    out_variables: [{called[made]}]"]
    return lines


def entry_lines(entry, name, above, called):
    below = {}
    if name:
        below["name"] = json.dumps(name)
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
