"""D-slow: the data-parallel work of D over a line of 100 Mbit/s, BossMan with compressed gradients
and DDP as it is."""

import json
import tempfile
from pathlib import Path
from statistics import mean

import far
import namespaces
from far import on_both_ends, over_the_line
from figures import settled
from programs import CHECKOUT, built, finish, peer

MBIT = 100
STEPS, WARM_UP = 4, 1
FORMS = ("f32", "bf16", "int8", "int4")
LEAST = 6 << 20  # the bytes of a step's gradients in the smallest form
LEARNED, LAST = 200, 20  # steps whose losses are compared, and how many at the end
DIGITS = CHECKOUT / "examples" / "digits"
RUN = f"""\
model: {DIGITS}/digits.yaml
data: {{train: {DIGITS}/digits-train.csv.gz}}
loss: {{CrossEntropyLoss: {{label_smoothing: 0.1}}}}
optimizer: {{Adam: {{lr: 3e-3}}}}
batch_size: 32
microbatches: 4
steps: {LEARNED}
schedule: gpipe
replicas: 2
"""


def pair(bench):
    """One pair over the line, and what a model learns with gradients of each form."""
    with namespaces.line(0, MBIT):
        found = {f"line {kind}": value for kind, value in namespaces.check().items()}
        done, found["sent pytorch"] = over_the_line(lambda: pytorch(bench), STEPS, LEAST)
        found["pytorch DDP"] = settled(done["steps"]["DDP"], WARM_UP)
        for form in FORMS:
            done, sent = over_the_line(lambda form=form: bossman(bench, form), STEPS, LEAST)
            found[f"bossman {form}"] = settled(done["steps"], WARM_UP)
            found[f"sent {form}"] = sent
    return {**found, **{f"loss {form}": learned(bench, form) for form in FORMS}}


def pytorch(bench):
    """The report of rank 0, with rank 1 at the other end."""
    return far.ranks(bench, lambda rank: peer("ddp", "--steps", str(STEPS), "--rank", str(rank)))


def bossman(bench, form):
    """The report of a boss that shares its end with the first replica; the second is at the
    other."""
    shape = (
        "--schedule",
        "gpipe",
        "--replicas",
        2,
        "--compress",
        form,
        "--microbatches",
        2,
        "--even",
    )
    return on_both_ends(bench, *shape, "--steps", STEPS)


def learned(bench, form):
    """The mean loss of the last of 200 steps on the digits, with two replicas."""
    with tempfile.TemporaryDirectory() as folder:
        file, metrics = Path(folder) / "run.yaml", Path(folder) / "metrics.jsonl"
        file.write_text(RUN + f"compress: {form}\n", encoding="utf-8")
        finish(
            [built("bossman"), "train", file, "--local", "2", "--metrics", metrics], bench.bossman
        )
        losses = [
            json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()
        ]
    return mean(losses[-LAST:])
