"""H: the encoder work over a line with delay, one process at each end, PyTorch and BossMan under
the same delay."""

import contextlib
import os
import threading

import namespaces
import programs
from figures import settled
from namespaces import ADDRESSES, ENDS, inside
from programs import Problem, built, peer, report, start
from workloads import ENCODER, MICROBATCHES, PYTORCH

DELAYS = (5, 20, 50)  # milliseconds each way
MBIT = 100
STEPS, WARM_UP = 5, 1
PORT = 1099
BATCH_BYTES = 32 * 64 * 256 * 4  # the activations, or their gradients, of a step at a cut
FAR = ("auto", "ready", "zb-h1")


def pair(bench, ms):
    """One pair over a line of this delay."""
    with namespaces.line(ms, MBIT):
        found = {f"line {kind}": value for kind, value in namespaces.check().items()}
        done, found["sent pytorch"] = over_the_line(
            lambda: pytorch(bench), STEPS * len(PYTORCH), 2 * BATCH_BYTES
        )
        for name, times in done["steps"].items():
            found[f"pytorch {name}"] = settled(times, WARM_UP)
        for name in bench.pick(*FAR) or bench.pick("1f1b"):
            done, found["sent bossman"] = over_the_line(
                lambda name=name: bossman(bench, name), STEPS, 2 * BATCH_BYTES
            )
            found[f"bossman {name}"] = settled(done["steps"], WARM_UP)
            if done.get("predicted_s") is not None:
                found[f"predicted {name}"] = done["predicted_s"]
        return found


def over_the_line(run, steps, least):
    """The result of `run`, and the bytes of each of its steps that crossed the line, both ways.
    Fewer than `least` is an error."""
    before = namespaces.crossed()
    done = run()
    each = (namespaces.crossed() - before) / steps
    if each < least:
        raise Problem(
            f"only {each:.0f} bytes a step crossed the line: the processes have another way to "
            "each other"
        )
    return done, each


def pytorch(bench):
    """The report of rank 0, with rank 1 at the other end."""
    shape = (
        "--schedules",
        ",".join(PYTORCH),
        "--steps",
        STEPS,
        "--microbatches",
        MICROBATCHES["P"],
    )
    return ranks(bench, lambda number: peer("pipe", *map(str, shape), "--rank", str(number)))


def ranks(bench, command):
    """The report of rank 0, with rank 1 at the other end; `command` gives that of each."""

    def rank(number):
        gloo = {
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "29511",
            "GLOO_SOCKET_IFNAME": ENDS[number],
        }
        return inside(number, command(number)), {**bench.torch, **gloo}

    other = start(*rank(1))
    try:
        return report(*rank(0))
    finally:
        programs.end(other)
        other.stdout.close()


def bossman(bench, schedule):
    """The report of a boss that shares its end with the first worker; the second is at the
    other."""
    return on_both_ends(
        bench, "--schedule", schedule, "--steps", STEPS, "--microbatches", MICROBATCHES["P"]
    )


def on_both_ends(bench, *shape):
    """The report of a boss of the encoder work that shares its end with the first worker; the
    second is at the other."""
    # The workers share a machine, though not a network: shared memory would be a way around the
    # line.
    shape = ("--transport", "quic", *shape)
    with contextlib.ExitStack() as undo:
        boss = start(inside(0, [built("steps"), ENCODER, *shape, "--wait", PORT]), bench.bossman)
        undo.enter_context(boss)
        undo.callback(programs.end, boss)
        limit = threading.Timer(programs.LIMIT, boss.kill)
        limit.start()
        undo.callback(limit.cancel)
        undo.callback(programs.end, worker(bench, 0))
        said = []
        for text in boss.stdout:
            said.append(text)
            if "worker 0 joined" in text:  # workers are numbered as they come
                undo.callback(programs.end, worker(bench, 1))
        if boss.wait() != 0:
            raise Problem(f"{programs.shown(boss.args)} ended with {boss.returncode}")
        return programs.last_json("".join(said))


def worker(bench, end):
    """A worker with one compute thread at this end of the line; it finds the boss's ticket in the
    user's folder."""
    settings = {"MODEL_HOST": ADDRESSES[0], "MODEL_PORT": str(PORT)}
    environment = {
        **{name: value for name, value in os.environ.items() if name != "MODEL_TICKET"},
        **settings,
    }
    program = bench.bossman["BOSSMAN_WORKER"]
    return programs.silent(inside(end, [program, "--threads", "1"]), environment)
