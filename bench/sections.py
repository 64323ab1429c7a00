"""The parts of the page: a heading, what was compared, a table."""

import re
import textwrap
from statistics import median

import eager
import far
import memory
import note
import pictures
import slow
from figures import perfect_1f1b, ratio, spread
from programs import CHECKOUT
from workloads import (
    ALL_REDUCED,
    MICROBATCHES,
    ROUNDS_TO_WARM_UP,
    SLOWED_STEPS,
    SLOWED_WARM_UP,
    STEPS,
    TINY_STEPS,
    TINY_WARM_UP,
    WARM_UP,
)

NOTES = (
    CHECKOUT / "bench" / "notes"
)  # what a reader should know of a workload's figures, written by hand
BATCH = 32
NO_BREAK = "\N{NO-BREAK SPACE}"
TIMELINES = """\
The last step of the last run of P under each schedule, in milliseconds: what each
worker did between the first action and the last, as it was (`train_step` also sends the batch and
hears the losses) and as it was predicted. The pictures are drawn from the trace files that `bossman
train --trace` writes too; they can be opened in Perfetto."""
WHO = {"pytorch": "PyTorch", "bossman": "BossMan"}
ENCODER = f"""\
8 encoder layers (pre-norm, d 256, 4 heads, feed-forward 1024), sequence 64, batch {BATCH} in {{}}
microbatches, mean squared error, fused Adam; two workers or ranks, {STEPS} steps of which the first
{WARM_UP} do not count. PyTorch's are `torch.distributed.pipelining`'s schedules over gloo, two
stages a rank if interleaved, timed from barrier to barrier, each rank making its own part of the
batch. BossMan's time is that of `train_step`: the boss, a process of its own, sends the whole batch
to the workers within it."""
TITLES = {
    "P": ("P: encoder layers, 8 microbatches of 4", ENCODER.format(8)),
    "P32": ("P32: encoder layers, 32 microbatches of 1", ENCODER.format(32)),
    "T": (
        "T: the small residual model, no microbatches",
        f"`examples/models/residual.yaml`, batch 32, mean squared error, fused Adam; {TINY_STEPS} "
        f"steps of which the first {TINY_WARM_UP} do not count. By hand is `forward`, a loss and "
        "its gradient in the boss's process, `backward` and `optim_step`.",
    ),
    "D": (
        "D: encoder layers, data parallel",
        f"The layers of P, batch {BATCH}: one process of one thread with the whole batch, and two "
        "with half of it each. PyTorch's are DistributedDataParallel over gloo, timed from "
        "barrier to barrier, each rank making its own half. BossMan's are two replicas of one "
        f"stage, each with one of two microbatches; the time is that of `train_step`. {STEPS} "
        f"steps of which the first {WARM_UP} do not count.",
    ),
    "U": (
        "U: a replica that is half as fast",
        "The layers of P on two replicas, each bound to a core of its own; on the second one's "
        f"core another program counts. Batch {BATCH} in 12 microbatches, {SLOWED_STEPS} steps of "
        f"which the first {SLOWED_WARM_UP} do not count. The last row has `reduction: fast`, "
        "dealt by speed, too.",
    ),
    "A": (
        "A: gradients summed among processes of this machine",
        "BossMan's is the exchange of replicas in a training step whose layers take no time "
        "(`bench/src/bin/all_reduce.rs`). It begins with the first gradient that the compute "
        "thread hands out, and ends with the copy of the last sum into the optimizer's gradient. "
        "It includes sessions, connections and the thread that sums. Tensors go through shared "
        "memory, as between workers of one machine, or over QUIC, encrypted. gloo's is "
        "`all_reduce` after a barrier, over plain TCP. The time of a round is that of the slowest "
        "process; "
        + " and ".join(f"{rounds} rounds of {mib} MiB" for mib, rounds in ALL_REDUCED.items())
        + f", of which the first {ROUNDS_TO_WARM_UP} do not count.",
    ),
    "Z": (
        "Z: memory where replicas share out their state",
        f"16 linear layers of 2048 x 2048, {memory.PARAMETERS / 1e6:.1f} million parameters, on 2 "
        "and 4 replicas of one stage with Adam, each replica with one microbatch of two samples. "
        f"Shown is the most that the largest worker had resident (`VmHWM`) over {memory.STEPS} "
        f"steps, less what it has with the small residual model. The formula is {memory.WEIGHT} "
        f"bytes of each parameter for its value, {memory.GRADIENT} for its gradient, and "
        f"{memory.ADAM} for Adam's state. `shard: optimizer` divides the state by the number of "
        "replicas, `gradients` the gradient, too, and `parameters` also the value. The last adds "
        f"{memory.WEIGHT} bytes for each parameter of two of its {memory.STAGES} stages, the one "
        "at work and the next one. Replicas are connected as between machines, by QUIC.",
    ),
    "S": (
        "S and M: start and memory",
        "From the command to the end of the first step of P, all files in the system's cache: "
        "PyTorch's script starts its ranks with `torch.multiprocessing.spawn` and runs 1F1B. "
        "BossMan's program starts its worker processes and runs its default schedule. Memory is "
        "the most that the largest worker or rank had resident (`VmHWM`) over three steps.",
    ),
    "N": (
        "N: transport between two processes on this machine",
        "One tensor after another in one direction, and there and back. gloo sends plain TCP; "
        "QUIC is encrypted.",
    ),
    "E": (
        "E: one worker beside PyTorch's eager mode",
        "Modules of torchvision and transformers, imported by `tools/from_torch.py`: GPT-2 with 12 "
        "layers of width 512 and 2 sequences of 128 tokens, ResNet-50 and Swin-T with 4 images of "
        f"224 x 224. Cross entropy, fused Adam, one thread. The first {eager.WARM_UP} of "
        f"{eager.STEPS} steps do not count. Losses differ from PyTorch's by less than "
        f"{eager.LIMIT:g} of their value, else the time is not compared.",
    ),
    "D-slow": (
        "D-slow: encoder layers, data parallel over a slow line",
        "The work of D. The two replicas or ranks are in network namespaces, joined by a line of "
        f"{slow.MBIT} Mbit/s each way. The first of {slow.STEPS} steps does not count. "
        "BossMan's are shown with `compress: f32`, `bf16`, `int8` and `int4`; DDP is as it "
        "comes, without a communication hook. BossMan's boss is on the first replica's side, so "
        "the second one's half of each batch crosses the line within the step; DDP's ranks make "
        f"their own. The loss is the mean of the last {slow.LAST} of {slow.LEARNED} steps of "
        "`examples/digits` on two replicas without a line.",
    ),
}
for ms in far.DELAYS:
    TITLES[f"H{ms}"] = (
        f"H: P with {ms} ms between the workers",
        "The work of P. The two workers or ranks are in network namespaces, joined by a line of "
        f"{ms} ms each way and {far.MBIT} Mbit/s (`bench/src/bin/delay.rs`). The first of "
        f"{far.STEPS} steps does not count. BossMan's boss is on the first worker's side, so the "
        "targets cross the line with the activations; PyTorch's second rank makes its own.",
    )


def table(head, rows, words=1):
    """A Markdown table; the columns after the first `words` are numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machines(results):
    """The machine and the date of each measurement."""
    seen = {}
    for name in filter(results.get, TITLES):
        result = results[name]
        key = tuple(result["machine"].items())
        seen.setdefault(key, []).append((name, result))
    lines = []
    for key, measured in seen.items():
        machine = dict(key)
        days = sorted({result["when"] for _, result in measured})
        loads = [load for _, result in measured for load in result["load"]]
        names = ", ".join(name for name, _ in measured)
        busy = f"; its load before a pair was {min(loads)} to {max(loads)}" if loads else ""
        memory_gib = machine["memory_gib"]
        what = f"{machine['processor']}, {machine['cores']} cores, {memory_gib} GiB of memory"
        with_what = f"{machine['system']}, Python {machine['python']}"
        lines.append(wrapped(f"{names}: {what}, {with_what}, on {' and '.join(days)}{busy}."))
    return "\n\n".join(lines)


def section(name, result):
    """One workload's part."""
    title, compared = TITLES[name]
    parts = [f"## {title}", wrapped(f"{compared} Pairs measured: {len(result['pairs'])}.")]
    if result["pairs"]:
        pairs = {key: [pair[key] for pair in result["pairs"]] for key in result["pairs"][0]}
        parts.append(TABLES.get(name, steps_table)(name, pairs))
    if "problem" in result:
        reason = result["problem"].splitlines()[0]
        parts.append(wrapped(f"Not measured{' further' if result['pairs'] else ''}: {reason}."))
    hand_written = NOTES / f"{name}.md"
    if result["pairs"] and hand_written.is_file():
        parts.append(note.filled(hand_written.read_text(encoding="utf-8").strip(), pairs))
    return "\n\n".join(parts)


def wrapped(words):
    """A paragraph in lines of a page's width. Code between backticks stays on one line."""
    whole = note.CODE.sub(lambda code: code[0].replace(" ", NO_BREAK), words)
    filled = textwrap.fill(whole, 100, break_long_words=False, break_on_hyphens=False)
    return filled.replace(NO_BREAK, " ")


def ms(seconds):
    """A time in milliseconds, to three digits or so."""
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.2f}"


def steps_table(name, pairs):
    """Times of a step, by who made it."""
    rows = []
    for key, values in pairs.items():
        who = key.split(" ", 1)[0]
        if who in WHO:
            low, high = spread(values)
            rate = f"{BATCH / median(values):.1f}"
            rows.append(
                [
                    label(key),
                    ms(median(values)),
                    f"{ms(low)} to {ms(high)}",
                    rate,
                    *predicted(key, pairs),
                ]
            )
    if name in MICROBATCHES:
        perfect = perfect_1f1b(median(pairs["pytorch single"]), MICROBATCHES[name])
        rows.append(
            [
                "a perfect 1F1B, from PyTorch's single process",
                ms(perfect),
                "",
                f"{BATCH / perfect:.1f}",
                "",
            ]
        )
    parts = [table(["", "ms a step", "from, to", "samples a second", "predicted ms"], rows)]
    if "line round_trip" in pairs:
        trip, band = median(pairs["line round_trip"]), median(pairs["line bandwidth"])
        counted = {key: values for key, values in pairs.items() if key.startswith("sent ")}
        sent = [
            f"{median(values) / 2**20:.1f} MiB ({sender(key)})" for key, values in counted.items()
        ]
        line = (
            f"{ms(trip)} ms there and back, {band * 8 / 1e6:.0f} Mbit/s over a new TCP connection"
        )
        others = ", ".join(sent[:-1])
        over = f"Mean bytes of a step, both ways together: {others} and {sent[-1]}."
        parts.append(wrapped(f"The line itself: {line}. {over}"))
    return "\n\n".join(parts)


def sender(key):
    """The sender of the bytes under this key."""
    who = re.sub("^sent ", "", key)
    return WHO.get(who) or f"BossMan {who}"


def predicted(key, pairs):
    """[the predicted time and its error], if there is a prediction."""
    values = pairs.get(key.replace("bossman", "predicted"))
    if not key.startswith("bossman") or not values:
        return [""]
    return [f"{ms(median(values))} ({ratio(values, pairs[key]) - 1:+.0%})"]


def label(key):
    """How the page calls a series."""
    who, what = key.split(" ", 1)
    return f"{WHO[who]} {what}"


def start_table(_, pairs):
    """Start and memory."""
    rows = []
    for what, unit, shown in (
        ("start", "s to the first finished step", lambda value: f"{value:.2f}"),
        ("memory", "MiB at most", lambda value: f"{value / 2**20:.0f}"),
    ):
        for who in ("pytorch", "bossman"):
            values = pairs.get(f"{who} {what}")
            if values:
                low, high = spread(values)
                rows.append(
                    [
                        label(f"{who} {what}"),
                        unit,
                        shown(median(values)),
                        f"{shown(low)} to {shown(high)}",
                    ]
                )
    return table(["", "", "median", "from, to"], rows, words=2)


def transport_table(_, pairs):
    """Bandwidth and round trips."""
    rows = []
    for key, values in pairs.items():
        who, kind, size = key.rsplit(" ", 2)
        amount = f"{int(size) >> 10} KiB" if int(size) < 1 << 20 else f"{int(size) >> 20} MiB"
        low, high = spread(values)
        if kind == "bandwidth":
            cells = [f"{v / 1e9:.2f}" for v in (median(values), low, high)]
            rows.append([who, f"GB/s of {amount}", cells[0], f"{cells[1]} to {cells[2]}"])
        else:
            cells = [f"{v * 1e6:.0f}" for v in (median(values), low, high)]
            rows.append(
                [who, f"us there and back, {amount}", cells[0], f"{cells[1]} to {cells[2]}"]
            )
    return table(["", "", "median", "from, to"], rows, words=2)


def summed_table(_, pairs):
    """The times of sums among processes."""
    rows = []
    for key, values in pairs.items():
        who, count, mib = key.rsplit(" ", 2)
        low, high = spread(values)
        times = f"{ms(low)} to {ms(high)}"
        of_gloo = "" if who == "gloo" else f"{ratio(pairs[f'gloo {count} {mib}'], values):.2f}"
        rows.append([f"{mib} MiB among {count}", who, ms(median(values)), times, of_gloo])
    return table(["", "", "ms", "from, to", "of gloo's speed"], rows, words=2)


def memory_table(_, pairs):
    """The memory of workers, beside the formula."""
    rows = []
    for key, values in pairs.items():
        shard, replicas = key.split(" ")
        formula = memory.formula(int(replicas), shard)
        low, high = spread(values)
        cells = [f"{value / 2**20:.0f}" for value in (median(values), low, high, formula)]
        off = f"{median(values) / formula - 1:+.1%}"
        rows.append(
            [
                f"{replicas} replicas, `shard: {shard}`",
                cells[0],
                f"{cells[1]} to {cells[2]}",
                cells[3],
                off,
            ]
        )
    return table(["", "MiB", "from, to", "formula", "off"], rows)


def slow_table(name, pairs):
    """Steps over the slow line, and what was learned."""
    losses = {
        key[len("loss ") :]: values for key, values in pairs.items() if key.startswith("loss ")
    }
    rows = []
    for form, values in losses.items():
        low, high = spread(values)
        off = ratio(values, losses["f32"]) - 1
        rows.append(
            [f"BossMan {form}", f"{median(values):.4f}", f"{low:.4f} to {high:.4f}", f"{off:+.2%}"]
        )
    learned = table(["", "loss", "from, to", "off that of f32"], rows)
    return "\n\n".join([steps_table(name, pairs), learned])


def timelines(spent):
    """The parts of the time of a step of P, as measured and as predicted, and their pictures."""
    rows = []
    for name, parts in spent.items():
        for part, workers in sorted(parts.items()):
            for worker, times in workers.items():
                rows.append([name, part, worker, *columns(times)])
    head = [
        "schedule",
        "",
        "worker",
        "forward",
        "backward",
        "optimizer",
        "other",
        "waiting",
        "in all",
    ]
    parts = [
        "## A step of P as measured and as predicted",
        wrapped(TIMELINES),
        table(head, rows, words=3),
    ]
    parts += [
        f"![A step of P under {name}](timeline-{name}.svg)"
        for name in spent
        if name in pictures.DRAWN
    ]
    return "\n\n".join(parts)


def columns(times):
    """The times of a worker, in milliseconds: forward, backward in all its halves, optimizer, the
    rest, waiting; in all."""
    backward = sum(seconds for kind, seconds in times.items() if kind.startswith("backward"))
    seconds = [
        times.get("forward", 0),
        backward,
        times.get("optimizer", 0),
        times.get("other", 0),
        times["waiting"],
    ]
    return [f"{value * 1e3:.0f}" for value in (*seconds, sum(times.values()))]


def eager_table(_, pairs):
    """The time of a step of each model, and the share of PyTorch's speed."""
    rows = []
    for name, shown in eager.MODELS.items():
        theirs, ours = pairs[f"pytorch {name}"], pairs[f"bossman {name}"]
        cells = [ms(median(theirs)), ms(median(ours)), f"{ratio(theirs, ours):.2f}"]
        rows.append([shown, *cells])
    return table(["", "PyTorch, ms a step", "BossMan, ms a step", "of PyTorch's speed"], rows)


TABLES = {
    "E": eager_table,
    "Z": memory_table,
    "A": summed_table,
    "S": start_table,
    "N": transport_table,
    "D-slow": slow_table,
}
