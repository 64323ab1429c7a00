#!/usr/bin/env python3
"""Lays two loss curves side by side: how far they are apart, and a picture of both.

    tools/curve.py bossman.jsonl pytorch.jsonl --svg curve.svg

Both are files of `--metrics`: a line of JSON a step, `{"step":1,"loss":0.69}`. Differences are
relative to the second."""

import argparse
import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 320, 58, 12, 34, 36
# Of more steps than these, a point of the picture is the mean over several.
POINTS = 300
# The resolution of float32; smaller differences are drawn here.
LEAST = 1e-8


class Unfit(Exception):
    """Files that cannot be compared."""


def read(path):
    """{step: loss}."""
    losses = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if "validation" in entry:
                # A look at the model after an epoch.
                continue
            step, loss = int(entry["step"]), entry["loss"]
        except (ValueError, KeyError, TypeError):
            raise Unfit(f"{path}: line {number} is no step: {line[:60]}") from None
        if not isinstance(loss, (int, float)) or not math.isfinite(loss):
            raise Unfit(f"{path}: the loss of step {step} is no number")
        losses[step] = float(loss)
    return losses


def differences(first, second):
    """{step: relative difference} of the steps that both have."""
    steps = sorted(first.keys() & second.keys())
    if not steps:
        raise Unfit("the files have no step in common")
    return {
        step: abs(first[step] - second[step]) / max(abs(second[step]), sys.float_info.min)
        for step in steps
    }


def summary(first, second, names):
    apart = differences(first, second)
    steps = list(apart)
    worst = max(steps, key=apart.get)
    lines = [f"{len(steps)} steps in common"]
    for losses, name in zip((first, second), names):
        if len(losses) > len(steps):
            lines[0] += f", {len(losses) - len(steps)} only in {name}"
    for title, step in (("largest", worst), ("final", steps[-1])):
        both = " and ".join(f"{losses[step]:.6g}" for losses in (first, second))
        lines.append(f"{title} relative difference {apart[step]:.1e}, at step {step}: {both}")
    return "\n".join(lines)


def thinned(points, mean):
    """At most POINTS points, each the mean (or the largest) of neighbours."""
    size = -(-len(points) // POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    take = (lambda numbers: sum(numbers) / len(numbers)) if mean else max
    return [(group[-1][0], take([value for _, value in group])) for group in groups]


def ticks(low, high):
    """About five round numbers between two."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [
        number * step
        for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


class Panel:
    """One of two diagrams: steps to the right, numbers up."""

    def __init__(self, left, title, steps, low, high, log):
        self.left, self.right = left + LEFT, left + WIDTH / 2 - RIGHT
        self.steps, self.low, self.high = steps, low, high if high > low else low + 1
        self.parts = [f'<text x="{self.left}" y="18" font-weight="bold">{title}</text>']
        for value in (
            [float(p) for p in range(math.ceil(low), math.floor(high) + 1)]
            if log
            else ticks(low, self.high)
        ):
            y, text = self.y(value), f"1e{value:.0f}" if log else f"{value:.4g}"
            self.parts.append(f'<path d="M{self.left} {y:.1f}H{self.right}" stroke="#ddd"/>')
            self.parts.append(
                f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            )
        for step in ticks(*steps):
            if step == int(step):
                self.parts.append(
                    f'<text x="{self.x(step):.1f}" y="{HEIGHT - 16}" '
                    f'text-anchor="middle">{step:.0f}</text>'
                )

    def x(self, step):
        first, last = self.steps
        return self.left + (self.right - self.left) * (step - first) / max(last - first, 1)

    def y(self, value):
        return (
            HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - self.low) / (self.high - self.low)
        )

    def line(self, points, colour, width):
        path = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )

    def name(self, text, colour, place):
        # A falling loss leaves the top right corner free.
        y = TOP + 14 + 16 * place
        self.parts.append(
            f'<path d="M{self.right - 130} {y - 4}h18" stroke="{colour}" stroke-width="4"/>'
        )
        self.parts.append(f'<text x="{self.right - 106}" y="{y}">{escaped(text)}</text>')


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def svg(first, second, names):
    """The picture: both losses, and beside them how far they are apart."""
    apart = differences(first, second)
    curves = [
        thinned([(step, losses[step]) for step in apart], mean=True) for losses in (first, second)
    ]
    values = [value for curve in curves for _, value in curve]
    steps = (min(apart), max(apart))
    losses = Panel(0, "Loss", steps, min(values), max(values), log=False)
    for curve, name, (colour, width), place in zip(
        curves, names, [("#f2a65a", 5), ("#1d4e89", 1.5)], range(2)
    ):
        losses.line(curve, colour, width)
        losses.name(name, colour, place)
    found = [
        (step, math.log10(max(value, LEAST)))
        for step, value in thinned(list(apart.items()), mean=False)
    ]
    heights = [value for _, value in found]
    distance = Panel(
        WIDTH / 2,
        "Relative difference",
        steps,
        math.floor(min(heights)),
        max(math.ceil(max(heights)), -7),
        log=True,
    )
    distance.line(found, "#1d4e89", 1.5)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    body = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *losses.parts,
        *distance.parts,
    ]
    return "\n".join([head, *body, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw both curves")
    parser.add_argument(
        "--names", nargs=2, metavar="NAME", help="what to call them [default: the files' names]"
    )
    options = parser.parse_args()
    names = options.names or [options.first.stem, options.second.stem]
    try:
        first, second = read(options.first), read(options.second)
        print(summary(first, second, names))
        if options.svg:
            options.svg.write_text(svg(first, second, names), encoding="utf-8")
    except (Unfit, OSError) as problem:
        sys.exit(f"curve: {problem}")


if __name__ == "__main__":
    main()
