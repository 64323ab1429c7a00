"""Blocks of equal layers, one after the other, for `repeat`.

The module's names say where to look: `blocks.0.norm` and `blocks.1.norm` are one layer of two
repetitions. The layers from one to the other must be equal in both: kinds, arguments, names and
connections. A repetition takes what the one before has made last, and what was there before all."""

import re


class Block:
    """Repetitions of equal layers. `named` says whether more than the first layer takes what comes
    into a repetition."""

    def __init__(self, name, windows, named):
        self.name, self.windows, self.named = name, windows, named

    @property
    def outputs(self):
        """What the last layer of the last repetition makes."""
        return self.windows[-1][-1].outputs


def hoisted(entries):
    """The entries with each constant that several repetitions take before the first of these, and
    before the layer that makes what comes into it."""
    readers = [id(value.entry) for entry in entries for value in entry.inputs if value]
    made = list(entries)
    for constant in entries:
        if constant.kind != "Constant" or readers.count(id(constant)) < 2:
            continue
        place = made.index(constant)
        below = [entry.name or "" for entry in made[place:]]
        starts = (at for at in range(place) if goes_on(made[at].name or "", below))
        start = next(starts, None)
        if start is not None:
            made.insert(max(0, start - 1), made.pop(place))
    return made


def goes_on(name, below):
    """Whether one of the names below is of a repetition, and `name` of the first of these."""
    prefixes = [name[: found.start() + 1] for found in re.finditer(r"\.0\.", name)]
    return any(
        other.startswith(prefix) and re.match(r"\d+\.", other[len(prefix) :])
        for prefix in prefixes
        for other in below
    )


def folded(entries, first, outputs):
    """The entries in their order, with blocks in the place of those that repeat. `first` is the
    model's first input."""
    places = {entry.name: place for place, entry in enumerate(entries) if entry.name}
    items, place = [], 0
    while place < len(entries):
        block = block_at(entries, place, places, first, outputs)
        items.append(block or entries[place])
        place += sum(map(len, block.windows)) if block else 1
    return items


def block_at(entries, start, places, first, outputs):
    """The block that begins with an entry, or None. Of blocks in blocks it is the outer one."""
    name = entries[start].name or ""
    for found in re.finditer(r"\.0\.", name):
        prefix, local = name[: found.start()], name[found.end() :]
        if prefix in places:
            continue
        size = places.get(f"{prefix}.1.{local}", start) - start
        windows = equal_windows(entries, start, size, prefix, first) if size > 1 else []
        while len(windows) > 1:
            if is_closed(entries, start, windows, outputs):
                into = coming(entries, start, first)
                uses = [value.key for entry in windows[0] for value in entry.inputs]
                return Block(prefix, windows, uses.count(into) > 1)
            windows.pop()
    return None


def equal_windows(entries, start, size, prefix, first):
    """The windows of this size from `start` on that equal the first one."""
    windows, model = [], None
    while start + size <= len(entries):
        window = entries[start : start + size]
        signature = signature_of(window, len(windows), prefix, coming(entries, start, first))
        model = model or signature
        if signature is None or signature != model:
            break
        windows.append(window)
        start += size
    return windows


def coming(entries, start, first):
    """What comes into an entry from above."""
    return entries[start - 1].outputs[0].key if start else first.key


def signature_of(window, number, prefix, into):
    """What must be equal in all repetitions, or None if this cannot be one."""
    made = {
        value.key: (place, index)
        for place, entry in enumerate(window)
        for index, value in enumerate(entry.outputs)
    }
    if window[0].inputs[0].key != into:
        return None
    lines = []
    for entry in window:
        local = local_name(entry, f"{prefix}.{number}.")
        if local is None or entry.share:
            return None
        sources = [
            "into" if value.key == into else made.get(value.key, value.key)
            for value in entry.inputs
        ]
        tensors = sorted(entry.tensors)
        lines.append(
            (local, entry.kind, repr(entry.arguments), entry.freeze, len(entry.outputs), tensors)
            + tuple(sources)
        )
    return lines


def local_name(entry, prefix):
    """The name of an entry in its repetition: "" if it has none, None if it is of another one."""
    if not entry.name:
        return ""
    return entry.name[len(prefix) :] if entry.name.startswith(prefix) else None


def is_closed(entries, start, windows, outputs):
    """Whether nothing outside takes more of the repetitions than what the last one makes last, and
    no layer shares the parameters of one of them."""
    inside = [entry for window in windows for entry in window]
    hidden = {value.key for entry in inside for value in entry.outputs}
    hidden.discard(inside[-1].outputs[0].key)
    others = entries[:start] + entries[start + len(inside) :]
    taken = [value.key for entry in others for value in entry.inputs]
    taken += [value.key for value in outputs]
    # Of the repetition before, one takes the last value alone: else its signature would differ.
    shared = [entry.share for entry in entries if entry.share]
    return hidden.isdisjoint(taken) and not any(entry in shared for entry in inside)
