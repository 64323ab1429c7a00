"""The files in bench/results: one for each measurement, written by the command that measured.

Each names the machine, the day, the commit and the load before. The scripts of faults also store
their command line. They write only with `--keep`, so that a trial run changes no page."""

import datetime
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import machine
from programs import CHECKOUT, profile

FOLDER = CHECKOUT / "bench" / "results"


def header():
    """The circumstances of a measurement that begins now."""
    git = ["git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    return {
        "machine": machine.describe(),
        "when": datetime.date.today().isoformat(),
        "commit": commit,
        "load": [machine.load()],
    }


def command():
    """The command line of this script, as it is typed."""
    build = [] if profile() == "release" else [f"BOSSMAN_BENCH_PROFILE={profile()}"]
    words = [word for word in sys.argv[1:] if word != "--keep"]
    return shlex.join([*build, f"bench/{Path(sys.argv[0]).name}", *words])


def add_keep(parser):
    """Adds the flag that stores the result."""
    parser.add_argument(
        "--keep", action="store_true", help="store the result in bench/results, write the pages"
    )


def name(letter, *words):
    """The name of the result of a script with these settings, as `K-neighbour-replicas-2`."""
    return "-".join([letter, *re.findall("[a-z0-9]+", " ".join(words).lower())])


def save(stem, result):
    """Stores what was measured."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1) + "\n"
    (FOLDER / f"{stem}.json").write_text(text, encoding="utf-8")


def saved():
    """All that was measured, now or earlier: {name: result}."""
    paths = sorted(FOLDER.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
