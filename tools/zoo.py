#!/usr/bin/env python3
"""Imports the models of tools/zoo_models.py, compares BossMan's programs with PyTorch on each, and
writes docs/reference/zoo.md.

    tools/zoo.py                       all models that have no result yet
    tools/zoo.py --only timm/coat_tiny one model, by its name with or without its suite
    tools/zoo.py --every 4             every fourth model of each suite
    tools/zoo.py --again               also those that have a result
    tools/zoo.py --jobs 4              four models at once (default: one a core)
    tools/zoo.py --page                the page anew from the results, running nothing

Each model is a process of its own with limits of time and memory. Its result is a line of
bench/results/zoo.jsonl, so a run that was stopped goes on where it stopped. A result counts as long
as the model is made in the same way, by the same versions, read by the same importer and compared
by the same check. Models without any result come first.

Needs a Python with torch, torchvision, timm and transformers: `make zoo` makes one."""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import from_torch
import setup_libtorch
import zoo_models
import zoo_page

RESULTS = setup_libtorch.CHECKOUT / "bench" / "results" / "zoo.jsonl"
IMPORTER = Path(__file__).resolve().parent / "torch_import"
# To raise if a change of torch_import/check.py may change a result: then no older one counts.
CHECK = 2
GIGABYTE = 1 << 30
# What an error is, by its words, if it names no function.
CLASSES = {
    "torch.export": r"torch\.export cannot follow",
    "batch size": r"the graph holds for",
    "evaluation": r"computes in training what it does not in evaluation",
    "random": r"draws? random numbers",
    "buffer": r"writes to the buffer|forward\(\) changes",
    "bossman": r"--check: `bossman",
    "check": r"--check:",
    "memory": r"MemoryError|can't allocate memory|Cannot allocate memory|bad_alloc",
    "time": r"took more than",
}


def class_of(error):
    """In a word what an error is: the function that is missing, or its kind."""
    # `aten.roll.default in layers.0, ...` is the function `aten.roll`.
    function = re.match(r"([a-z]\w*)\.(\w+)(?:\.\w+)? in \S", error)
    if function and function[1] != "torch":
        return f"{function[1]}.{function[2]}"
    found = [name for name, words in CLASSES.items() if re.search(words, error)]
    return found[0] if found else "other"


def one_line(error):
    """An error without the folders of this machine, in one line that is not too long."""
    error = " ".join(str(error).split())
    error = re.sub(r"(?<![\w.])/\S*/(torchvision|timm|transformers|torch)/", r"\1/", error)
    error = re.sub(r"(?<![\w.])/\S*/(?=[\w.-]+\.(?:yaml|safetensors|jsonl))", "", error)
    return error if len(error) <= 300 else error[:297] + "..."


def importer():
    """A hash of the importer's files without the check, which [`CHECK`] counts."""
    found = hashlib.sha256()
    for path in sorted(set(IMPORTER.glob("*.py")) - {IMPORTER / "check.py"}):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def versions(case):
    """What a result depends on besides the model."""
    # Here, because the twins of the examples are called pytorch.py, too.
    import pytorch

    library = zoo_models.SUITES[case.suite].partition(",")[0]
    return {
        "torch": pytorch.version(),
        library: pytorch.version(library),
        "importer": importer(),
        "check": CHECK,
    }


def read(path):
    """The last row of each model, by its key."""
    rows = {}
    if path.exists():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                rows[f"{row['suite']}/{row['model']}"] = row
            except (ValueError, KeyError, TypeError) as problem:
                sys.exit(f"zoo: {path}, line {number} is no result ({problem}); delete the line")
    return rows


def append(path, row):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def tidy(path, cases):
    """Leaves one row of each model that there is, in the order of the list."""
    rows = read(path)
    lines = [json.dumps(rows[case.key]) + "\n" for case in cases if case.key in rows]
    written = path.with_suffix(".new")
    written.write_text("".join(lines), encoding="utf-8")
    written.replace(path)


def done(row, case, versions):
    """Whether a row is the result of this model."""
    same = row is not None and row["made_with"] == case.made_with()
    return same and row["versions"] == versions


def chosen_cases(cases, only, every):
    """Those that have one of the names, or all; of each suite every so many."""
    if only:
        found = [case for case in cases if case.name in only or case.key in only]
        missing = {*only} - {case.name for case in found} - {case.key for case in found}
        if missing:
            sys.exit(f"zoo: no model is called {', '.join(sorted(missing))}")
        return found
    suites = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    return [case for of_one in suites.values() for case in of_one[::every]]


class Row:
    """The result of a model, which its process keeps in a file: what is known of it counts even if
    the process is killed."""

    def __init__(self, path, case, versions):
        self.path = path
        self.found = {
            "model": case.name,
            "suite": case.suite,
            "made_with": case.made_with(),
            "versions": versions,
            "parameters": None,
            "imported": False,
            "layers": None,
            "aten": None,
            **dict.fromkeys(zoo_page.KINDS),
            "rounding": {},
            "workers": [],
            "cut": None,
            "checked": False,
        }
        self.set()

    def set(self, **found):
        self.found.update(found)
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(self.found), encoding="utf-8")
        written.replace(self.path)

    def figure(self, figure):
        """Keeps the worst of each kind, and the cut."""
        if figure.kind == "cut" and figure.workers in self.found["workers"]:
            self.set(cut=figure.name)
        if figure.limit > zoo_page.LIMIT:
            rounding = self.found["rounding"]
            worst = worse(rounding.get(figure.kind), figure.limit)
            self.set(rounding={**rounding, figure.kind: worst})
        if figure.error is None:
            return
        if figure.workers not in self.found["workers"]:
            self.found["workers"].append(figure.workers)
        self.set(**{figure.kind: worse(self.found[figure.kind], figure.error)})

    def fail(self, error):
        error = one_line(error)
        self.set(error=error, **{"class": class_of(error)})


def worse(known, error):
    """The larger error as JSON has it, which has no numbers that are not finite."""
    numbers = [float(one) for one in (known, error) if one is not None]
    worst = max(numbers, key=lambda one: (one != one, one))
    return worst if math.isfinite(worst) else str(worst)


def one(case, programs, path, import_seconds, check_seconds, memory):
    """Imports and checks a model in this process, which a signal ends if it takes too long."""
    import pytorch

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    row = Row(path, case, versions(case))
    torch = pytorch.load()
    torch.set_num_threads(1)
    if case.suite == "transformers":
        pytorch.load_transformers()
    # They import torch.
    from torch_import import check
    from torch_import.problem import Unknown

    try:
        torch.manual_seed(0)
        module = case.make()
        row.set(parameters=sum(part.numel() for part in module.parameters()))
        signal.setitimer(signal.ITIMER_PROF, import_seconds)
        traced = from_torch.trace(module, case.inputs, case.name)
        signal.setitimer(signal.ITIMER_PROF, 0)
        entries = traced.translation.entries
        aten = sum(entry.kind == "Aten" for entry in entries)
        row.set(imported=True, layers=len(entries), aten=aten)
        signal.setitimer(signal.ITIMER_REAL, check_seconds)
        for figure in check.check(traced, programs):
            row.figure(figure)
        signal.setitimer(signal.ITIMER_REAL, 0)
        row.set(checked=True)
    except Unknown as problem:
        row.fail(problem)
    except Exception as problem:
        # A model's code and the importer can raise anything; it is the result.
        row.fail(f"{type(problem).__name__}: {problem}")


class Processes:
    """The processes of the models that run now."""

    def __init__(self):
        self.lock, self.running, self.ended = threading.Lock(), set(), False

    def start(self, command, **settings):
        with self.lock:
            if self.ended:
                raise RuntimeError("the run has ended")
            process = subprocess.Popen(command, start_new_session=True, **settings)
            self.running.add(process)
        return process

    def end(self, process):
        """Ends a process and what it has started and left, such as workers."""
        kill(process)
        process.wait()
        self.running.discard(process)

    def end_all(self):
        """Ends all processes. None starts any more."""
        with self.lock:
            self.ended = True
            for process in self.running.copy():
                kill(process)


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(case, chosen, processes):
    """The row of a model, from a process of its own."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        folder = Path(folder)
        path, log = folder / "row.json", folder / "log"
        command = [sys.executable, __file__, "--one", case.key, str(path)]
        command += ["--programs", str(chosen.programs.absolute())]
        command += ["--import-seconds", str(chosen.import_seconds)]
        command += ["--check-seconds", str(chosen.check_seconds)]
        command += ["--memory", str(chosen.memory)]
        with log.open("w") as file:
            process = processes.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
            )
            # Loading the libraries, making the model and reading it on a busy machine.
            most = 4 * chosen.import_seconds + chosen.check_seconds + 120
            try:
                code = process.wait(most)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                processes.end(process)
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if not path.exists():
            sys.exit(f"zoo: {case.key}: the process did not begin: {' '.join(said[-3:])}")
        row = json.loads(path.read_text(encoding="utf-8"))
    return finish(row, code, said, chosen, most, time.monotonic() - begin)


def finish(row, code, said, chosen, most, seconds):
    """The row with the reason why its process ended, if it could not tell."""
    if code != 0:
        if code is None:
            error = f"took more than {most:.0f} s in all"
        elif code == -signal.SIGPROF:
            error = f"the import took more than {chosen.import_seconds:.0f} s of CPU"
        elif code == -signal.SIGALRM:
            error = f"the check took more than {chosen.check_seconds:.0f} s"
        else:
            error = f"the process ended with {code}: {' '.join(said[-2:])}"
        error = one_line(error)
        row.update(error=error, checked=False, **{"class": class_of(error)})
    return {**row, "seconds": round(seconds, 1)}


def write_page(results, cases):
    zoo_page.PAGE.write_text(zoo_page.page(cases, read(results)), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no model after that time"
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=from_torch.programs(),
        help="the folder of bossman and worker [default: %(default)s]",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        choices=range(1, 1025),
        metavar="N",
        help="models at once [one a core]",
    )
    parser.add_argument("--import-seconds", type=float, default=30, help="of CPU [30]")
    parser.add_argument(
        "--check-seconds", type=float, default=90, help="if one model runs at once [90]"
    )
    parser.add_argument("--memory", type=float, default=12, help="GB of addresses [12]")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cases = zoo_models.cases()
    if chosen.one:
        case = next(case for case in cases if case.key == chosen.one[0])
        one(
            case,
            chosen.programs,
            Path(chosen.one[1]),
            chosen.import_seconds,
            chosen.check_seconds,
            int(chosen.memory * GIGABYTE),
        )
        return
    if not chosen.page:
        # As Ctrl-C does: what runs is ended, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("zoo: stopped"))
        # Each has a part of the cores.
        chosen.check_seconds *= chosen.jobs
    try:
        if not chosen.page:
            run_all(chosen, chosen_cases(cases, chosen.only, chosen.every))
    finally:
        tidy(RESULTS, cases)
        write_page(RESULTS, cases)


def run_all(chosen, cases):
    for program in ("bossman", "worker"):
        if not (chosen.programs / program).is_file():
            sys.exit(f"zoo: {chosen.programs / program} does not exist; give --programs")
    rows = read(RESULTS)
    left = [
        case
        for case in sorted(cases, key=lambda case: case.key in rows)
        if chosen.again or not done(rows.get(case.key), case, versions(case))
    ]
    end = time.monotonic() + 60 * chosen.minutes
    processes = Processes()

    def run_in_time(case):
        return run(case, chosen, processes) if time.monotonic() < end else None

    lanes = concurrent.futures.ThreadPoolExecutor(chosen.jobs)
    results = [lanes.submit(run_in_time, case) for case in left]
    try:
        for number, result in enumerate(concurrent.futures.as_completed(results), 1):
            if row := result.result():
                append(RESULTS, row)
                print(f"{number} of {len(left)}: {zoo_page.said(row)}", flush=True)
        skipped = sum(result.result() is None for result in results)
        if skipped:
            print(f"zoo: the time is over; the next run goes on with the other {skipped} models")
    finally:
        for result in results:
            result.cancel()
        processes.end_all()
        lanes.shutdown()


if __name__ == "__main__":
    main()
