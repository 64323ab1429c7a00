"""Starting the programs that are compared, and reading the line of JSON each prints at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PEERS = CHECKOUT / "bench" / "peers"
LIMIT = 600  # seconds any one program may take


# The folders of measured runs are not among the user's.
os.environ.setdefault("BOSSMAN_RUNS_DIR", str(CHECKOUT / "target" / "bench" / "runs"))


class Problem(Exception):
    """Something could not be measured; the text says why and what to do."""


def target():
    """The folder of built files: where cargo puts them here, or where `make` does."""
    own = CHECKOUT / "target"
    here = Path(os.environ.get("CARGO_TARGET_DIR") or own)
    return (here if (here / profile()).is_dir() else own).resolve()


def profile():
    """Which build: of release, unless somebody wants what the tests use."""
    return os.environ.get("BOSSMAN_BENCH_PROFILE") or "release"


def built(name):
    """A program of the release build."""
    path = target() / profile() / name
    if not path.is_file():
        raise Problem(f"{path.name} is not built; `make bench` does")
    return path


def peer(name, *arguments):
    """The command of a PyTorch script of ours."""
    return [sys.executable, PEERS / f"{name}.py", *arguments]


def start(command, env=None, **more):
    """A running program whose standard output is text."""
    return subprocess.Popen(
        [str(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def report(command, env=None):
    """Runs a program to its end: what its last line says."""
    return report_of(start(command, env, stderr=subprocess.PIPE))


def report_of(process, limit=LIMIT):
    """Waits for a started program to end: what its last line says."""
    return last_json(output_of(process, limit))


def finish(command, env=None):
    """Runs a program to its end."""
    output_of(start(command, env, stderr=subprocess.PIPE))


def output_of(process, limit=LIMIT):
    """Waits for a started program to end: what it said."""
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Problem(f"{shown(process.args)} did not end within {limit} s") from None
    finally:
        end(process)
    if process.returncode != 0:
        last = "\n".join((errors or "").strip().splitlines()[-12:])
        raise Problem(f"{shown(process.args)} ended with {process.returncode}:\n{last}")
    return output


def last_json(output):
    """The last line of a program's output, parsed."""
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Problem(f"expected a line of JSON at the end, got {lines[-1:]}") from None


def end(process):
    """Ends a program that still runs, and waits for it."""
    if process.poll() is None:
        process.kill()
    process.wait()


def shown(command):
    """A command as one would type it, without its long paths."""
    return " ".join(Path(part).name if "/" in part else part for part in command)


def silent(command, env=None):
    """A running program whose output nobody reads."""
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen([str(part) for part in command], env=env, **nowhere)
