"""The commands whose time `build_times.py` measures, and their lines on the pages."""

from typing import NamedTuple

NAME = "build-times"
EDITED = "crates/pipeline/src/boss/mod.rs"


class Step(NamedTuple):
    """A command whose time counts, and the commands before it."""

    words: str
    fresh: bool
    before: tuple = ()


STEPS = {
    "demo": Step("`make demo` from nothing", True),
    "check": Step(
        f"`make check` from warm, after a new line in `{EDITED}`",
        False,
        # Every line of the file moves, so its functions are compiled anew. `touch` would not do.
        (["make", "check"], ["sed", "-i", "1i // A new line.", EDITED]),
    ),
    "test": Step("`make test` from nothing", True),
}


def table(results):
    """The rows of the page: minutes of each command, and where they were measured."""
    head = ["", "minutes", "crates", "cores", "load before", "on", "commit", "processor"]
    rows = [
        [
            step.words,
            f"{found['seconds'] / 60:.1f}",
            "at hand" if found["reused"] else "downloaded",
            found["machine"]["cores"],
            max(found["load"]),
            found["when"],
            found["commit"],
            found["machine"]["processor"],
        ]
        for name, step in STEPS.items()
        if (found := results.get(name))
    ]
    return head, rows


def sentence(results):
    """The demo in README.md; nothing if it was not measured."""
    demo = results.get("demo")
    if demo is None:
        return ""
    reached = f" and reached {demo['accuracy']:.2f} % test accuracy" if "accuracy" in demo else ""
    minutes, cores = f"{demo['seconds'] / 60:.1f}", demo["machine"]["cores"]
    return f"`make demo` from nothing took {minutes} minutes on {cores} cores{reached}."
