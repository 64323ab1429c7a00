"""The measured figures of README.md: the lines between the two marks, from bench/results."""

import re

import build_commands
import page
import sections
from programs import CHECKOUT

README = CHECKOUT / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
QUIC, GLOO = (f"{who} bandwidth {4 << 20}" for who in ("quic", "gloo"))
# Workload, words, and the ratio of its pairs.
SHOWN = (
    ("P", "a pipeline's throughput, of the best PyTorch schedule's", page.throughput),
    (
        "D",
        "two replicas' throughput, of DistributedDataParallel's",
        page.of("pytorch DDP", "bossman 2 replicas"),
    ),
    (
        "S",
        "time to the first finished step, of PyTorch's",
        page.of("bossman start", "pytorch start"),
    ),
    (
        "S",
        "peak memory of the largest worker, of PyTorch's largest rank",
        page.of("bossman memory", "pytorch memory"),
    ),
    (
        "N",
        "bandwidth of large tensors over QUIC (encrypted), of gloo's (not encrypted)",
        page.of(QUIC, GLOO),
    ),
)


def block(results):
    """The marks and the figures between them."""
    rows = [
        [words, f"{value(results[name]['pairs']):.2f}"]
        for name, words, value in SHOWN
        if results.get(name, {}).get("pairs")
    ]
    parts = [BEGIN, sections.table(["beside PyTorch on the same machine", "ratio"], rows)]
    parts.append(build_commands.sentence(results.get(build_commands.NAME, {})))
    return "\n\n".join(part for part in [*parts, END] if part)


def text(results):
    """README.md with its figures anew; all else stays."""
    return BLOCK.sub(lambda _: block(results), README.read_text(encoding="utf-8"))


def prose(whole):
    """README.md without its figures."""
    return BLOCK.sub("", whole)
