"""docs/performance.md, from what was measured."""

from statistics import median

import build_commands
import eager
import far
import memory
import sections
import slow
from figures import best, perfect_1f1b, ratio
from workloads import ALL_REDUCED, MICROBATCHES, REPLICAS

INTRODUCTION = """\
# Performance

<!-- written by `make bench`; change bench/ instead -->

BossMan beside PyTorch 2.11 on one machine, measured by `make bench` (see `bench/README.md`). Each
workload is run alternately, PyTorch, BossMan, PyTorch, BossMan, so that whatever else the machine
does falls on both; every process computes on one thread. A figure is the median over the pairs; a
ratio is taken within each pair, and its median is shown.
"""
LATENCY = far.DELAYS[1]
BUILD_TIMES = """\
The last commit in a folder of its own, built with the toolchain and the libtorch of the machine.
From nothing means without built files. `make build-times` measures these."""


class Goal:
    """A figure to reach: at least or at most a ratio of two values of a pair."""

    def __init__(self, workload, what, value, least=None, most=None):
        self.workload, self.what, self.value, self.least, self.most = (
            workload,
            what,
            value,
            least,
            most,
        )

    def row(self, results):
        """Its line of the table."""
        wanted = f"at least {self.least:.2f}" if self.least else f"at most {self.most:.2f}"
        pairs = results.get(self.workload, {}).get("pairs")
        found = self.value(pairs) if pairs else None
        if found is None:
            return [self.workload, self.what, "not measured", wanted, ""]
        reached = found >= self.least if self.least else found <= self.most
        return [self.workload, self.what, f"{found:.2f}", wanted, "yes" if reached else "**no**"]


def goals():
    """All figures to reach, as the issue has them."""
    quic, shared, gloo = (
        f"{who} bandwidth {256 << 10}" for who in ("quic", "shared memory", "gloo")
    )
    quic_large, shared_large, gloo_large = (
        f"{who} bandwidth {4 << 20}" for who in ("quic", "shared memory", "gloo")
    )
    sums = [(count, mib) for mib in ALL_REDUCED for count in REPLICAS]
    peak = "peak memory of the largest worker, of PyTorch's largest rank"
    return [
        Goal("P", "throughput, of PyTorch's best schedule", throughput, least=1.10),
        Goal("P", "time of a step, of the perfect 1F1B's", of_perfect, most=1.03),
        Goal("P", "furthest predicted step, off the measured one", furthest_prediction, most=0.10),
        Goal("P32", "throughput, of PyTorch's best schedule", throughput, least=1.15),
        Goal(
            "T",
            "`train_step`, of PyTorch's step on two ranks",
            of("bossman train_step", "pytorch two ranks"),
            most=0.9,
        ),
        Goal(
            "S",
            "time to the first finished step, of PyTorch's",
            of("bossman start", "pytorch start"),
            most=0.25,
        ),
        Goal("S", peak, of("bossman memory", "pytorch memory"), most=0.5),
        *(
            Goal(
                "E",
                f"{eager.MODELS[name]} on one worker, of PyTorch's speed",
                of(f"pytorch {name}", f"bossman {name}"),
                least=least,
            )
            for name, least in eager.LEAST.items()
        ),
        Goal("N", "QUIC's bandwidth at 256 KiB, of gloo's", of(quic, gloo), least=1.0),
        Goal("N", "QUIC's bandwidth at 4 MiB, of gloo's", of(quic_large, gloo_large), least=1.0),
        Goal("N", "shared memory's at 256 KiB, of gloo's", of(shared, gloo), least=3.0),
        Goal("N", "shared memory's at 4 MiB, of gloo's", of(shared_large, gloo_large), least=3.0),
        *(sums_goal("shared memory", "", *of) for of in sums),
        *(sums_goal("quic", " over QUIC", *of) for of in sums),
        *(
            memory_goal(replicas, shard)
            for shard in memory.SHARDS[1:]
            for replicas in memory.REPLICAS
        ),
        *(
            goal
            for form in slow.FORMS[2:]
            for goal in (
                Goal(
                    "D-slow",
                    f"throughput with `compress: {form}`, of DDP's",
                    of("pytorch DDP", f"bossman {form}"),
                    least=3.0,
                ),
                Goal(
                    "D-slow",
                    f"loss after 200 steps, {form}, of float32's",
                    of(f"loss {form}", "loss f32"),
                    most=1.01,
                ),
            )
        ),
        Goal(
            f"H{LATENCY}",
            f"throughput, of PyTorch's best schedule, {LATENCY} ms each way",
            throughput,
            least=1.3,
        ),
    ]


def sums_goal(who, how, count, mib):
    """The goal that gradients of this size are summed as fast as with gloo, among `count`
    processes."""
    value = of(f"gloo {count} {mib}", f"{who} {count} {mib}")
    return Goal(
        "A", f"gradients of {mib} MiB summed among {count}{how}, of gloo's speed", value, least=1.0
    )


def memory_goal(replicas, shard):
    """That a worker takes hardly more than the formula says."""

    def value(pairs):
        return median(pair[f"{shard} {replicas}"] for pair in pairs) / memory.formula(
            replicas, shard
        )

    return Goal(
        "Z",
        f"memory of {replicas} replicas with `shard: {shard}`, of the formula's",
        value,
        most=1.1,
    )


def series(pairs, who):
    """{schedule: [value of each pair]} of those measured of `who`, but for what is no schedule of
    two processes."""
    names = [key[len(f"{who} ") :] for key in pairs[0] if key.startswith(f"{who} ")]
    return {
        name: [pair[f"{who} {name}"] for pair in pairs]
        for name in names
        if not name.startswith("single")
    }


def bossmans(pairs):
    """BossMan's values: of `auto`, which is what a user gets, or else of its best schedule."""
    found = series(pairs, "bossman")
    return found.get("auto") or (found[best(found)] if found else None)


def throughput(pairs):
    """BossMan's throughput over that of PyTorch's best schedule."""
    theirs, ours = series(pairs, "pytorch"), bossmans(pairs)
    return ratio(theirs[best(theirs)], ours) if ours else None


def of_perfect(pairs):
    """BossMan's step over that of a perfect 1F1B pipeline."""
    ours = bossmans(pairs)
    perfect = [perfect_1f1b(pair["pytorch single"], MICROBATCHES["P"]) for pair in pairs]
    return ratio(ours, perfect) if ours else None


def furthest_prediction(pairs):
    """The largest share by which a predicted step is off the measured one."""
    predicted, measured = series(pairs, "predicted"), series(pairs, "bossman")
    off = [
        abs(median(p / m for p, m in zip(predicted[name], measured[name])) - 1)
        for name in predicted
    ]
    return max(off, default=None)


def of(above, below):
    """The ratio of two values, if both were measured."""

    def value(pairs):
        if any(above not in pair or below not in pair for pair in pairs):
            return None
        return ratio([pair[above] for pair in pairs], [pair[below] for pair in pairs])

    return value


def text(results):
    """The whole page."""
    rows = [goal.row(results) for goal in goals()]
    table = sections.table(["", "what", "measured", "to reach", "reached"], rows, words=2)
    parts = [INTRODUCTION, sections.machines(results), "## Figures to reach", table]
    parts += [
        sections.section(name, results[name]) for name in sections.TITLES if name in results
    ]
    if "timelines" in results:
        parts.append(sections.timelines(results["timelines"]))
    if build_commands.NAME in results:
        shown = sections.table(*build_commands.table(results[build_commands.NAME]))
        parts += ["## Build times", sections.wrapped(BUILD_TIMES), shown]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"
