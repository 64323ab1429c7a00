#!/usr/bin/env python3
"""The time that a newcomer waits: `make demo` and `make test` from nothing, `make check` from warm.

    make build-times
    bench/build_times.py --only demo --reuse
    bench/build_times.py --dry-run

Clones the last commit into a temporary folder and runs the commands there. "From nothing" has a new
CARGO_HOME and no built files, so the crates are downloaded, too. Rust's toolchain and libtorch are
those of this machine. Writes bench/results/build-times.json after each command, and the pages."""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pages
import result_files
from build_commands import NAME, STEPS
from programs import CHECKOUT, Problem

ACCURACY = re.compile(r"test accuracy ([\d.]+) %")
# Each changes what is built, or how.
LEFT_OUT = re.compile("CARGO_(INCREMENTAL|PROFILE_.*|TARGET_DIR)|MAKE(FLAGS|LEVEL)|MFLAGS")


def plan(names, place, own, reuse):
    """All commands in order, each with the name under which its time counts, or None. `own` is the
    user's CARGO_HOME."""
    new, built = place / "cargo", place / "clone" / "target"
    # A registry that the user has set is still the one to download from.
    settings = [] if reuse else list(own.glob("config.toml"))
    commands = [(None, ["git", "clone", "--quiet", "--no-hardlinks", CHECKOUT, place / "clone"])]
    for name in names:
        step = STEPS[name]
        if step.fresh:
            commands.append((None, ["rm", "-rf", built, *([] if reuse else [new])]))
        if not reuse:
            commands.append((None, ["mkdir", "-p", new]))
        commands += [(None, ["cp", path, new]) for path in settings]
        commands += [(None, command) for command in step.before]
        commands.append((name, ["make", name]))
    return [(name, [str(word) for word in command]) for name, command in commands]


def environment(place, own, reuse):
    """The environment of all commands."""
    kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.fullmatch(name)}
    return {**kept, "CARGO_HOME": str(own if reuse else place / "cargo")}


def timed(command, folder, env):
    """Runs a command and repeats its output: the seconds that it took, and the output."""
    began, lines = time.monotonic(), []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    if process.returncode:
        raise Problem(f"{shlex.join(command)} ended with {process.returncode}; see above")
    return time.monotonic() - began, "".join(lines)


def measured(header, seconds, reuse, output):
    """The result of one command."""
    accuracy = {"accuracy": float(found[1]) for found in ACCURACY.finditer(output)}
    return {**header, "seconds": seconds, "reused": reuse, **accuracy}


def run(names, reuse):
    """Measures, and stores each result at once, so that a run that is broken off leaves what it
    had."""
    results = result_files.saved().get(NAME, {})
    with tempfile.TemporaryDirectory() as folder:
        place, own = Path(folder), cargo_home()
        commit = result_files.header()["commit"]  # which is cloned first
        env = environment(place, own, reuse)
        for name, command in plan(names, place, own, reuse):
            where = place / "clone"
            header = {**result_files.header(), "commit": commit}
            seconds, output = timed(command, where if where.exists() else place, env)
            if name:
                results[name] = measured(header, seconds, reuse, output)
                pages.keep(NAME, results)


def cargo_home():
    """The user's CARGO_HOME."""
    return Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(STEPS), help="commands [default: %(default)s]")
    parser.add_argument("--reuse", action="store_true", help="use the crates of your CARGO_HOME")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if not set(names) <= set(STEPS):
        parser.error(f"--only {asked.only}: expected some of {', '.join(STEPS)}")
    if asked.dry_run:
        place, own = Path("TEMPORARY"), cargo_home()
        print(f"CARGO_HOME={environment(place, own, asked.reuse)['CARGO_HOME']}")
        for name, command in plan(names, place, own, asked.reuse):
            print(shlex.join(command) + (f"  # counts as {name}" if name else ""))
        return
    try:
        run(names, asked.reuse)
    except Problem as problem:
        sys.exit(f"bench/build_times.py: {problem}")


if __name__ == "__main__":
    main()
