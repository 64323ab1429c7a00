#!/usr/bin/env python3
"""Changes one place of `pipeline` or `layerspec` at a time, and tells which changes no test
notices.

    tools/mutants.py                     200 changes, drawn by seed 1 (about three hours)
    tools/mutants.py --sample 40 --seed 7
    tools/mutants.py --match plan.rs     only changes whose description has these words

It runs cargo-mutants, which it installs once into target/tools. The quick tests see every change,
and the simulator those that the quick tests miss. Changes that do not compile do not count. The
command lists the changes that were missed, and fails if less than CAUGHT were noticed.
"""

import argparse
import os
import random
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TOOLS = CHECKOUT / "target" / "tools"
OUT = CHECKOUT / "target" / "mutants"
VERSION = "26.0.0"
QUICK = {
    "pipeline": ["--", "--lib", "--test", "it"],
    "layerspec": ["--", "--tests"],
}
SIMULATOR = {"pipeline": ["--test-package=simulator"]}
CAUGHT = 0.95


def cargo_mutants():
    """Returns the path of cargo-mutants, which is installed first if it is missing."""
    program = TOOLS / "bin" / "cargo-mutants"
    if not program.exists():
        install = [
            "cargo",
            "install",
            "--locked",
            "cargo-mutants",
            "--version",
            VERSION,
            "--root",
            str(TOOLS),
        ]
        subprocess.run(install, cwd=CHECKOUT, check=True)
    return str(program)


def sample(program, size, seed, match):
    listed = subprocess.run(
        [program, "mutants", "--list", *(f"--package={package}" for package in QUICK)],
        cwd=CHECKOUT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    names = sorted(name for name in listed.stdout.splitlines() if match in name)
    return random.Random(seed).sample(names, min(size, len(names)))


def test(program, names, tests, profile):
    """Runs tests on each changed tree. Returns the changes by what happened."""
    found = {outcome: [] for outcome in ("caught", "missed", "timeout", "unviable")}
    for package, arguments in tests.items():
        # A name begins with the path of the changed file.
        own = [name for name in names if f"{package}/" in name.split(":")[0]]
        if not own:
            continue
        patterns = [argument for name in own for argument in ("--re", f"^{re.escape(name)}$")]
        command = [
            program,
            "mutants",
            f"--package={package}",
            f"--profile={profile}",
            "--no-shuffle",
            "--timeout=300",
            f"--output={OUT}",
            *patterns,
            *arguments,
        ]
        environment = dict(os.environ, BOSSMAN_SIM_SEEDS="60", BOSSMAN_FUZZ_INPUTS="5000")
        environment["CARGO_INCREMENTAL"] = "1"
        # cargo-mutants exits with 2 or 3 if tests missed something, which the caller reports.
        if subprocess.run(command, cwd=CHECKOUT, env=environment).returncode not in (0, 2, 3):
            sys.exit("cargo-mutants failed: see above")
        for outcome, all_of_it in found.items():
            text = (OUT / "mutants.out" / f"{outcome}.txt").read_text()
            all_of_it.extend(text.splitlines())
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match", default="")
    options = parser.parse_args()
    program = cargo_mutants()
    found = test(
        program,
        sample(program, options.sample, options.seed, options.match),
        QUICK,
        "mutants",
    )
    simulated = test(program, found["missed"], SIMULATOR, "dev")
    missed = [name for name in found["missed"] if "layerspec/" in name] + simulated["missed"]
    # A change that makes a test run for ever is noticed, too.
    noticed = ("caught", "timeout")
    caught = sum(len(tested[outcome]) for tested in (found, simulated) for outcome in noticed)
    for name in missed:
        print(f"missed: {name}")
    viable = caught + len(missed)
    unviable = len(found["unviable"])
    print(f"{caught} of {viable} viable changes noticed; {unviable} did not compile")
    sys.exit(0 if viable and caught >= CAUGHT * viable else 1)


if __name__ == "__main__":
    main()
