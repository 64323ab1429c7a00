#!/usr/bin/env python3
"""Changes one place of `pipeline` or `layerspec` at a time, and tells which changes no test
notices.

    tools/mutants.py                     200 changes (about three hours)
    tools/mutants.py --minutes 20        a part; the next run goes on with the others
    tools/mutants.py --sample 40 --seed 7
    tools/mutants.py --match plan.rs     only changes whose description has these words
    tools/mutants.py --quick             without the simulator, so what is missed gets no result yet

It runs cargo-mutants, which it installs once into target/tools. The changes are made in a copy of
the checkout, always the same one, so that only the changed crate is compiled anew. The quick tests
see every change, and the simulator those that the quick tests miss. Changes that do not compile do
not count. The command lists the changes that were missed, and fails if less than CAUGHT were
noticed.

Each result is a line of bench/results/mutants.jsonl. It counts as long as the changed file stays as
it is. Edits elsewhere change neither the results nor, hardly, the sample: a change is drawn by a
hash of its description without line numbers.
"""

import argparse
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TOOLS = CHECKOUT / "target" / "tools"
OUT = CHECKOUT / "target" / "mutants"
TREE = OUT / "tree"
RESULTS = CHECKOUT / "bench" / "results" / "mutants.jsonl"
VERSION = "26.0.0"
QUICK = {
    "pipeline": ["--", "--lib", "--test", "it"],
    "layerspec": ["--", "--tests"],
}
SIMULATOR = {"pipeline": ["--test-package=simulator"]}
OUTCOMES = ("caught", "missed", "timeout", "unviable")
# A change that makes a test run for ever is noticed, too.
NOTICED = ("caught", "timeout")
CAUGHT = 0.95
# Changes between two looks at the clock. Results are stored after each batch.
BATCH = 10


def cargo_mutants():
    """Returns the path of cargo-mutants, which is installed first if it is missing."""
    program = TOOLS / "bin" / "cargo-mutants"
    if not program.exists():
        install = ["cargo", "install", "--locked", "cargo-mutants", "--version", VERSION]
        subprocess.run([*install, "--root", str(TOOLS)], cwd=CHECKOUT, check=True)
    return str(program)


def copy(checkout, tree):
    """Makes `tree` a copy of the files of a checkout that git knows or would add. What is equal
    keeps its time, so that cargo does not compile it again."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True)
    names = {name for name in run.stdout.split("\0") if (checkout / name).is_file()}
    for file in [file for file in tree.rglob("*") if file.is_file()]:
        if str(file.relative_to(tree)) not in names:
            file.unlink()
            # A file may take the place of its folder.
            while not any((file := file.parent).iterdir()):
                file.rmdir()
    for name in names:
        source, target = checkout / name, tree / name
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def listed(program):
    """All changes that can be made, as cargo-mutants names them."""
    command = [program, "mutants", "--list", *(f"--package={package}" for package in QUICK)]
    run = subprocess.run(command, cwd=TREE, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.splitlines()


def path(change):
    """The file of a change, from the root of the project."""
    return change.split(":", 1)[0]


def description(change):
    """A change without its line and column, as `FILE: replace ...`."""
    return re.sub(r"^([^:]+):\d+:\d+:", r"\1:", change)


def drawn(changes, size, seed):
    """A sample that an edit elsewhere does not change."""

    def lot(change):
        return hashlib.sha256(f"{seed} {description(change)}".encode()).hexdigest()

    return sorted(changes, key=lambda change: (lot(change), change))[:size]


def file_hash(change, tree=TREE):
    """A hash of the file of a change."""
    return hashlib.sha256((tree / path(change)).read_bytes()).hexdigest()[:12]


def read(results):
    """The outcomes that are stored, by change and hash of the file."""
    if not results.exists():
        return {}
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {(row["change"], row["file"]): row["outcome"] for row in rows}


def append(results, outcomes, tree=TREE):
    """Stores outcomes of changes."""
    with results.open("a", encoding="utf-8") as file:
        for change, outcome in outcomes.items():
            row = {"change": change, "file": file_hash(change, tree), "outcome": outcome}
            file.write(json.dumps(row) + "\n")


def test(program, changes, tests, profile, baseline):
    """Runs tests on each changed tree. Returns the outcome of each change."""
    found = {}
    for package, arguments in tests.items():
        own = [change for change in changes if f"{package}/" in path(change)]
        if not own:
            continue
        command = [
            program,
            "mutants",
            f"--package={package}",
            f"--profile={profile}",
            f"--baseline={'run' if baseline else 'skip'}",
            "--in-place",
            "--no-shuffle",
            "--timeout=120",
            f"--output={OUT}",
            *(word for change in own for word in ("--re", f"^{re.escape(change)}$")),
            *arguments,
        ]
        environment = {
            **os.environ,
            "BOSSMAN_SIM_SEEDS": "60",
            "BOSSMAN_FUZZ_INPUTS": "5000",
            "CARGO_INCREMENTAL": "1",
            "CARGO_PROFILE_DEV_DEBUG": "false",
            "CARGO_TARGET_DIR": str(OUT / "built"),
        }
        # cargo-mutants exits with 2 or 3 if tests missed something, which the caller reports.
        if subprocess.run(command, cwd=TREE, env=environment).returncode not in (0, 2, 3):
            sys.exit("cargo-mutants failed: see above")
        for outcome in OUTCOMES:
            lines = (OUT / "mutants.out" / f"{outcome}.txt").read_text().splitlines()
            found.update({change: outcome for change in lines})
    return found


def tested(program, changes, baseline, simulate):
    """The outcome of each change by the quick tests and, if these miss it, by the simulator.
    Without that, such a change has no outcome."""
    found = test(program, changes, QUICK, "mutants", baseline)
    missed = [
        change
        for change, outcome in found.items()
        if outcome == "missed" and any(f"{package}/" in path(change) for package in SIMULATOR)
    ]
    if simulate:
        return {**found, **test(program, missed, SIMULATOR, "dev", False)}
    return {change: outcome for change, outcome in found.items() if change not in missed}


def summary(outcomes):
    """The lines to print for the outcomes of changes, and whether enough were noticed."""
    count = {kind: sum(found == kind for found in outcomes.values()) for kind in OUTCOMES}
    noticed = sum(count[kind] for kind in NOTICED)
    viable = noticed + count["missed"]
    lines = [f"missed: {change}" for change, found in outcomes.items() if found == "missed"]
    lines.append(
        f"{noticed} of {viable} viable changes noticed; {count['unviable']} did not compile"
    )
    return lines, viable > 0 and noticed >= CAUGHT * viable


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match", default="")
    parser.add_argument("--quick", action="store_true", help="without the simulator")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after that")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        # A second run would mend what the first one has changed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(options)


def run(options):
    """Tests the changes that have no result yet. Fails if too few were noticed."""
    program = cargo_mutants()
    copy(CHECKOUT, TREE)
    changes = [change for change in listed(program) if options.match in change]
    sample = drawn(changes, options.sample, options.seed)
    stored, end = read(RESULTS), time.monotonic() + 60 * options.minutes
    outcomes = {
        change: outcome for change in sample if (outcome := stored.get((change, file_hash(change))))
    }
    left, baseline = [change for change in sample if change not in outcomes], True
    while left and time.monotonic() < end:
        found = tested(program, left[:BATCH], baseline, not options.quick)
        append(RESULTS, found)
        outcomes.update(found)
        left, baseline = left[BATCH:], False
        print(f"{len(outcomes)} of {len(sample)} changes tested", flush=True)
    lines, enough = summary(outcomes)
    print("\n".join(lines))
    left = [change for change in sample if change not in outcomes]
    if left:
        print(f"{len(left)} changes are left; the next run goes on with them")
    sys.exit(0 if enough else 1)


if __name__ == "__main__":
    main()
