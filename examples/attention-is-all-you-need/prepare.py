#!/usr/bin/env python3
"""Makes data/tokenizer.json: 8,000 tokens of both languages by byte-pair encoding, from the
sentences to train on.

Needs the tokenizers package. README.md installs it in a virtual environment, because the Python of
many systems takes no packages from pip.
"""

import sys
from pathlib import Path

TOKENS = 8000
DATA = Path(__file__).resolve().parent / "data"


def main():
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        sys.exit(
            "prepare: needs the tokenizers package: python3 -m venv .venv && "
            ".venv/bin/python -m pip install --no-deps tokenizers; "
            "then start this with .venv/bin/python"
        )
    train = DATA / "train.tsv"
    if not train.is_file():
        sys.exit(f"prepare: there is no {train}; fetch it with fetch_data.py")
    texts = [
        text
        for line in train.read_text(encoding="utf-8").splitlines()
        for text in line.split("\t")[:2]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(DATA / "tokenizer.json"))
    print(
        f"{DATA / 'tokenizer.json'}: {tokenizer.get_vocab_size()} tokens, from {len(texts):,} texts"
    )


if __name__ == "__main__":
    main()
