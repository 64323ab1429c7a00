#!/usr/bin/env python3
"""Takes a real language model, SmolLM2 with 135 million parameters, to BossMan and back, and
compares each stop with Hugging Face's transformers.

    tools/smollm2_oracle.py            fetch once (93 MB, kept in the cache folder), then compare

It runs the commands of the guide: `data fetch`, `import`, `generate`, `train` and `export`. What is
compared: logits, whole and cut in three; text, written with and without a cache; the losses of
training, whole, cut in three, and on replicas; the logits and the tokens of the exported folder,
which transformers loads. BossMan's trained weights must be equal to the bit, whole and cut, and on
one replica and two."""

import hashlib
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
from huggingface_back import bossman, worst

# The most by which an element may differ, as a share of the largest, or a loss, of the loss.
TOLERANCE = 1e-4
# The logit of " Paris" after this text, as another program computed it from the same file.
TEXT = "The capital of France is"
PROMPT, PARIS, LOGIT = [504, 3575, 282, 4649, 314], 7042, 17.371
# The import reads the headers of the weights alone.
IMPORT_SECONDS = 1
STEPS, BATCH, LENGTH, LR = 20, 2, 32, 1e-4
NEW_TOKENS = 16


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


def run_file(run, to, data, more):
    """Writes an imported run file with samples, a short training, and more lines."""
    left_out = ("optimizer:", "batch_size:", "microbatches:", "steps:", "epochs:")
    lines = [line for line in run.read_text().splitlines() if not line.startswith(left_out)]
    lines += [
        f"data: {{train: {data}}}",
        f"optimizer: {{AdamW: {{lr: {LR}}}}}",
        f"batch_size: {BATCH}\nmicrobatches: {BATCH}\nsteps: {STEPS}\nshuffle: false",
        *more,
    ]
    to.write_text("\n".join(lines) + "\n")
    return to


def predicted(torch, place, run, data, workers):
    """The logits that BossMan computes."""
    to = place / "outputs.safetensors"
    local = ["--local", workers, "--threads", "1"]
    bossman(place, "predict", run, "--data", data, "--to", to, *local)
    ((_, shape, content),) = tensor_file.read_bytes(to).values()
    to.unlink()
    # A copy, because PyTorch warns of memory that it must not write to.
    return torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(shape)


def trained(place, run, name, workers):
    """The losses of a training in BossMan, and a hash of the weights after it."""
    metrics = place / f"{name}.jsonl"
    local = ["--local", workers, "--threads", "1"]
    bossman(place, "train", run, "--name", name, "--metrics", metrics, *local)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    weights = place / "runs" / name / "weights.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return [step["loss"] for step in steps if "loss" in step], digest


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


def write_text(torch, model, tokenizer, place, run):
    """Compares the likeliest text, token by token and in one pass."""
    prompt = torch.tensor([PROMPT])
    settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": None}
    whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    expected = tokenizer.decode(whole[0])
    greedy = ["--prompt", TEXT, "--max-new-tokens", NEW_TOKENS, "--temperature", 0]
    found = bossman(place, "generate", run, *greedy, "--local", "2", "--threads", "1")
    print(f"text with a cache: {expected!r}")
    if expected not in found:
        sys.exit(f"smollm2_oracle: bossman wrote {found!r}")
    data = place / "text.safetensors"
    write_ids(data, {"input_ids": whole[:, :-1]})
    likeliest = predicted(torch, place, run, data, "2")[0, len(PROMPT) - 1 :].argmax(-1)
    if likeliest.tolist() != whole[0, len(PROMPT) :].tolist():
        sys.exit(f"smollm2_oracle: without a cache bossman takes {likeliest.tolist()}")


def write_ids(path, named):
    """Writes a safetensors file of whole numbers."""
    tensor_file.write(
        path, {name: ("I64", list(of.shape), of.flatten().tolist()) for name, of in named.items()}
    )


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
    write_ids(data, {"input_ids": ids, "target": following})
    replicated = run_file(run, run.with_name("replicated.yaml"), data, ["replicas: 2"])
    one_replica = run_file(run, run.with_name("one.yaml"), data, ["replicas: 1"])
    run_file(run, run, data, [])

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
    write_text(torch, model, transformers.AutoTokenizer.from_pretrained(source), place, run)
    losses = train(torch, model, ids)
    # Gradients of replicas are summed in another order, even if there is one.
    for ways in (
        (("whole", run, "1"), ("cut", run, "3")),
        (("one replica", one_replica, "1"), ("two replicas", replicated, "2")),
    ):
        digests = set()
        for name, file, workers in ways:
            found, digest = trained(place, file, name.replace(" ", "-"), workers)
            digests.add(digest)
            if len(found) != STEPS:
                sys.exit(f"smollm2_oracle: {name}: {len(found)} losses")
            errors = [abs(one - other) / other for one, other in zip(found, losses)]
            expect(f"losses of {len(found)} steps, {name}", max(errors))
        if len(digests) > 1:
            sys.exit(f"smollm2_oracle: {ways[0][0]} and {ways[1][0]}: the weights differ")
        print(f"{ways[0][0]} and {ways[1][0]}: equal weights")

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
