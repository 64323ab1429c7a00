#!/usr/bin/env python3
"""Times the GPT of `bossman self-check` in PyTorch eager on one device: AdamW, bf16 autocast, the
median of 10 steps after 3. Prints a JSON object.

    tools/gpu_peer.py --device cuda:0
"""

import argparse
import json
import statistics
import time

import pytorch

# As preset `small` in bossman/src/self_check/preset.rs.
SMALL = {
    "width": 512,
    "heads": 8,
    "blocks": 8,
    "length": 256,
    "vocabulary": 4096,
    "batch": 16,
}
FIRST, MEASURED = 3, 10


def make(torch, sizes):
    """The model of bossman/src/self_check/gpt.yaml."""
    nn = torch.nn
    width = sizes["width"]

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(sizes["vocabulary"], width)
            self.positions = nn.Embedding(sizes["length"], width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width,
                    sizes["heads"],
                    4 * width,
                    dropout=0.0,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(sizes["blocks"])
            )
            self.norm = nn.LayerNorm(width)

        def forward(self, x):
            later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            x = self.words(x) + self.positions.weight[: x.shape[1]]
            for block in self.blocks:
                x = block(x, src_mask=later, is_causal=True)
            x = self.norm(x) * width**-0.5
            return nn.functional.linear(x, self.words.weight).transpose(1, 2)

    return GPT()


def measure(torch, device, sizes):
    """The median time of a step, in seconds."""
    torch.manual_seed(0)
    model = make(torch, sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    shape = (sizes["batch"], sizes["length"])
    inputs = torch.randint(sizes["vocabulary"], shape, device=device)
    targets = torch.randint(sizes["vocabulary"], shape, device=device)
    kind = torch.device(device).type
    times = []
    for _ in range(FIRST + MEASURED):
        begin = time.perf_counter()
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Reading the loss waits for the forward pass alone.
        loss.item()
        if kind == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[FIRST:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    device = parser.parse_args().device
    torch = pytorch.load()
    if device.startswith("cuda") and not torch.cuda.is_available():
        print(json.dumps({"problem": f"PyTorch {torch.__version__} has no CUDA here"}))
        return
    seconds = measure(torch, device, SMALL)
    tokens = SMALL["batch"] * SMALL["length"]
    figures = {
        "version": torch.__version__,
        "step_ms": seconds * 1e3,
        "tokens_per_s": tokens / seconds,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
