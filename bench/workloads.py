"""The work that is compared on one machine. Each function does one pair: PyTorch, then BossMan.

A pair is a flat dictionary from what was measured ("pytorch 1f1b", "bossman 1f1b") to its value, in
seconds or bytes."""

import os
import re
import socket
import sys
import time

import eager
import memory
import pictures
import programs
from figures import settled
from programs import CHECKOUT, built, peer, report, report_of

ENCODER = CHECKOUT / "bench" / "models" / "encoder.yaml"
RESIDUAL = CHECKOUT / "examples" / "models" / "residual.yaml"
PYTORCH = ("gpipe", "1f1b", "interleaved")
STEPS, WARM_UP = 8, 2
SLOWED_STEPS, SLOWED_WARM_UP = 14, 6  # speeds are learned in the first ones
TINY_STEPS, TINY_WARM_UP = 220, 20
TRANSPORT = re.compile(r"(?P<name>.+) (?P<kib>\d+) KiB (?P<unit>GB/s|round trip p50 us)")
MICROBATCHES = {"P": 8, "P32": 32}
REPLICAS = (2, 4)
ALL_REDUCED = {4: 20, 64: 8}  # rounds for each size in MiB
ROUNDS_TO_WARM_UP = 3


class Bench:
    """The needs of all workloads: how to start PyTorch and BossMan."""

    def __init__(self, torch_environment):
        self.torch = torch_environment
        self.bossman = {
            **os.environ,
            "BOSSMAN_WORKER": os.environ.get("BOSSMAN_WORKER") or str(built("worker")),
        }
        self.schedules = report([built("steps"), "--list"])

    def pytorch(self, name, *arguments):
        """The report of a PyTorch script."""
        return report(peer(name, *map(str, arguments), "--port", str(free_port())), self.torch)

    def steps(self, model, *arguments):
        """The report of BossMan's steps with two local workers."""
        return report([built("steps"), model, *map(str, arguments)], self.bossman)

    def pick(self, *wanted):
        """Those of the wanted schedules that BossMan has; all without any wanted."""
        return [name for name in self.schedules if name in wanted or not wanted]


def free_port():
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def pipeline(bench, microbatches, schedules):
    """P and P32: the encoder layers, every schedule."""
    shape = ("--microbatches", microbatches, "--steps", STEPS)
    done = bench.pytorch("pipe", "--schedules", ",".join(("single", *PYTORCH)), *shape)
    pair = {f"pytorch {name}": settled(times, WARM_UP) for name, times in done["steps"].items()}
    for name in schedules:
        done = bench.steps(ENCODER, "--schedule", name, *shape, *traced(name, microbatches))
        pair[f"bossman {name}"] = settled(done["steps"], WARM_UP)
        if done.get("predicted_s") is not None:
            pair[f"predicted {name}"] = done["predicted_s"]
    return pair


def traced(name, microbatches):
    """The flags that leave a trace of P, of which pictures are made."""
    if microbatches != MICROBATCHES["P"]:
        return []
    pictures.trace(name).parent.mkdir(parents=True, exist_ok=True)
    return ["--trace", pictures.trace(name)]


def two_at_once(bench):
    """One process's step while another does the same: whether the machine gives both a core of
    their own."""
    command = peer("pipe", "--schedules", "single", "--steps", str(STEPS))
    other = programs.start(command, bench.torch)
    try:
        both = [report(command, bench.torch), report_of(other)]
    finally:
        programs.end(other)
    return max(settled(done["steps"]["single"], WARM_UP) for done in both)


def work_p(bench):
    """P: eight microbatches of four, every schedule there is."""
    return {
        **pipeline(bench, MICROBATCHES["P"], bench.pick()),
        "pytorch single, two at once": two_at_once(bench),
    }


def work_p32(bench):
    """P32: thirty-two microbatches of one."""
    return pipeline(bench, MICROBATCHES["P32"], bench.pick("auto", "1f1b", "ready"))


def work_t(bench):
    """T: a step of the small residual model without microbatches."""
    done = bench.pytorch("tiny", "--steps", TINY_STEPS)
    pair = {
        f"pytorch {name}": settled(times, TINY_WARM_UP) for name, times in done["steps"].items()
    }
    for by, shown in (("hand", "by hand"), ("whole", "train_step")):
        done = bench.steps(
            RESIDUAL, "--by", by, "--microbatches", 1, "--steps", TINY_STEPS, "--lr", 3e-3
        )
        pair[f"bossman {shown}"] = settled(done["steps"], TINY_WARM_UP)
    return pair


def work_s(bench):
    """S and M: from the command to the first finished step of P, and the largest process's peak
    memory."""
    pair = {}
    for who, run in (("pytorch", first_pytorch), ("bossman", first_bossman)):
        began = time.time()
        done = run(bench)
        pair[f"{who} start"] = done["first_step_unix"] - began
        if done["memory"]:
            pair[f"{who} memory"] = max(done["memory"])
    return pair


def first_pytorch(bench):
    """A few steps of P in PyTorch."""
    return bench.pytorch("pipe", "--schedules", "1f1b", "--steps", 3)


def first_bossman(bench):
    """A few steps of P in BossMan, under the schedule that a user gets who does not ask for one."""
    return bench.steps(ENCODER, "--steps", 3)


def work_n(bench):
    """N: tensors between two processes on this machine."""
    pair = {}
    for who, done in (("gloo", bench.pytorch("transport")), *transports()):
        for kind in ("bandwidth", "round_trip"):
            pair.update({f"{who} {kind} {size}": value for size, value in done[kind].items()})
    return pair


def work_a(bench):
    """A: gradients summed among processes on this machine."""
    pair = {}
    for count in REPLICAS:
        for mib, rounds in ALL_REDUCED.items():
            shape = ("--mib", mib, "--rounds", rounds)
            done = {"gloo": bench.pytorch("all_reduce", "--ranks", count, *shape)}
            for name, transport in (("shared memory", "auto"), ("quic", "quic")):
                command = [
                    built("all_reduce"),
                    "--workers",
                    count,
                    *shape,
                    "--transport",
                    transport,
                ]
                done[name] = report(list(map(str, command)))
            pair.update(
                {
                    f"{name} {count} {mib}": settled(of["seconds"], ROUNDS_TO_WARM_UP)
                    for name, of in done.items()
                }
            )
    return pair


def work_d(bench):
    """D: the encoder layers on two replicas of one thread each, a batch of 32 cut in two."""
    done = bench.pytorch("ddp", "--steps", STEPS)
    pair = {f"pytorch {name}": settled(times, WARM_UP) for name, times in done["steps"].items()}
    for workers, shown in ((1, "one worker"), (2, "2 replicas")):
        shape = ("--workers", workers, "--replicas", workers, "--microbatches", 2, "--steps", STEPS)
        done = bench.steps(ENCODER, "--schedule", "gpipe", *shape)
        pair[f"bossman {shown}"] = settled(done["steps"], WARM_UP)
    return pair


def work_u(bench):
    """U: two replicas, one of which shares its core with a program that only counts."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    pair = {}
    for shown, more in (
        ("even deal", ["--even"]),
        ("dealt by speed", []),
        ("fast reduction", ["--fast-reduction"]),
    ):
        pair[f"bossman {shown}"] = settled(slowed(bench, cores, more)["steps"], SLOWED_WARM_UP)
    return pair


def slowed(bench, cores, more):
    """The report of BossMan's steps with one replica on each of two cores, the second of which has
    other work, too."""
    port = free_port()
    shape = (
        "--replicas",
        2,
        "--microbatches",
        12,
        "--steps",
        SLOWED_STEPS,
        "--schedule",
        "gpipe",
        "--wait",
        port,
    )
    others = []
    boss = programs.start([built("steps"), ENCODER, *shape, *more], bench.bossman)
    try:
        others.append(programs.silent(pinned(cores[1], [sys.executable, "-c", "while True: pass"])))
        settings = {"MODEL_HOST": "127.0.0.1", "MODEL_PORT": str(port)}
        for core in cores:
            command = [bench.bossman["BOSSMAN_WORKER"], "--threads", "1"]
            others.append(programs.silent(pinned(core, command), {**os.environ, **settings}))
        return report_of(boss)
    finally:
        for process in (*others, boss):
            programs.end(process)


def pinned(core, command):
    """The command that runs `command` on this core alone."""
    return ["taskset", "--cpu-list", str(core), *command]


# As a worker sets its heap up by itself (`tensor::memory::keep_freed_memory`): freed memory is kept
# for the next tensor.
WARM_HEAP = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 60),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


def transports():
    """The rates of BossMan's transports: [(name, report as that of peers/transport.py)]."""
    found = {}
    for key, value in report(
        [built("examples/transport_bench"), "--runs", "1"], {**os.environ, **WARM_HEAP}
    ).items():
        if match := TRANSPORT.fullmatch(key):
            name = "quic" if match["name"] == "quic" else "shared memory"
            kind, unit = ("bandwidth", 1e9) if match["unit"] == "GB/s" else ("round_trip", 1e-6)
            found.setdefault(name, {"bandwidth": {}, "round_trip": {}})[kind][
                int(match["kib"]) << 10
            ] = value * unit
    return list(found.items())


WORKLOADS = {
    "P": work_p,
    "P32": work_p32,
    "T": work_t,
    "D": work_d,
    "U": work_u,
    "A": work_a,
    "Z": memory.pair,
    "S": work_s,
    "N": work_n,
    "E": eager.pair,
}
