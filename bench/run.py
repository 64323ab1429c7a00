#!/usr/bin/env python3
"""Measures BossMan beside PyTorch on this machine and writes docs/performance.md, docs/faults.md
and the figures of README.md. See bench/README.md.

bench/run.py                        everything, five pairs
bench/run.py --only P,T --pairs 7   these only; the rest of the page stays as it was measured
bench/run.py --page                 the pages anew from bench/results, measuring nothing
"""

import argparse
import signal
import sys

import far
import machine
import namespaces
import pages
import pictures
import result_files
import slow
import torch_libraries
import workloads
from programs import Problem, target


def measures():
    """For every workload what makes one pair of it."""
    distant = {f"H{ms}": (lambda bench, ms=ms: far.pair(bench, ms)) for ms in far.DELAYS}
    return {**workloads.WORKLOADS, "D-slow": slow.pair, **distant}


def chosen(text, known):
    """The workloads that `text` names, in the order of `known`; a name's beginning stands for all
    that begin so by number.

    So H stands for H5, H20 and H50.
    """
    parts = text.split(",")
    found = [
        name
        for name in known
        if name in parts or name.rstrip("0123456789") in set(parts) - set(known)
    ]
    for part in parts:
        if part not in known and not any(name.rstrip("0123456789") == part for name in known):
            raise ValueError(f"--only {part}: expected some of {', '.join(known)}")
    return found


def measure(name, pair, bench, count):
    """`count` pairs of a workload; if one cannot be made, the reason."""
    reason = namespaces.possible() if name.startswith("H") or name == "D-slow" else None
    result = {**result_files.header(), "pairs": [], "load": []}
    try:
        for number in range(count):
            if reason:
                raise Problem(reason)
            result["load"].append(machine.load())
            result["pairs"].append(pair(bench))
            say(f"{name}: pair {number + 1} of {count}")
    except Problem as problem:
        result["problem"] = str(problem)
        say(f"{name}: {problem}")
    return result


def say(text):
    """Says how far it is, beside the output."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def draw(bench):
    """The results of the traces of P; without them the page is still worth having."""
    try:
        spent = pictures.draw(bench.pick())
    except Problem as problem:
        say(str(problem))
        return
    result_files.save("timelines", spent)


def run(names, count):
    """Measures these workloads and writes the page after each, so that a run that is broken off
    leaves what it had."""
    bench = workloads.Bench(torch_libraries.environment(target() / "bench" / "libraries"))
    for name in names:
        result_files.save(name, measure(name, measures()[name], bench, count))
        if name == "P":
            draw(bench)
        pages.write()


def main():
    known = list(measures())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(known), help="workloads, with commas [default: %(default)s]"
    )
    parser.add_argument(
        "--pairs", type=int, default=5, help="how often each is measured on both sides [default: 5]"
    )
    parser.add_argument(
        "--page", action="store_true", help="measure nothing, write the pages from bench/results"
    )
    options = parser.parse_args()
    try:
        names = chosen(options.only, known)
    except ValueError as problem:
        parser.error(str(problem))
    # Ended by another program, it cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not options.page:
            run(names, options.pairs)
        pages.write()
    except Problem as problem:
        sys.exit(f"bench: {problem}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; what was measured is in bench/results")


if __name__ == "__main__":
    main()
