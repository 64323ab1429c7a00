#!/usr/bin/env python3
"""Takes a real language model, SmolLM2 with 135 million parameters, to BossMan and back, and
compares each stop with Hugging Face's transformers.

    tools/smollm2_oracle.py            fetch once (93 MB, kept in the cache folder), then compare

It runs the commands of the guide: `data fetch`, `import`, `train` and `export`. What is compared:
logits, whole and cut in three; the losses of training, whole and cut in two; the logits and the
tokens of the exported folder, which transformers loads."""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytorch
import setup_libtorch
import tensor_file
from huggingface_back import bossman, tensor, worst

# The most by which an element may differ, as a share of the largest, or a loss, of the loss.
TOLERANCE = 1e-4
# The logit of " Paris" after this text, as another program computed it from the same file.
TEXT = "The capital of France is"
PROMPT, PARIS, LOGIT = [504, 3575, 282, 4649, 314], 7042, 17.371
# The import reads the headers of the weights alone.
IMPORT_SECONDS = 1
STEPS, BATCH, LENGTH, LR = 3, 2, 32, 1e-4


def fetched():
    """The folder of the model, which is fetched once."""
    folder = setup_libtorch.cache_folder(os.environ) / "smollm2"
    if not (folder / "tokenizer_config.json").is_file():
        # A folder of an earlier version has no such file.
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as place:
            bossman(Path(place), "data", "fetch", "smollm2", "--to", folder)
    return folder


def expect(what, error, limit=TOLERANCE):
    """Prints a figure, and ends the program if it is above the limit, or no number."""
    print(f"{what}: {error:.1e}", flush=True)
    if not error <= limit:
        sys.exit(f"smollm2_oracle: {what}: {error:.1e} is more than {limit:.0e}")


def run_file(run, data, steps):
    """Gives the imported run file samples, and a short training."""
    left_out = ("optimizer:", "batch_size:", "microbatches:", "steps:", "epochs:")
    lines = [line for line in run.read_text().splitlines() if not line.startswith(left_out)]
    more = [
        f"data: {{train: {data}}}",
        f"optimizer: {{AdamW: {{lr: {LR}}}}}",
        f"batch_size: {BATCH}\nmicrobatches: {BATCH}\nsteps: {steps}\nshuffle: false",
    ]
    run.write_text("\n".join(lines + more) + "\n")


def predicted(torch, place, run, data, workers):
    """The logits that BossMan computes."""
    to = place / "outputs.safetensors"
    local = ["--local", workers, "--threads", "1"]
    bossman(place, "predict", run, "--data", data, "--to", to, *local)
    (found,) = tensor_file.read(to).values()
    to.unlink()
    return tensor(torch, found)


def trained(place, run, name, workers):
    """The losses of a training in BossMan."""
    metrics = place / f"{name}.jsonl"
    local = ["--local", workers, "--threads", "1"]
    bossman(place, "train", run, "--name", name, "--metrics", metrics, *local)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [step["loss"] for step in steps if "loss" in step][:STEPS]


def train(torch, model, ids):
    """The losses of the same training in transformers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    model.train()
    losses = []
    for step in range(STEPS):
        rows = ids[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(torch, transformers, source, place):
    """Compares every stop of the way."""

    def load(folder):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    run = place / "smol" / "run.yaml"
    began = time.monotonic()
    bossman(place, "import", source, "--to", run.parent)
    expect("seconds of the import", time.monotonic() - began, IMPORT_SECONDS)
    tokens = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 40_000, (STEPS * BATCH, LENGTH), generator=tokens)
    ids[0, : len(PROMPT)] = torch.tensor(PROMPT)
    following = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
    data = place / "data.safetensors"
    flat = {"input_ids": ids, "target": following}
    tensor_file.write(
        data, {name: ("I64", list(of.shape), of.flatten().tolist()) for name, of in flat.items()}
    )
    run_file(run, data, STEPS)

    with torch.no_grad():
        model = load(source)
        expected = model(input_ids=ids).logits
    for workers in ("1", "3"):
        found = predicted(torch, place, run, "train", workers)
        expect(f"logits on {workers} worker(s)", worst(expected, found))
        paris = float(found[0, len(PROMPT) - 1, PARIS])
        expect(f'logit of " Paris" on {workers} worker(s), {paris:.3f}', abs(paris - LOGIT), 5e-3)
        if int(found[0, len(PROMPT) - 1].argmax()) != PARIS:
            sys.exit('smollm2_oracle: " Paris" is not the likeliest token')
    losses = train(torch, model, ids)
    for name, workers in (("whole", "1"), ("cut", "2")):
        found = trained(place, run, name, workers)
        errors = [abs(one - other) / other for one, other in zip(found, losses)]
        expect(f"losses of {len(found)} steps, {name}", max(errors))

    back = place / "back"
    bossman(place, "export", place / "runs" / "cut", "--to", back, "--dtype", "f32")
    found = predicted(torch, place, place / "runs" / "cut", "train", "1")
    with torch.no_grad():
        expect("logits of the exported folder", worst(load(back)(input_ids=ids).logits, found))
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    if tokenizer(TEXT)["input_ids"] != PROMPT or tokenizer.decode(PROMPT) != TEXT:
        sys.exit("smollm2_oracle: the tokenizer of the exported folder is another one")


def main():
    torch = pytorch.load()
    torch.set_num_threads(1)
    transformers = pytorch.load_transformers()
    source = fetched()
    with tempfile.TemporaryDirectory() as place:
        compare(torch, transformers, source, Path(place))


if __name__ == "__main__":
    main()
