"""The notes of workloads: text by hand, figures from what was measured.

A note in bench/notes/ has placeholders in braces and no typed figure:

    {ratio A / B}   the median over pairs of series A divided by series B
"""

import re

from figures import ratio

PLACEHOLDER = re.compile(r"\{ratio ([^{}]+)\}")

CODE = re.compile(r"`[^`]*`")
# A typed time, rate or share.
MEASUREMENT = re.compile(
    r"(?<![.\w])\d[\d.,]* ?(?:ms|us|s|min|seconds?|minutes?|hours?|[kKMG]i?B/s|times|%)(?!\w)"
)


def filled(text, pairs):
    """The note with its figures. `pairs` has the values of each series."""

    def figure(match):
        above, below = match[1].split(" / ")
        return f"{ratio(pairs[above], pairs[below]):.2f}"

    return PLACEHOLDER.sub(figure, text)


def typed_figures(text):
    """The words of a note with a typed digit, outside code and placeholders."""
    words = CODE.sub("", PLACEHOLDER.sub("", text)).split()
    return [word for word in words if re.search(r"\d", word)]
