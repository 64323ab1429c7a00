#!/usr/bin/env python3
"""Times the models of `bossman self-check` in PyTorch on one device, in bf16 by autocast: the
median of 10 steps after 3.

    tools/gpu_peer.py --device cuda:0 --preset large speed.gpt speed.resnet50 speed.wide
    tools/gpu_peer.py --device GPU-6f2f4f7a-...      a GPU by its UUID

Prints a JSON object on a line of its own as soon as it is known: the version of PyTorch, then for
each model the seconds of a step, eager and, if the machine has a compiler, compiled. A GPU's memory
is that of the eager run at its peak.

The GPT has two forms: blocks of `nn.TransformerEncoderLayer` with a mask, which the model file
names, and blocks as people write them, with `scaled_dot_product_attention`. Both are timed. The
eager time and the memory are those of the faster form, and only it is compiled.
"""

import argparse
import gc
import json
import os
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


def gpt_of_layers(torch, device, preset):
    """The GPT of PyTorch's own layers."""
    nn, sizes = torch.nn, SIZES[preset]

    def block():
        return nn.TransformerEncoderLayer(
            sizes["width"],
            sizes["heads"],
            4 * sizes["width"],
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )

    def through(blocks, x):
        later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for block in blocks:
            x = block(x, src_mask=later, is_causal=True)
        return x

    return gpt(torch, device, sizes, block, through)


def gpt_by_hand(torch, device, preset):
    """The GPT as people write it: queries, keys and values of one product, and no mask."""
    nn, sizes = torch.nn, SIZES[preset]
    width, heads = sizes["width"], sizes["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            # [N, L, 3 * width] becomes three of [N, heads, L, width / heads].
            parts = self.qkv(self.norm1(x)).split(width, dim=2)
            parts = [part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts]
            attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x))

    def through(blocks, x):
        for block in blocks:
            x = block(x)
        return x

    return gpt(torch, device, sizes, Block, through)


def gpt(torch, device, sizes, new_block, through):
    """The model of bossman/src/self_check/gpt.yaml of such blocks, its optimizer, and a batch."""
    nn, width = torch.nn, sizes["width"]

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(sizes["vocabulary"], width)
            self.positions = nn.Embedding(sizes["length"], width)
            self.blocks = nn.ModuleList(new_block() for _ in range(sizes["blocks"]))
            self.norm = nn.LayerNorm(width)

        def forward(self, x):
            x = self.words(x) + self.positions.weight[: x.shape[1]]
            x = self.norm(through(self.blocks, x)) * width**-0.5
            # Classes come last, because a softmax over another dimension is slow.
            return nn.functional.linear(x, self.words.weight).flatten(0, 1)

    model = GPT().to(device)
    shape = (sizes["batch"], sizes["length"])
    inputs = torch.randint(sizes["vocabulary"], shape, device=device)
    targets = torch.randint(sizes["vocabulary"], shape, device=device).flatten()
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


# The forms of each model, by name.
MODELS = {
    "speed.gpt": {
        "nn.TransformerEncoderLayer": gpt_of_layers,
        "scaled_dot_product_attention": gpt_by_hand,
    },
    "speed.resnet50": {"": resnet50},
    "speed.wide": {"": wide},
}


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


def eager(torch, device, preset, make):
    """The median time of a step, and a GPU's memory at its peak in bytes, None on other devices."""
    free(torch, device)
    if is_cuda(device):
        # It knows no devices before CUDA is there.
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(0)
    seconds = measure(torch, device, make(torch, device, preset), False)
    return seconds, torch.cuda.max_memory_allocated(device) if is_cuda(device) else None


def free(torch, device):
    """Frees what earlier models left."""
    gc.collect()
    if is_cuda(device):
        torch.cuda.empty_cache()


def is_cuda(device):
    return device.startswith("cuda")


def figures(torch, device, preset, name):
    """Yields the figures of a model as soon as they are known."""
    forms = MODELS[name]
    found = {form: eager(torch, device, preset, make) for form, make in forms.items()}
    fastest = min(found, key=lambda form: found[form][0])
    seconds, peak = found[fastest]
    line = {"model": name, "eager": seconds}
    if peak is not None:
        line["peak_bytes"] = peak
    if len(forms) > 1:
        line["forms"] = {form: seconds for form, (seconds, _) in found.items()}
    yield line
    free(torch, device)
    try:
        torch.manual_seed(0)
        made = forms[fastest](torch, device, preset)
        yield {"model": name, "compiled": measure(torch, device, made, True)}
    except Exception as problem:  # no compiler, or none that suits: eager is shown alone
        yield {"model": name, "not compiled": f"{type(problem).__name__}: {problem}"[:200]}


def show(line):
    print(json.dumps(line), flush=True)


def visible(device):
    """PyTorch's name of a device. Only the GPU of a UUID is visible to PyTorch, if it is loaded
    after this."""
    if device.startswith(("GPU-", "MIG-")):
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        return "cuda:0"
    return device


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--preset", choices=list(SIZES), default="large")
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    options = parser.parse_args()
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error(f"unknown model {min(unknown)}; expected some of {', '.join(MODELS)}")
    device = visible(options.device)
    torch = pytorch.load()
    if is_cuda(device) and not torch.cuda.is_available():
        show({"problem": f"PyTorch {torch.__version__} has no CUDA here"})
        return
    show({"version": torch.__version__})
    for name in options.models:
        for line in figures(torch, device, options.preset, name):
            show(line)


if __name__ == "__main__":
    main()
