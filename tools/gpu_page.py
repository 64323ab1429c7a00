#!/usr/bin/env python3
"""Runs `bossman self-check` on a device of this machine, and writes a page of what it found.

    tools/gpu_page.py                         the programs of target/release, target/gpu/gpu.md
    tools/gpu_page.py --preset small          without the models that people train
    tools/gpu_page.py --preset tiny           for any device; its times say nothing
    tools/gpu_page.py --programs FOLDER       those of an unpacked archive of `make dist`
    tools/gpu_page.py --device cuda:0,cuda:1 --to gpu.md

The exit code is that of the self-check. If the Python that runs this has torch, the page has
PyTorch's speed on the same device beside ours.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytorch

CHECKOUT = Path(__file__).resolve().parent.parent
PEER = CHECKOUT / "tools" / "gpu_peer.py"
PEER_LIMIT = 300
# The sections of the speed, the models in tools/gpu_peer.py, and what a step has many of.
TIMED = {"speed.gpt": "tokens", "speed.resnet50": "pictures", "speed.wide": "parameters"}
# What PyTorch runs, in the order of the page.
WAYS = ("eager", "compiled")
# What a column is.
PEAK = (
    "The peak is the most memory that tensors had at one time, and of two workers the sum of both. "
    "BossMan's counts from the start of a worker. `-`: unknown."
)
# The most characters of a cell. The text of an error that libtorch gives can be longer.
LONGEST = 300
# The beginnings of the names of NVIDIA's GPUs. Old drivers leave the maker out.
NVIDIA = re.compile(r"\b(NVIDIA|Tesla|GeForce|Quadro|TITAN)\b")


def program_in(folder):
    """The program `bossman` in a folder of programs, or in an unpacked archive."""
    for path in (folder / "bossman", folder / "bin" / "bossman"):
        if path.is_file():
            return path
    sys.exit(f"{folder}: holds neither bossman nor bin/bossman; run `make build`, or name a folder")


def check(program, preset, device):
    """Runs the self-check and shows its lines. Returns them, and the exit code."""
    command = [program, "self-check", "--json", "--preset", preset]
    if device:
        command += ["--device", device]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for text in running.stdout:
            print(text, end="", flush=True)
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "section" in line:
                lines.append(line)
    return lines, running.returncode


def figures_of(lines, section):
    """The figures of a section; none if it is not there."""
    return next((line["figures"] for line in lines if line["section"] == section), {})


def peer(lines, preset, named=None):
    """What PyTorch does on the same device, or why that is not known: PyTorch's version, the
    figures of each model, and why there are not more of them."""
    device = figures_of(lines, "device.driver").get("device")
    first = (named or "").split(",")[0]
    # The worker sees that GPU alone, as `cuda:0`.
    if first.startswith(("GPU-", "MIG-")):
        device = first
    timed = [name for name in TIMED if "step_ms_1_worker" in figures_of(lines, name)]
    if not timed:
        return {"problem": "speed was not measured, so PyTorch was not either"}
    if pytorch.version() is None:
        return {"problem": "PyTorch was not there"}
    try:
        done = subprocess.run(
            [sys.executable, PEER, "--device", device, "--preset", preset, *timed],
            capture_output=True,
            timeout=PEER_LIMIT,
            check=True,
        )
        said, problem = done.stdout, None
    except subprocess.TimeoutExpired as expired:
        said, problem = expired.stdout, f"PyTorch took longer than {PEER_LIMIT} s"
    except subprocess.CalledProcessError as failed:
        errors = failed.stderr.decode(errors="replace")
        reason = errors.strip().splitlines()[-1:] or ["no reason given"]
        said, problem = failed.stdout, f"PyTorch failed: {reason[0]}"
    found = peer_figures((said or b"").decode(errors="replace"))
    if problem is None and not found:
        problem = "PyTorch's figures cannot be read"
    if problem is None:
        return found
    measured = any(name in found for name in timed)
    return {**found, "rest": problem} if measured else {"problem": problem}


def peer_figures(text):
    """The figures that tools/gpu_peer.py has printed: those of models by the model's name."""
    found = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # text of PyTorch itself, or cut short
        if not isinstance(said, dict):
            continue
        model = said.pop("model", None)
        found.update(said if model is None else {model: {**found.get(model, {}), **said}})
    return found


def cell(value):
    """A value in a table."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, list):
        text = ", ".join(cell(item) for item in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{name} {cell(item)}" for name, item in value.items())
    else:
        text = str(value)
    text = " ".join(text.replace("|", "\\|").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}.."


def table(head, rows):
    """The lines of a table."""
    return [
        f"| {' | '.join(row)} |"
        for row in [head, ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    ]


def name_of(driver):
    """The device's name, such as `NVIDIA H100 80GB HBM3`."""
    return re.sub("^cuda ", "", driver.get("processor", "unknown device"))


def first_sentence(driver, preset, lines):
    """What the reader must know before the figures."""
    failed = [line["section"] for line in lines if not line["ok"]]
    doubts = []
    if preset == "tiny":
        doubts.append("preset tiny, whose times say nothing")
    if not NVIDIA.search(name_of(driver)):
        doubts.append("not a real GPU")
    doubt = f" ({'; '.join(doubts)})" if doubts else ""
    if not lines:
        return f"The self-check{doubt} gave no results."
    if failed:
        named = ", ".join(failed)
        return f"Of {len(lines)} sections of the self-check{doubt}, these failed: {named}."
    return f"All {len(lines)} sections of the self-check{doubt} are right."


def result_of(line):
    """The result of a section, and its text."""
    if not line["ok"]:
        return "failed", line["problem"]
    if "skipped" in line["figures"]:
        return "skipped", line["figures"]["skipped"]
    return "ok", line["text"]


def beside_pytorch(lines, found):
    """The section about PyTorch."""
    if "problem" in found:
        return [f"{found['problem'][:1].upper()}{found['problem'][1:]}."]
    version = f"PyTorch {found['version']}"
    text = []
    most = figures_of(lines, "device.products").get("bfloat16_tflop_s")

    def row(name, rate, step, speed, peak):
        share = speed / most if most else 0
        memory = "-" if peak is None else f"{peak / 2**30:.1f}"
        # Less than a hundredth: the step does something else than products.
        return [name, rate, step, speed, f"{share:.0%}" if share >= 0.01 else "", memory]

    for section, unit in TIMED.items():
        speed, rate = figures_of(lines, section), f"{unit}_per_s"
        rows = [
            row(
                name,
                *(speed[f"{figure}_{key}"] for figure in (rate, "step_ms", "tflop_s")),
                speed.get(f"peak_bytes_{key}"),
            )
            for name, key in [
                ("BossMan, one worker", "1_worker"),
                ("BossMan, one worker, `determinism: fast`", "1_worker_fast"),
                ("BossMan, two workers", "2_workers"),
            ]
            if f"step_ms_{key}" in speed
        ]
        if not rows:
            continue
        operations = speed["tflop_s_1_worker"] * speed["step_ms_1_worker"]
        its = found.get(section, {})
        for way in WAYS:
            if way in its:
                seconds = its[way]
                each = speed[f"{unit}_a_step"] / seconds
                name = f"{version}, {way}"
                # The compiled step is not measured alone.
                peak = its.get("peak_bytes") if way == "eager" else None
                speed_of_it = operations / seconds / 1e3
                rows.append(row(name, each, seconds * 1e3, speed_of_it, peak))
        model = section.partition(".")[2]
        head = [f"{model} in bf16, one device", f"{unit}/s", "step, ms", "TFLOP/s", "of products"]
        text += [*table([*head, "peak, GiB"], rows), ""]
        for note in peer_notes(its):
            text += [note, ""]
    if text:
        text += [PEAK, ""]
    if "rest" in found:
        text += [f"{cell(found['rest'])}; what it had not measured by then is missing.", ""]
    return text[:-1]


def peer_notes(its):
    """Sentences about PyTorch's figures of a model that have no column."""
    notes = []
    if "forms" in its:
        forms = [f"`{form}` {seconds * 1e3:.4g} ms" for form, seconds in its["forms"].items()]
        notes.append(f"PyTorch's eager run is the faster of: {', '.join(forms)}.")
    if "not compiled" in its:
        notes.append(f"PyTorch did not compile it: {cell(its['not compiled'])}")
    return notes


def page(lines, preset, date, found):
    """The text of the page."""
    driver = figures_of(lines, "device.driver")
    facts = [["device", f"{driver.get('device', 'none')}: {name_of(driver)}"]]
    known = [("driver", "cuda"), ("libtorch", "libtorch")]
    facts += [[name, driver[key]] for name, key in known if driver.get(key)]
    if driver.get("memory_total"):
        facts.append(["memory", f"{driver['memory_total'] / 2**30:.1f} GiB"])
    facts += [["date", date], ["preset", preset]]
    sections = [[line["section"], *result_of(line)] for line in lines]
    seconds = [line["seconds"] for line in lines]
    rows = [
        [section, result, f"{time:.1f}", text or ""]
        for (section, result, text), time in zip(sections, seconds)
    ]
    figures = [
        [line["section"], name, value]
        for line in lines
        for name, value in line["figures"].items()
        if value is not None and name != "skipped"
    ]
    text = [
        f"# Self-check of {name_of(driver)}",
        "",
        first_sentence(driver, preset, lines),
        "",
        *table(["fact", "value"], facts),
        "",
        "## Sections",
        "",
        *table(["section", "result", "seconds", "text"], rows),
        "",
        "## Beside PyTorch",
        "",
        *beside_pytorch(lines, found),
        "",
        "## Figures",
        "",
        *table(["section", "figure", "value"], figures),
    ]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=["tiny", "small", "large"], default="large")
    parser.add_argument("--device", metavar="LIST", help="as of `bossman self-check`")
    parser.add_argument(
        "--programs", type=Path, metavar="FOLDER", default=CHECKOUT / "target" / "release"
    )
    parser.add_argument(
        "--to", type=Path, metavar="FILE", default=CHECKOUT / "target" / "gpu" / "gpu.md"
    )
    options = parser.parse_args()
    program = program_in(options.programs)
    lines, code = check(program, options.preset, options.device)
    date = datetime.date.today().isoformat()
    found = peer(lines, options.preset, options.device)
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(page(lines, options.preset, date, found), encoding="utf-8")
    print(f"written to {options.to}")
    sys.exit(code)


if __name__ == "__main__":
    main()
