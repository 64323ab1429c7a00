#!/usr/bin/env python3
"""The same GPT in PyTorch, trained as a run file says: what `bossman train` is compared with. It
also writes text:

pytorch.py small.yaml --init trained.safetensors --write 400 --begin "The state of the Union is "
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import twin


def make(torch, sizes):
    nn = torch.nn
    d, length = sizes["d"], sizes["length"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.TransformerEncoderLayer(
                d,
                sizes["heads"],
                4 * d,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )

        def forward(self, x):
            later = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.block(x, src_mask=later, is_causal=True)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(sizes["tokens"], d)
            self.positions = nn.Embedding(length, d)
            self.blocks = nn.Sequential(*(Block() for _ in range(sizes["layers"])))
            self.norm = nn.LayerNorm(d)

        def forward(self, x):
            x = self.words(x) + self.positions.weight[: x.shape[1]]
            x = self.norm(self.blocks(x)) * sizes["scale"]
            return nn.functional.linear(x, self.words.weight).transpose(1, 2)

    return GPT()


def writing(parser):
    parser.add_argument(
        "--write", type=int, metavar="N", help="write N tokens with the weights of --init, and end"
    )
    parser.add_argument("--begin", default="\n", metavar="TEXT", help="what the text begins with")

    def write(options, torch, run, model):
        if not options.write:
            return False
        source = run.says["data"]["train"]["text"]
        tokenizer = source.get("tokenizer", "bytes")
        tokenizer = None if tokenizer == "bytes" else twin.load_tokenizer(run.folder / tokenizer)
        tokens = tokenizer.encode(options.begin).ids if tokenizer else list(options.begin.encode())
        model.eval()
        with torch.no_grad():
            for _ in range(options.write):
                logits = model(torch.tensor([tokens[-source["sequence_length"] :]]))[0, :, -1]
                # From the 40 likeliest, a little colder than they are.
                likely, numbers = (logits / 0.8).topk(40)
                tokens.append(int(numbers[torch.multinomial(likely.softmax(0), 1)]))
        if tokenizer:
            print(tokenizer.decode(tokens))
        else:
            print(bytes(token for token in tokens if token < 256).decode(errors="replace"))
        return True

    return write


if __name__ == "__main__":
    twin.main(__doc__, make, ["x"], writing)
