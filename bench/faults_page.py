"""docs/faults.md, from the results of the scripts of faults in bench/results: what checkpoints,
losses, chaos and pools cost."""

from collections import Counter
from statistics import median

from faults import NAMES
from figures import paired, ratio, spread
from sections import table, wrapped

INTRODUCTION = """\
# Faults

<!-- written by `bench/run.py --page` from bench/results; change bench/ instead -->

The cost of checkpoints, lost workers and other faults. Each section names the script in `bench/`
that measures it. With `--keep` the script stores its result in `bench/results/`, and this page is
computed from there.
"""
PARTS = ("notice", "workers", "state", "redo")
GOALS = ["", "found", "target: at most", "reached"]
# What the boss may need for state beside its idle size: 200 MB, and a window of 64 MiB.
STATE_BYTES_OF_BOSS = 200_000_000 + (64 << 20)
NOT_MEASURED = "No result is stored for this section."


def paragraph(words):
    """Words in lines of a page's width."""
    return wrapped(" ".join(words.split()))


def where(result):
    """The command, machine, day and commit of a result."""
    machine, loads = result["machine"], result["load"]
    return paragraph(
        f"`{result['command']}` on {machine['processor']}, {machine['cores']} cores, on "
        f"{result['when']}, at commit {result['commit']}; the load before was {max(loads)}."
    )


def both(numbers):
    """A median and a worst value."""
    return f"{median(numbers):.2f}, {max(numbers):.2f}"


def cost(result):
    """K: the cost of checkpoints, or of peer snapshots."""
    without, having = ([pair[key] for pair in result["pairs"]] for key in ("without", "with"))
    low, high = spread([b / a for a, b in paired(without, having)])
    row = [result["what"], result["every"], len(without), f"{median(without):.2f}"]
    row += [f"{median(having):.2f}", f"{ratio(having, without):.3f}", f"{low:.3f} to {high:.3f}"]
    head = ["", "steps between", "pairs", "s without", "s with", "ratio", "from, to"]
    return [table(head, [row])]


def losses(result):
    """R: the time that lost workers cost."""
    by_signal = {}
    for loss in result["losses"]:
        by_signal.setdefault(loss["signal"], []).append(loss)
    rows = [
        [name, len(found), both([seconds(loss) for loss in found])]
        + [both([loss[part] for loss in found]) for part in PARTS]
        for name, found in {**by_signal, "all": result["losses"]}.items()
        if found
    ]
    head = ["signal", "times", "seconds lost: median, worst", "notice", "workers and plan"]
    halves = Counter(int(2 * seconds(loss)) / 2 for loss in result["losses"])
    bars = [
        f"{half:5.1f} to {half + 0.5:.1f}  {'#' * halves[half]} {halves[half]}"
        for half in sorted(halves)
    ]
    return [
        table([*head, "state", "repeated steps"], rows),
        "\n".join(["```text", "seconds lost, in halves:", *bars, "```"]),
        paragraph(
            f"{result['steps']} steps took {result['seconds']:.0f} s with losses and "
            f"{result['quiet_seconds']:.0f} s without. {same(result)}"
        ),
    ]


def seconds(loss):
    """The time that a loss cost, from all its parts."""
    return sum(loss[part] for part in PARTS)


def same(result):
    """How many tensors are those of the quiet run."""
    return (
        f"{result['equal']} of {result['tensors']} tensors are equal to the bit to those of the "
        "quiet run."
    )


def chaos(result):
    """C: a row for each kind of fault and one for all."""
    rows = []
    for kind, name in {**NAMES, "all": "all"}.items():
        found = [strike for strike in result["strikes"] if kind in (strike["fault"], "all")]
        if found:
            borne = sum(strike["recoveries"] == 0 for strike in found)
            lost = both([strike["still"] for strike in found])
            rows.append([name, len(found), borne, lost, "yes" if result["equal"] else "**no**"])
    head = ["fault", "times", "without a recovery", "seconds lost: median, worst", "bits equal"]
    return [table(head, rows)]


def pool(result):
    """J: a pool whose workers come and go."""
    return [
        paragraph(
            f"{result['joins']} joins, {result['SIGTERM']} leaves and {result['SIGKILL']} kills, "
            f"one every {result['every']:g} s: {result['steps']} steps took "
            f"{result['seconds']:.0f} s, and {result['quiet_seconds']:.0f} s in the quiet run. "
            f"{same(result)}"
        )
    ]


def megabytes(peaks):
    """The largest of some peaks, in MB."""
    return f"{max(peaks) / 1e6:.0f}"


def state(result):
    """L: memory and time of the state of a large model."""
    if "line" in result:
        rate, line = result["bytes"] / result["seconds"], result["line"]
        rows = [goal("rate of the line / rate of the state", line / rate, 1 / 0.9)]
        return [
            paragraph(
                f"A run resumed on a worker at the other end of a line, which carried "
                f"{line / 1e6:.1f} MB/s over one TCP connection. The state of "
                f"{result['bytes'] / 1e6:.0f} MB took {result['seconds']:.1f} s, "
                f"{rate / 1e6:.1f} MB/s."
            ),
            table(GOALS, rows),
        ]
    if "pairs" not in result:
        head = ["GB of weights", "seconds", "boss: MB", "each worker: MB"]
        workers = ", ".join(megabytes([peak]) for peak in result["workers"])
        row = [f"{result['bytes'] / 1e9:.1f}", f"{result['seconds']:.0f}"]
        return [table(head, [[*row, megabytes([result["boss"]]), workers]])]
    rows, usual, totals, longest = [], [], {}, {}
    for name, side in (("no checkpoints", "without"), ("checkpoints", "with")):
        runs = [pair[side] for pair in result["pairs"]]
        steps = [run["step_ms"][1:] for run in runs]
        usual = usual or [median(run) for run in steps]
        worst = [max(run) / at for run, at in paired(steps, usual)]
        totals[side] = total = [sum(run) for run in steps]
        longest[side] = median(worst)
        rows.append(
            [name, megabytes([run["boss"] for run in runs])]
            + [megabytes([run["workers"][place] for run in runs]) for place in (0, 1)]
            + [f"{median(total) / 1000:.1f}", f"{median(worst):.2f}"]
        )
    lost = result["restored"]
    rows.append(["a worker is killed", megabytes([lost["boss"]])])
    rows[-1] += [*(megabytes([peak]) for peak in lost["workers"][:2]), "", ""]
    head = ["", "boss: MB", "largest worker: MB", "other: MB", "s for all steps but the first"]
    size, took = result["state_bytes"], lost["restore_s"]
    rates = [size / 1e9 / seconds for seconds in took]
    told = (
        f"A checkpoint has {size / 1e6:.0f} MB, and was due every {result['every']} steps of "
        f"{result['steps']}. {len(took)} times a worker was killed: its run had its state again in "
        f"{both(took)} s (median, worst), {median(rates):.2f} GB/s. The first use of a page of "
        f"memory took {result['fresh_page_us']:.1f} us, also of pages for a copy of the state."
    )
    idle = median(run["boss"] for run in (pair["without"] for pair in result["pairs"]))
    allowed = idle + STATE_BYTES_OF_BOSS
    goals = [
        goal("time with checkpoints / without", ratio(totals["with"], totals["without"]), 1.03),
        goal("longest step / usual one, with checkpoints", longest["with"], 1.2),
        goal("s for a GB of state, with a killed worker", 1 / median(rates), 1.0),
        goal(
            "MB of the boss with killed workers / without checkpoints, plus 267",
            lost["boss"] / allowed,
            1.0,
        ),
    ]
    return [
        table([*head, "longest step / usual one"], rows),
        paragraph(told),
        table(GOALS, goals),
    ]


def goal(what, found, most):
    """A row of targets."""
    return [what, f"{found:.2f}", f"{most:.2f}", "yes" if found <= most else "no"]


SECTIONS = {
    "K": (
        "K: the cost of checkpoints and peer snapshots",
        """\
`bench/checkpoints.py` trains the small GPT on two workers of one machine, alternately without and
with them. A ratio is taken within each pair, and its median is shown. No network lies between the
workers.""",
        cost,
    ),
    "L": (
        "L: the state of a large model",
        """\
`bench/state.py` trains a real model on two local workers of one thread each, alternately without
and with checkpoints, and kills a worker. Shown are the highest peaks of resident memory, and the
median over the runs of the time of all steps and of the longest step, in steps of the run without
checkpoints beside it. All of it computes on the same cores. With `--random` it loads a folder of
random weights and evaluates it once. With `--line` a run resumes on a worker at the other end of a
line between two network namespaces.""",
        state,
    ),
    "R": (
        "R: the cost of a lost worker",
        """\
`bench/recovery.py` trains the small GPT, or the small Transformer, on two local workers of one
thread each, with checkpoints. It kills or stops a worker at random moments, again and again. A
worker that is killed on another machine is silence, too, as with SIGSTOP.""",
        losses,
    ),
    "C": (
        "C: faults of every kind",
        """\
`make chaos` (`bench/chaos.py`) strikes workers, boss and network with faults that are drawn from a
seed. Each is a process of its own and, with root, TUN devices and iproute2, in a network namespace
of its own. The script starts again what has ended, as a supervisor does. It compares all weights
and metrics with those of a quiet run. Shown are seconds without a new step. `.ci/run` strikes the
digits example in the same way.""",
        chaos,
    ),
    "J": (
        "J: a pool whose workers come and go",
        """\
`bench/pool.py` trains the digits alone, and then as a pool. Workers join, are told to leave, or are
killed all the time. The script fails if a step is lost or a bit differs.""",
        pool,
    ),
}
CHECKED = """\
## Broken inputs

`make millions` gives each reader of outside data ten million broken inputs, alone in its process. A
test fails if an input causes a panic, takes too long, or takes too much memory. The limits are in
`crates/testkit/src/inputs.rs`.

## The simulator

`BOSSMAN_SIM_SEEDS` multiplies the seeds of `cargo test -p simulator`: runs with delays, reordering
and lost workers. `crates/simulator/tests/it/seeds.rs` explains it.
"""


def text(results):
    """The whole page."""
    parts = [INTRODUCTION.strip("\n")]
    for letter, (title, words, shown) in SECTIONS.items():
        found = [result for name, result in results.items() if name.split("-")[0] == letter]
        parts += [f"## {title}", paragraph(words)] + ([] if found else [NOT_MEASURED])
        for result in found:
            parts += [where(result), *shown(result)]
    return "\n\n".join([*parts, CHECKED])
