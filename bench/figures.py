"""Medians and ratios of what was measured in pairs."""

from statistics import median


def settled(times, warm_up):
    """The median of a run's steps after the first few, which set things up."""
    return median(times[warm_up:])


def best(runs):
    """The name whose median over all pairs is smallest, of {name: [value of each pair]}."""
    return min(runs, key=lambda name: median(runs[name]))


def paired(first, second):
    """The values of two lists of one length, in pairs. Python 3.8's `zip` has no `strict`."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values beside {len(second)}")
    return zip(first, second)


def ratio(above, below):
    """The median over pairs of one value divided by the other of the same pair."""
    return median(a / b for a, b in paired(above, below))


def spread(values):
    """(smallest, largest)"""
    return min(values), max(values)


def perfect_1f1b(single, microbatches, workers=2):
    """The time of a step that a pipeline without any cost of its own takes under 1F1B, from that of
    one process."""
    return single / workers * (microbatches + workers - 1) / microbatches
