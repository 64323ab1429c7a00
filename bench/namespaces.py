"""A slow network on one machine: two network namespaces joined by a line with delay and a rate
(`src/bin/delay.rs`).

It takes root, /dev/net/tun and iproute2. Whatever it makes bears names of its own and is taken away
at the end."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import programs
from programs import CHECKOUT, Problem, built

ENDS = ("bossmanbench0", "bossmanbench1")  # names of the namespaces, and of the device in each
ADDRESSES = ("10.231.7.1", "10.231.7.2")
CHECK = CHECKOUT / "bench" / "check_line.py"


def possible():
    """None if a line can be made here, else the reason why not."""
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    if os.geteuid() != 0:
        return "it takes root"
    if not shutil.which("ip"):
        return "the program `ip` (iproute2) is missing"
    return None


def inside(end, command):
    """The command that runs `command` in the namespace of this end, 0 or 1."""
    return ["ip", "netns", "exec", ENDS[end], *command]


@contextlib.contextmanager
def line(ms, mbit):
    """While it lasts, the two namespaces are there, joined by a line with `ms` of delay each way at
    `mbit`."""
    with contextlib.ExitStack() as undo:
        for name in ENDS:
            remove(name)  # left by a run that was killed
        process = subprocess.Popen(
            [str(built("delay")), *ENDS, "--ms", str(ms), "--mbit", str(mbit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        undo.callback(stop, process)
        if process.stdout.readline().strip() != "ready":
            raise Problem(f"no line: {process.stderr.read().strip()}")
        for name, address in zip(ENDS, ADDRESSES):
            undo.callback(remove, name)
            ip("netns", "add", name)
            ip("link", "set", name, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield


def crossed():
    """Bytes that have gone over the line so far, both ways together."""
    total = 0
    for name in ENDS:
        done = ip("-n", name, "-statistics", "-json", "link", "show", "dev", name)
        total += json.loads(done.stdout)[0]["stats64"]["tx"]["bytes"]
    return total


def stop(process):
    """Ends the program that carries the packets; its devices go with it."""
    process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        programs.end(process)
    process.stdout.close()
    process.stderr.close()


def ip(*arguments):
    """Runs `ip`, and gives what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Problem(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done


def remove(name):
    """Takes a namespace away if it is there."""
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def check():
    """The properties of the line: {"round_trip": seconds, "bandwidth": bytes a second}."""
    server = programs.start(inside(1, [sys.executable, CHECK, "serve", ADDRESSES[1]]))
    try:
        if server.stdout.readline().strip() != "ready":
            raise Problem("the check of the line did not start")
        return programs.report(inside(0, [sys.executable, CHECK, "measure", ADDRESSES[1]]))
    finally:
        programs.end(server)
        server.stdout.close()
