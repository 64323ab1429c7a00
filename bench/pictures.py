"""A step of P as measured and as predicted: the parts of the time under every schedule, and
pictures of two of them."""

import json

import timeline
from programs import CHECKOUT, Problem, target

DRAWN = ("1f1b", "zb-h1")
FOLDER = CHECKOUT / "docs"


def trace(name):
    """The file of the trace of a schedule, from the last run of P under it."""
    return target() / "bench" / f"{name}.json"


def picture(name):
    """The file of the picture of a schedule."""
    return FOLDER / f"timeline-{name}.svg"


def draw(names):
    """Draws the pictures; gives {schedule: {part: {worker: {what: seconds}}}}. Raises Problem if a
    trace is invalid."""
    found = {}
    for name in names:
        try:
            parts = timeline.read(json.loads(trace(name).read_text(encoding="utf-8")))
            found[name] = {part: timeline.spent(rows) for part, rows in parts.items()}
            if name in DRAWN:
                picture(name).write_text(
                    timeline.svg(f"A step of P under {name}", parts), encoding="utf-8"
                )
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise Problem(f"no timeline from {trace(name).name}: {problem!r}") from None
    return found
