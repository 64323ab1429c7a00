"""Network namespaces in a star on one machine: one for the boss, and around it one for each worker,
behind a line of its own.

The lines are those of `src/bin/delay.rs`, which can lose packets, be cut and become slow while they
are in use; workers reach each other through the middle, by two of them. It takes what
`namespaces.possible` says."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import namespaces
from namespaces import ip, remove
from programs import Problem, built

OURS = "bmc"
MIDDLE = f"{OURS}{os.getpid()}"  # so that two runs do not meet; a device has 15 letters at most
MS, MBIT = 1, 1000  # of a line where nothing is wrong with it


def end(number):
    """The namespace at the end of this line, and the name of its device."""
    return f"{MIDDLE}x{number}"


def addresses(number):
    """Those of a line, in the middle and at its end."""
    return f"10.231.8.{4 * number + 1}", f"10.231.8.{4 * number + 2}"


def inside(namespace, command):
    """The command that runs `command` in this namespace."""
    return ["ip", "netns", "exec", namespace, *command]


class Line:
    """A line from the middle to an end, and what may be wrong with it."""

    def __init__(self, number, seed, undo):
        near, far = f"{end(number)}m", end(number)
        command = [built("delay"), near, far, "--ms", MS, "--mbit", MBIT, "--seed", seed]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # Not in the group of this program, whose Ctrl-C would take the line from under those who
        # use it.
        self.process = subprocess.Popen(
            [str(part) for part in command], text=True, start_new_session=True, **pipes
        )
        undo.callback(namespaces.stop, self.process)
        if self.process.stdout.readline().strip() != "ready":
            raise Problem(f"no line: {self.process.stderr.read().strip()}")
        undo.callback(remove, far)
        ip("netns", "add", far)
        for namespace, device, address in zip((MIDDLE, far), (near, far), addresses(number)):
            ip("link", "set", device, "netns", namespace)
            ip("-n", namespace, "address", "add", f"{address}/30", "dev", device)
            ip("-n", namespace, "link", "set", device, "up")
        ip("-n", far, "link", "set", "lo", "up")
        ip("-n", far, "route", "add", "default", "via", addresses(number)[0])

    def set_fault(self, trouble):
        """From now on this is wrong with it: `loss 0.05`, `cut`, `mbit 1`, or nothing with
        `clear`."""
        self.process.stdin.write(f"{trouble}\n")
        self.process.stdin.flush()


def problem():
    """None where lines can be made here, else why not; a missing program is not such a reason."""
    built("delay")
    try:
        why = namespaces.possible()
        if why is None:
            with lines(1, 0):
                pass
        return why
    except (Problem, OSError, subprocess.SubprocessError) as error:
        return str(error)


def sweep():
    """Takes away what runs have left that were killed."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for name, process in re.findall(rf"(?m)^({OURS}(\d+)\S*)", listed):
        if not Path(f"/proc/{process}").exists():
            remove(name)


@contextlib.contextmanager
def lines(count, seed):
    """A context with `count` lines, each with a namespace at its end."""
    with contextlib.ExitStack() as undo:
        sweep()
        undo.callback(remove, MIDDLE)
        ip("netns", "add", MIDDLE)
        ip("-n", MIDDLE, "link", "set", "lo", "up")
        forward = inside(MIDDLE, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        subprocess.run(forward, check=True)
        yield [Line(number, seed + number, undo) for number in range(count)]
