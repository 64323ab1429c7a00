#!/usr/bin/env python3
"""The same Transformer in PyTorch, trained as a run file says: what `bossman train` is compared
with. It also translates:

pytorch.py small.yaml --init trained.safetensors --bleu            the test sentences, and how well
pytorch.py small.yaml --init trained.safetensors --translate "Of course, I may be wrong."
"""

import collections
import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import twin


def make(torch, sizes):
    nn = torch.nn
    d = sizes["d"]
    arguments = d, sizes["heads"], sizes["inner"], sizes["dropout"]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(*arguments, batch_first=True)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(*arguments, batch_first=True)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(sizes["tokens"], d)
            self.dropout = nn.Dropout(sizes["dropout"])
            self.encoder = nn.ModuleList(Encoder() for _ in range(sizes["layers"]))
            self.decoder = nn.ModuleList(Decoder() for _ in range(sizes["layers"]))
            # If the last layer shares the embedding's weight, the model file gives the factor of
            # its input.
            if "scale" not in sizes:
                self.head = nn.Linear(d, sizes["tokens"], bias=False)

        def placed(self, tokens):
            positions = torch.arange(tokens.shape[1]).unsqueeze(1)
            angles = positions * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
            places = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
            return self.dropout(self.words(tokens) + places)

        def encode(self, source, padding):
            x = self.placed(source)
            for block in self.encoder:
                x = block.layer(x, src_key_padding_mask=padding)
            return x

        def decode(self, target, memory, padding):
            x = self.placed(target)
            later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
            for block in self.decoder:
                x = block.layer(
                    x, memory, tgt_mask=later, memory_key_padding_mask=padding, tgt_is_causal=True
                )
            return (
                nn.functional.linear(x * sizes["scale"], self.words.weight)
                if "scale" in sizes
                else self.head(x)
            )

        def forward(self, source, target, padding):
            return self.decode(target, self.encode(source, padding), padding).transpose(1, 2)

    return Transformer()


def translate(torch, model, pairs, sources, most):
    """The likeliest next token, again and again, for a batch of rows of tokens."""
    source = pairs.padded([[*tokens, pairs.eos] for tokens in sources], pairs.pad)
    padding = source == pairs.pad
    with torch.no_grad():
        memory = model.encode(source, padding)
        target = torch.full((len(sources), 1), pairs.bos)
        ended = torch.zeros(len(sources), dtype=torch.bool)
        while target.shape[1] <= most and not ended.all():
            token = model.decode(target, memory, padding)[:, -1].argmax(-1)
            ended |= token == pairs.eos
            target = torch.cat([target, token.masked_fill(ended, pairs.eos).unsqueeze(1)], 1)
    return [[token for token in row[1:] if token != pairs.eos] for row in target.tolist()]


def bleu(found, expected):
    """BLEU of a corpus with one reference each (Papineni et al. 2002), words and marks told apart,
    case kept, in per cent."""
    right, all_of, lengths = [0] * 4, [0] * 4, [0, 0]
    for texts in zip(found, expected):
        words = [re.findall(r"\w+|[^\w\s]", text) for text in texts]
        lengths = [length + len(of_one) for length, of_one in zip(lengths, words)]
        for n in range(4):
            grams = [
                collections.Counter(zip(*(of_one[i:] for i in range(n + 1)))) for of_one in words
            ]
            right[n] += sum((grams[0] & grams[1]).values())
            all_of[n] += sum(grams[0].values())
    if not all(right):
        return 0.0
    precision = math.exp(sum(math.log(r / a) for r, a in zip(right, all_of)) / 4)
    return 100 * precision * min(1.0, math.exp(1 - lengths[1] / max(lengths[0], 1)))


def translating(parser):
    parser.add_argument(
        "--bleu",
        action="store_true",
        help="translate the test sentences with the weights of --init, and end",
    )
    parser.add_argument(
        "--translate", metavar="TEXT", help="translate a text with the weights of --init, and end"
    )

    def run_it(options, torch, run, model):
        if not options.bleu and options.translate is None:
            return False
        model.eval()
        source = run.says["data"]["test"]["pairs"]
        tokenizer = twin.load_tokenizer(run.folder / source["tokenizer"])
        pairs, most = run.open(run.says["data"]["test"]), source["max_length"]
        if options.translate is not None:
            rows = translate(torch, model, pairs, [tokenizer.encode(options.translate).ids], most)
            print(tokenizer.decode(rows[0]).strip())
            return True
        # Alike in length, so that little is padding.
        numbers = sorted(range(pairs.samples), key=lambda number: len(pairs.pairs[number][0]))
        found = {}
        for start in range(0, len(numbers), 64):
            batch = numbers[start : start + 64]
            rows = translate(
                torch, model, pairs, [pairs.pairs[number][0] for number in batch], most
            )
            found.update(zip(batch, (tokenizer.decode(row).strip() for row in rows)))
        lines = (run.folder / source["path"]).read_text(encoding="utf-8").splitlines()
        texts = [line.split("\t")[:2] for line in lines if line.strip()]
        for number in range(0, len(texts), max(len(texts) // 10, 1)):
            print(*texts[number], found[number], sep="\n", end="\n\n")
        candidates = [found[number] for number in range(len(texts))]
        print(f"BLEU {bleu(candidates, [german for _, german in texts]):.2f}")
        return True

    return run_it


if __name__ == "__main__":
    twin.main(__doc__, make, ["source", "target", "source_padding"], translating)
