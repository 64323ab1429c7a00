"""Entries of a model file, and the values that pass between them."""


class Value:
    """An input of the model, or an output of an entry. `fake` knows its shape and dtype."""

    def __init__(self, fake, hint, entry=None, index=0):
        self.fake, self.hint, self.entry, self.index = fake, hint, entry, index

    def copy(self):
        """The same value as another object, for a node that an in-place function may change."""
        return Value(self.fake, self.hint, self.entry, self.index)

    @property
    def key(self):
        """What is equal for all copies."""
        return (id(self.entry), self.index) if self.entry else self.hint


class Entry:
    """One layer. `inputs` are values; None stands for an input that is only a formality, of which
    the layer takes the batch size (`formal` is "batch") or nothing (`formal` is "any")."""

    def __init__(self, kind, arguments, inputs, name=None, formal=None):
        self.kind, self.arguments, self.inputs, self.name = kind, arguments, inputs, name
        self.formal, self.share, self.freeze = formal, None, False
        self.tensors = {}
        self.outputs = []


def used(entries, outputs):
    """The entries that the outputs depend on, in their order."""
    needed, waiting = set(), [value.entry for value in outputs]
    while waiting:
        entry = waiting.pop()
        if entry is None or id(entry) in needed:
            continue
        needed.add(id(entry))
        waiting.extend(value.entry for value in entry.inputs if value is not None)
        if entry.share:
            waiting.append(entry.share)
    return [entry for entry in entries if id(entry) in needed]


def formal_inputs(entries, first, is_batch):
    """Gives an input to each entry for which it is a formality: the output of the entry above, so
    that no variable is kept for it, or else the first input."""
    above = first
    for entry in entries:
        if entry.formal:
            fits = entry.formal == "any" or is_batch(above)
            entry.inputs = [above if fits else first]
        above = entry.outputs[0]
