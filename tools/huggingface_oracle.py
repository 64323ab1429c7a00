#!/usr/bin/env python3
"""Compares models that `bossman import` made with Hugging Face's transformers: logits, the losses
and weights of 20 steps of training, and text. Then also the way back, by tools/huggingface_back.py.

    tools/huggingface_oracle.py             compute in transformers here and now, then compare
    tools/huggingface_oracle.py --record    write what transformers computes to tests/huggingface
    tools/huggingface_oracle.py --page      compare with what is recorded, and write
                                            docs/reference/families.md; needs no transformers

`cargo test -p tests` compares with what is recorded; it needs neither transformers nor PyTorch.
"""

import argparse
import copy
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import huggingface_back
import huggingface_page
import pytorch
import setup_libtorch
import tensor_file
from huggingface_cases import CASES, SMALL, SMALL_BERT, SMALL_VIT

RECORDED = setup_libtorch.CHECKOUT / "tests" / "huggingface"
ROWS, BATCH, BATCHES, STEPS, LR = 3, 8, 4, 20, 1e-3
PROMPT, NEW_TOKENS = 3, 12
# The prompts to try. The likeliest token must lead by more than rounding can change, and a text
# that repeats one token would hide mistakes.
PROMPTS, LEAST_LEAD, DIFFERENT = 100, 1e-3, 4
# The sets of samples to try, and the most by which rounding may change a weight in training, as a
# share of its tensor's largest.
DRAWS, MOST_ROUNDING = 100, 3e-6


def make_folder(torch, transformers, case, folder):
    """Writes a model with random weights as transformers does, and a tokenizer."""
    torch.manual_seed(zlib.crc32(case.name.encode()))
    arguments = {**(case.base or SMALL), **case.config}
    kind = case.kind if case.head else "Model"
    if case.labels:
        arguments["num_labels"] = case.labels
        kind = "ForImageClassification" if case.takes_pictures else "ForSequenceClassification"
    config_class = case.config_class or f"{case.family}Config"
    config = getattr(transformers, config_class)(**arguments)
    model = getattr(transformers, case.family + kind)(config)
    for name, parameter in model.named_parameters():
        # Large enough that attention looks at some tokens more than at others, and that the layers
        # do more than the embedding: with a tied one a text would repeat its last token.
        is_norm = "norm" in name.lower() or ".ln_" in name
        small = is_norm or any(part in name for part in ["bias", "embed", "wte", "wpe"])
        # Norms of Gemma begin with zeros, to which they add 1 themselves.
        begins_with_ones = is_norm and bool((parameter.data == 1).all())
        parameter.data.normal_(std=0.1 if small else 0.3)
        if begins_with_ones:
            parameter.data += 1
    model.to(getattr(torch, case.dtype)).save_pretrained(folder, max_shard_size=case.shard)
    # How transformers draws text, which is no part of the model.
    (folder / "generation_config.json").unlink(missing_ok=True)
    # What turns texts or pictures into inputs.
    name, content = "tokenizer.json", tokenizer()
    if case.takes_pictures:
        name, content = "preprocessor_config.json", preprocessor()
    (folder / name).write_text(json.dumps(content, separators=(",", ":")) + "\n")


def preprocessor():
    """Pictures of the right size, whose numbers become those between -1 and 1."""
    half = [0.5] * 3
    return {"do_resize": False, "rescale_factor": 1 / 255, "image_mean": half, "image_std": half}


def tokenizer():
    """One word for each token: `w7` is token 7. The last one ends a text."""
    end = SMALL["vocab_size"] - 1
    words = {f"w{number}": number for number in range(end)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": end, "content": "<end>", **special, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {**words, "<end>": end}, "unk_token": "w0"},
    }


def load(torch, transformers, case, folder):
    """The model of a folder, as anyone would load it."""
    kind = transformers.AutoModelForCausalLM if case.head else transformers.AutoModel
    if case.labels:
        kind = transformers.AutoModelForSequenceClassification
    if case.takes_pictures:
        kind = transformers.AutoModelForImageClassification
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def in_files(name, case):
    """The name of a parameter in files. transformers gives some another name when it saves them."""
    renamed = {"lm_head.weight": "embed_out.weight"} if case.family == "GPTNeoX" else {}
    return renamed.get(name, name)


def record(torch, transformers, case, folder):
    """Makes a model and computes with it, as tests/huggingface/README.md says."""
    folder.mkdir(parents=True)
    make_folder(torch, transformers, case, folder / "model")
    model = load(torch, transformers, case, folder / "model")
    ids = draw(torch, case, [ROWS, case.length])
    with torch.no_grad():
        outputs = model(**{input_name(case): ids}, **whole(case))[0]
    tensors = {input_name(case): ids, "outputs": outputs}
    if case.base is not None and not case.takes_pictures:
        tensors.update(masked(torch, model, case, ids))
    expected = {"transformers": transformers.__version__, "lr": LR, "batch_size": BATCH}
    if writes_text(case):
        expected.update(write_text(torch, model))
    losses, trained = train(torch, load(torch, transformers, case, folder / "model"), case)
    expected["losses"] = losses
    tensors.update(trained)
    tensor_file.write(folder / "expected.safetensors", tensor_file.plain(tensors))
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def masked(torch, model, case, ids):
    """Texts that end in padding, and what comes out if a mask tells of it. With types of tokens, if
    the model has them."""
    padding = torch.arange(case.length) >= case.length - torch.arange(ROWS)[:, None] * 2
    pad = model.config.pad_token_id
    ids = ids.masked_fill(padding, 0 if pad is None else pad)
    inputs = {"input_ids": ids}
    if case.base is SMALL_BERT:
        inputs["token_type_ids"] = torch.randint(model.config.type_vocab_size, ids.shape)
    with torch.no_grad():
        outputs = model(**inputs, attention_mask=(~padding).long(), **whole(case))[0]
    named = {**inputs, "key_padding_mask": padding, "outputs": outputs}
    return {f"masked.{name}": tensor for name, tensor in named.items()}


def input_name(case):
    return "pixel_values" if case.takes_pictures else "input_ids"


def writes_text(case):
    return case.head and not case.labels


def whole(case):
    """The arguments for computing without a cache, which encoders do not have."""
    return {} if case.base in (SMALL_BERT, SMALL_VIT) else {"use_cache": False}


def draw(torch, case, shape):
    """Tokens, but for the one that ends a text; or numbers of pictures, of which the shape has the
    first size."""
    if case.takes_pictures:
        size = case.base["image_size"]
        return torch.randn([shape[0], case.base["num_channels"], size, size])
    return torch.randint(case.first_token, SMALL["vocab_size"] - 1, shape)


def compared(torch, name, tensor):
    """A trained parameter without the biases of keys, if positions are not turned into keys: these
    biases change nothing, so their gradients are rounding alone."""
    if name.endswith(("attention.self.key.bias", "attention.attention.key.bias")):
        return None
    if name.endswith("query_key_value.bias"):
        # A part of each head is not turned.
        heads = tensor.unflatten(0, (SMALL["num_attention_heads"], 3, -1))
        return heads[:, [0, 2]]
    if name.endswith("c_attn.bias"):
        queries, _, values = tensor.chunk(3)
        return torch.cat([queries, values])
    return tensor


def write_text(torch, model):
    """A prompt and the likeliest tokens after it."""
    settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": None}
    for _ in range(PROMPTS):
        prompt = torch.randint(SMALL["vocab_size"] - 1, [1, PROMPT])
        whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        with torch.no_grad():
            logits = model(input_ids=whole, use_cache=False)[0][0, PROMPT - 1 : -1]
        first, second = logits.topk(2).values.unbind(-1)
        tokens = whole[0, PROMPT:].tolist()
        if (first - second).min() >= LEAST_LEAD and len(set(tokens)) >= DIFFERENT:
            return {"prompt": prompt[0].tolist(), "generated": tokens}
    sys.exit("huggingface_oracle: no text is sure and has several tokens; change the weights")


def train(torch, model, case):
    """Losses of steps of AdamW, and what goes in and comes out.

    A gradient that is nearly zero is mostly rounding, and Adam's first steps are as large for it as
    for others. Samples for which that shows are replaced by others: the same steps must end with
    the same weights if the batch goes in parts."""
    for _ in range(DRAWS):
        ids = draw(torch, case, [BATCHES * BATCH, case.train_length])
        targets = None
        if case.labels:
            targets = torch.randint(case.labels, [len(ids)])
        elif not case.head:
            targets = torch.randn([*ids.shape, SMALL["hidden_size"]])
        losses, trained = take_steps(torch, model, case, ids, targets, 1)
        _, in_parts = take_steps(torch, model, case, ids, targets, BATCH // 2)
        errors = []
        for name, tensor in trained.items():
            one, other = (compared(torch, name, of[name]) for of in [trained, in_parts])
            if one is not None:
                errors.append(float((one - other).abs().max() / one.abs().max()))
        if max(errors) <= MOST_ROUNDING:
            tensors = {f"train.{input_name(case)}": ids}
            if targets is not None:
                tensors["train.targets"] = targets
            for name, tensor in trained.items():
                tensors[f"trained.{in_files(name, case)}"] = tensor
            return losses, tensors
    sys.exit(f"huggingface_oracle: {case.name}: all samples show rounding; change the weights")


def take_steps(torch, model, case, ids, targets, parts):
    """Losses, and the parameters after the steps. A tied parameter stands once."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    losses = []
    for step in range(STEPS):
        begin = step * BATCH % len(ids)
        total = torch.zeros(())
        for part in torch.arange(begin, begin + BATCH).chunk(parts):
            x = ids[part]
            if targets is None:
                # It predicts each next token, and nothing at the last position.
                loss = model(input_ids=x, labels=x, **whole(case)).loss
            elif case.labels:
                inputs = {input_name(case): x}
                loss = model(**inputs, labels=targets[part], **whole(case)).loss
            else:
                states = model(input_ids=x, **whole(case))[0]
                loss = torch.nn.functional.mse_loss(states, targets[part])
            (loss / parts).backward()
            total += loss.detach() / parts
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(f"{total.item():.9g}"))
    if case.takes_pictures:
        # The names of the files are not those of the modules.
        return losses, saved(torch, model)
    return losses, {name: value.detach() for name, value in model.named_parameters()}


def saved(torch, model):
    """The tensors of a model, as its files have them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = tensor_file.read(Path(folder) / "model.safetensors")
    return {
        name: torch.tensor(numbers).reshape(shape) for name, (_, shape, numbers) in tensors.items()
    }


def record_all(torch, transformers, folder):
    for case in CASES:
        shutil.rmtree(folder / case.name, ignore_errors=True)
        record(torch, transformers, case, folder / case.name)


def compare(environment, **more):
    """Runs BossMan's half, which prints a line for each figure."""
    command = ["cargo", "test", "--package", "tests", "--test", "it", "huggingface::proof::"]
    command += ["--", "--nocapture"]
    folder = setup_libtorch.CHECKOUT
    return subprocess.run(command, cwd=folder, env=environment, check=False, **more)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        done = compare(os.environ, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            huggingface_page.write(done.stdout, pytorch.TRANSFORMERS)
        sys.exit(done.returncode)
    if (pytorch.version(), pytorch.version("transformers")) != (
        setup_libtorch.VERSION,
        pytorch.TRANSFORMERS,
    ):
        sys.exit(
            f"huggingface_oracle: {sys.executable} has no torch {setup_libtorch.VERSION} with "
            f"transformers {pytorch.TRANSFORMERS}; `make oracle` fetches them"
        )
    torch = pytorch.load()
    torch.set_num_threads(1)
    transformers = pytorch.load_transformers()
    if options.record:
        record_all(torch, transformers, RECORDED)
        return
    with tempfile.TemporaryDirectory() as fresh:
        record_all(torch, transformers, Path(fresh))
        for case in CASES:
            of_case = functools.partial(load, torch, transformers, case)
            folder = Path(fresh) / case.name
            huggingface_back.check(torch, case, folder, input_name(case), of_case)
        sys.exit(compare({**os.environ, "BOSSMAN_HUGGINGFACE": fresh}).returncode)


if __name__ == "__main__":
    main()
