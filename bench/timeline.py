"""A picture of a step: what each worker did when, as measured and as predicted, from a file of
Chrome's trace events.

Times are in microseconds; pid 0 is what was measured, pid 1 what was predicted, tid is the worker,
and an event's `args` say its step, stage and microbatch."""

from html import escape

PARTS = {0: "measured", 1: "predicted"}
# By how an event's name begins; the first that fits.
COLOURS = {
    "forward": "#7aa6d8",
    "backward for weights": "#d9b65c",
    "backward for inputs": "#4fa39b",
    "backward": "#8cc084",
    "optimizer": "#b79ad0",
}
OTHER = "#c0c0c0"
LEFT, WIDTH, ROW, GAP = 92, 860, 26, 30
LETTER = 7.0  # the width of a digit, about
LEGEND = 150  # the width of an entry


class Box:
    """One event: its times in seconds from where its part of the picture begins."""

    def __init__(self, event, zero):
        self.name, self.begin, self.length = (
            event["name"],
            (event["ts"] - zero) / 1e6,
            event["dur"] / 1e6,
        )
        number = event.get("args", {}).get("microbatch")
        self.number = "" if number is None else str(number)

    def kind(self):
        """Its kind: one of COLOURS, or "other"."""
        return next((kind for kind in COLOURS if self.name.startswith(kind)), "other")

    def colour(self):
        """The colour of its kind."""
        return COLOURS.get(self.kind(), OTHER)


def read(trace):
    """{part: {worker: [box]}} of the last step in the trace."""
    events = [event for event in trace if event.get("ph") == "X" and event["pid"] in PARTS]
    last = max(step(event) for event in events)
    events = [event for event in events if step(event) == last]
    parts = {}
    for pid, part in PARTS.items():
        mine = [event for event in events if event["pid"] == pid]
        zero = min((event["ts"] for event in mine), default=0)
        for event in sorted(mine, key=lambda event: event["ts"]):
            parts.setdefault(part, {}).setdefault(event["tid"], []).append(Box(event, zero))
    return parts


def step(event):
    """The number of the step an event belongs to."""
    return event.get("args", {}).get("step", 0)


def end(rows):
    """When the last box of a part ends."""
    return max(box.begin + box.length for row in rows.values() for box in row)


def spent(rows):
    """The parts of each worker's time: {worker: {kind or "waiting": seconds}}."""
    whole = end(rows)
    found = {}
    for worker, row in sorted(rows.items()):
        times = {}
        for box in row:
            times[box.kind()] = times.get(box.kind(), 0) + box.length
        found[worker] = {**times, "waiting": whole - sum(times.values())}
    return found


def svg(title, parts):
    """The picture, both parts to one scale."""
    scale = WIDTH / max(end(rows) for rows in parts.values())
    body, y = legend(parts), 60
    for part in sorted(parts):
        rows = parts[part]
        body.append(text(8, y, f"{part}: {end(rows) * 1e3:.0f} ms", bold=True))
        y += 8
        for worker in sorted(rows):
            body.append(text(8, y + 17, f"worker {worker}"))
            body += [drawn(box, y, scale) for box in rows[worker]]
            y += ROW
        y += GAP
    size = (
        f'width="{LEFT + WIDTH + 8}" height="{y - GAP}" viewBox="0 0 {LEFT + WIDTH + 8} {y - GAP}"'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    )
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            paper,
            text(8, 16, title, bold=True),
            *body,
            "</svg>",
            "",
        ]
    )


def legend(parts):
    """The legend of the colours in use."""
    there = {box.colour() for rows in parts.values() for row in rows.values() for box in row}
    shown = [(name, colour) for name, colour in COLOURS.items() if colour in there]
    entries = []
    for x, (name, colour) in zip(range(8, LEFT + WIDTH, LEGEND), shown):
        entries += [f'<circle cx="{x + 5}" cy="32" r="5" fill="{colour}"/>', text(x + 14, 36, name)]
    return entries


def drawn(box, y, scale):
    """A box, with its microbatch if there is room."""
    x, width = LEFT + box.begin * scale, max(box.length * scale, 0.5)
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}"'
    times = f"{box.begin * 1e3:.1f} to {(box.begin + box.length) * 1e3:.1f} ms"
    shape = f'<rect {place} fill="{box.colour()}" stroke="#ffffff" stroke-width="0.5">'
    whole = f"{shape}<title>{escape(box.name)}: {times}</title></rect>"
    if box.number and len(box.number) * LETTER < width:
        whole += text(x + width / 2 - len(box.number) * LETTER / 2, y + 15, box.number)
    return whole


def text(x, y, words, bold=False):
    """A line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}" fill="#222222"{weight}>{escape(words)}</text>'
