#!/usr/bin/env python3
"""The same encoder and head in PyTorch, trained as run.yaml says: what `bossman train run.yaml` is
compared with.

pytorch.py --similarities      how alike three sentences are, and data/similarities.safetensors, to
see it with bossman"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import from_torch
import twin

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
PAIRS = [(0, 1), (0, 2), (1, 2)]


def make(torch, sizes, classes=2):
    nn = torch.nn
    d = sizes["d"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(
                d, 12, 4 * d, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
            )

    class MiniLM(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(30522, d)
            self.positions = nn.Embedding(512, d)
            self.types = nn.Embedding(2, d)
            self.norm = nn.LayerNorm(d, eps=1e-12)
            self.blocks = nn.ModuleList(Block() for _ in range(sizes["layers"]))
            if classes:
                self.head = nn.Linear(d, classes)

        def encode(self, tokens, token_type, padding):
            """The mean over the tokens, one long."""
            x = self.norm(
                self.words(tokens)
                + self.positions.weight[: tokens.shape[1]]
                + self.types(token_type)
            )
            for block in self.blocks:
                x = block.layer(x, src_key_padding_mask=padding)
            here = (~padding).unsqueeze(-1)
            return nn.functional.normalize((x * here).sum(1) / here.sum(1), dim=-1)

        def forward(self, *inputs):
            x = self.encode(*inputs)
            return self.head(x * d**0.5) if classes else x

    return MiniLM()


def similarities(parser):
    parser.add_argument(
        "--similarities", action="store_true", help="print how alike three sentences are, and end"
    )

    def run_it(options, torch, run, _):
        if not options.similarities:
            return False
        import prepare

        folder, said = run.folder / "data", run.says["weights"]["rename"]
        encoder = make(torch, twin.sizes(run.folder / "minilm.yaml"), classes=None)
        tensors = twin.load(torch, folder / "model.safetensors")
        twin.put(encoder, twin.renamed(torch, tensors, encoder.state_dict(), said))
        encoder.eval()
        columns = prepare.samples(twin.load_tokenizer(folder / "tokenizer.json"), SENTENCES)
        columns = {
            name: torch.tensor(numbers).view(shape) for name, (_, shape, numbers) in columns.items()
        }
        columns["padding"] = columns["padding"].bool()
        with torch.no_grad():
            found = encoder(*columns.values())
        for one, other in PAIRS:
            print(f"{float(found[one] @ found[other]):.4f}  {SENTENCES[one]}  {SENTENCES[other]}")
        firsts, seconds = zip(*PAIRS)
        columns = {name: column[list(firsts)] for name, column in columns.items()}
        from_torch.save(
            folder / "similarities.safetensors", {**columns, "target": found[list(seconds)]}
        )
        return True

    return run_it


if __name__ == "__main__":
    twin.main(__doc__, make, ["tokens", "token_type", "padding"], similarities)
