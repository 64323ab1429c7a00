#!/usr/bin/env python3
"""Records what PyTorch computes under `torch.autocast("cpu", torch.bfloat16)` for some of the
layers' cases, in tests/autocast.

    "$(python3 tools/pytorch.py)" tools/autocast_oracle.py

`cargo test -p worker` compares with what is recorded; it needs no PyTorch.
"""

import json
import sys

import layer_oracle
import pytorch
import setup_libtorch

FOLDER = setup_libtorch.CHECKOUT / "tests" / "autocast"
NAMES = [
    "linear-no-bias",
    "linear",
    "mat-mul-batched",
    "conv1d",
    "conv2d-same",
    "conv-transpose-2d",
    "attention-causal",
    "attention-added-mask",
    "encoder-layer-batch-first",
    "llama-mlp",
    "layer-norm",
    "softmax",
]


def record(torch):
    FOLDER.mkdir(exist_ok=True)
    for case in json.loads(layer_oracle.CASES.read_text()):
        if case["name"] in NAMES:
            with torch.autocast("cpu", torch.bfloat16):
                layer_oracle.record(torch, case, FOLDER / f"{case['name']}.safetensors")


if __name__ == "__main__":
    if pytorch.version() != setup_libtorch.VERSION:
        sys.exit(
            f"autocast_oracle: {sys.executable} has no torch {setup_libtorch.VERSION}; `make "
            "oracle` fetches one"
        )
    record(pytorch.load())
