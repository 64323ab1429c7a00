#!/usr/bin/env python3
"""Makes examples/digits/digits-{train,test}.csv.gz from the digits that scikit-learn carries.

    pip download --no-deps scikit-learn==1.9.1
    python3 tools/make_digits.py scikit_learn-1.9.1-*.whl

The same wheel gives the same pictures in the same files, in the same order.
"""

import gzip
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "digits"
HEADER = [f"p{i}" for i in range(64)] + ["label"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        text = gzip.decompress(wheel.read("sklearn/datasets/data/digits.csv.gz")).decode()
    train, test, seen = [], [], [0] * 10
    for line in text.split():
        *pixels, label = map(int, map(float, line.split(",")))
        # Every fifth picture of each digit, so that both files have the same share of each digit
        # and of each writer.
        (test if seen[label] % 5 == 0 else train).append([*pixels, label])
        seen[label] += 1
    write("digits-train.csv.gz", train)
    write("digits-test.csv.gz", test)


def write(name, rows):
    # Pixels go from 0..16 to 0..1; sixteenths are exact in decimal and in binary.
    lines = [",".join(HEADER)] + [
        ",".join([f"{pixel / 16:g}" for pixel in row[:-1]] + [str(row[-1])]) for row in rows
    ]
    (FOLDER / name).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    print(f"{name}: {len(rows)} pictures")


if __name__ == "__main__":
    main()
