"""Trains one module in PyTorch on one thread, without compiling it. Prints one line of JSON: the
time and the loss of each step.

With `--to` it first writes the same module, its weights and the same data, for BossMan."""

import argparse
import json
import sys
import time
from pathlib import Path

from with_torch import torch  # before anything else of torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import from_torch  # noqa: E402

RATE = 1e-4
CLASSES, VOCABULARY, LENGTH = 1000, 8192, 128
RUN = """\
model: model.yaml
data: {{train: data.safetensors}}
loss: {{CrossEntropyLoss: {{class_dim: -1}}}}
optimizer: {{Adam: {{lr: {rate}}}}}
batch_size: {batch}
microbatches: 1
steps: {steps}
schedule: gpipe
shuffle: false
weights: model.safetensors
"""


def gpt():
    """GPT-2 with 12 layers, narrower than the released ones."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=512,
        n_layer=12,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return transformers.GPT2LMHeadModel(config)


def resnet():
    """ResNet-50."""
    import torchvision

    return torchvision.models.resnet50(num_classes=CLASSES)


def swin():
    """Swin-T without stochastic depth, because the two sides would draw other numbers."""
    import torchvision

    return torchvision.models.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=[7, 7],
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    )


# By name: how it is made, its input, and the batch.
MODELS = {
    "gpt": (gpt, f"input_ids: {{shape: [batch, {LENGTH}], dtype: int64}}", 2),
    "resnet50": (resnet, "x: [batch, 3, 224, 224]", 4),
    "swin_t": (swin, "x: [batch, 3, 224, 224]", 4),
}


def samples(name, count):
    """Random inputs and classes."""
    if name == "gpt":
        return (torch.randint(VOCABULARY, (count, LENGTH)) for _ in range(2))
    return torch.randn(count, 3, 224, 224), torch.randint(CLASSES, (count,))


def write(module, name, folder, data, steps):
    """Writes what BossMan trains."""
    _, given, batch = MODELS[name]
    from_torch.write(module, [given], folder, name)
    argument = given.partition(":")[0]
    from_torch.save(folder / "data.safetensors", {argument: data[0], "target": data[1]})
    text = RUN.format(rate=RATE, batch=batch, steps=steps)
    (folder / "run.yaml").write_text(text, encoding="utf-8")


def train(module, data, batch):
    """Yields the time and the loss of each step."""
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE, fused=True)
    module.train()
    for inputs, target in zip(*(part.split(batch) for part in data)):
        begin = time.perf_counter()
        output = module(inputs)
        output = getattr(output, "logits", output)
        loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - begin, loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--to", type=Path, metavar="FOLDER")
    parser.add_argument("--port", help="not used")
    options = parser.parse_args()
    make, _, batch = MODELS[options.model]
    torch.manual_seed(0)
    module = make()
    data = tuple(samples(options.model, options.steps * batch))
    if options.to:
        write(module, options.model, options.to, data, options.steps)
    times, losses = zip(*train(module, data, batch))
    print(json.dumps({"steps": times, "losses": losses}))


if __name__ == "__main__":
    main()
