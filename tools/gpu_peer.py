#!/usr/bin/env python3
"""Times the models of `bossman self-check` in PyTorch on one device, in bf16 by autocast: the
median of 10 steps after 3. Prints a JSON object with the seconds of each, eager and, if the machine
has a compiler, compiled.

    tools/gpu_peer.py --device cuda:0 --preset large speed.gpt speed.resnet50 speed.wide
"""

import argparse
import json
import statistics
import time

import pytorch

# As in bossman/src/self_check/preset.rs, `timed_sizes`.
SIZES = {
    "small": {
        "width": 512,
        "heads": 8,
        "blocks": 8,
        "length": 256,
        "vocabulary": 4096,
        "batch": 16,
    },
    "large": {
        "width": 1024,
        "heads": 16,
        "blocks": 24,
        "length": 1024,
        "vocabulary": 50304,
        "batch": 8,
    },
}
FIRST, MEASURED = 3, 10


def gpt(torch, device, preset):
    """The model of bossman/src/self_check/gpt.yaml, its optimizer, and a batch."""
    nn, sizes = torch.nn, SIZES[preset]
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

    model = GPT().to(device)
    shape = (sizes["batch"], sizes["length"])
    inputs = torch.randint(sizes["vocabulary"], shape, device=device)
    targets = torch.randint(sizes["vocabulary"], shape, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    return model, optimizer, inputs, targets, nn.functional.cross_entropy


def resnet50(torch, device, _preset):
    """ResNet-50 with torchvision's strides, which need not be there."""
    nn = torch.nn

    def convolution(inputs, outputs, size, stride=1):
        conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.main = nn.Sequential(
                convolution(inputs, width, 1),
                nn.ReLU(inplace=True),
                convolution(width, width, 3, stride),
                nn.ReLU(inplace=True),
                convolution(width, 4 * width, 1),
            )
            same = stride == 1 and inputs == 4 * width
            self.short = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

        def forward(self, x):
            return torch.relu(self.main(x) + self.short(x))

    layers = [convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    model = nn.Sequential(*layers).to(device)
    pictures = torch.rand(64, 3, 224, 224, device=device)
    classes = torch.randint(1000, (64,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return model, optimizer, pictures, classes, nn.functional.cross_entropy


def wide(torch, device, _preset):
    """A billion parameters, and one sample."""
    layers = [torch.nn.Linear(4096, 4096, bias=False, device=device) for _ in range(60)]
    model = torch.nn.Sequential(*layers)
    sample = torch.ones(1, 4096, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return model, optimizer, sample, sample, torch.nn.functional.mse_loss


MODELS = {"speed.gpt": gpt, "speed.resnet50": resnet50, "speed.wide": wide}


def measure(torch, device, made, compiled):
    """The median time of a step, in seconds."""
    model, optimizer, inputs, targets, loss_of = made
    kind = torch.device(device).type
    called = torch.compile(model) if compiled else model
    times = []
    for _ in range(FIRST + MEASURED):
        begin = time.perf_counter()
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = loss_of(called(inputs), targets)
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
    parser.add_argument("--preset", choices=list(SIZES), default="large")
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    options = parser.parse_args()
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error(f"unknown model {min(unknown)}; expected some of {', '.join(MODELS)}")
    torch = pytorch.load()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(json.dumps({"problem": f"PyTorch {torch.__version__} has no CUDA here"}))
        return
    found = {"version": torch.__version__}
    for name in options.models:
        torch.manual_seed(0)
        made = MODELS[name](torch, options.device, options.preset)
        found[name] = {"eager": measure(torch, options.device, made, False)}
        try:
            found[name]["compiled"] = measure(torch, options.device, made, True)
        except Exception as problem:  # no compiler, or none that suits: eager is shown alone
            found.setdefault("not compiled", f"{type(problem).__name__}: {problem}"[:200])
        del made
    print(json.dumps(found))


if __name__ == "__main__":
    main()
