"""The page docs/reference/families.md and bossman/src/import/proven.json: the worst errors of
imported models beside transformers, of what `cargo test -p tests huggingface::proof::` prints."""

import json
import re

import setup_libtorch

PAGE = setup_libtorch.CHECKOUT / "docs" / "reference" / "families.md"
PROVEN = setup_libtorch.CHECKOUT / "bossman" / "src" / "import" / "proven.json"
MODELS = setup_libtorch.CHECKOUT / "tests" / "huggingface"
LINE = re.compile(r"^(\S+) +(?:\d+ workers|with padding): (\w.*)$", re.MULTILINE)
FIGURE = re.compile(r"([a-z ]+) (\d[\d.]*e-?\d+)")
KINDS = ("outputs", "losses", "weights", "biases of keys")
HEAD = """# Families beside transformers

<!-- written by `tools/huggingface_oracle.py --page`; change that instead -->

Small models with random weights and odd sizes were made, run and trained by Hugging Face's
transformers {version}, imported by `bossman import`, and run and trained by BossMan, in float32 on
a CPU: whole, cut in three, and with padding if the model takes a mask. One model of each family was
also trained on one replica and on two. One worker and three have the same bits, and so have one
replica and two. The columns show the worst error of the outputs, of the losses and the weights of
20 steps of `AdamW`, as a share of the tensor's largest element or of the loss. Softmax takes out
most of what a bias of keys adds, so its gradient is mostly rounding; it has a column of its own.
The highest error allowed is 1e-5, and 1e-4 for these biases. Texts, chosen greedily with and
without a cache, are equal token by token.

`make oracle` compares with a transformers that runs beside it, `cargo test -p tests --test it
huggingface::` with what it recorded. `MODEL.md` beside an imported model has the line of its
architecture.

| architecture | models | outputs | losses | weights | biases of keys |
| --- | --- | --- | --- | --- | --- |
"""


def architecture(case):
    """The class of a recorded model."""
    text = (MODELS / case / "model" / "config.json").read_text(encoding="utf-8")
    return json.loads(text)["architectures"][0]


def worst(printed, architecture_of=architecture):
    """For each architecture the number of its models, and the worst error of each kind."""
    models, errors = {}, {}
    for case, said in LINE.findall(printed):
        name = architecture_of(case)
        models.setdefault(name, set()).add(case)
        of_one = errors.setdefault(name, {})
        for kind, error in FIGURE.findall(said):
            of_one[kind.strip()] = max(of_one.get(kind.strip(), 0.0), float(error))
    missing = [name for name, of_one in errors.items() if set(of_one) != set(KINDS)]
    if missing or not errors:
        raise ValueError(f"the tests printed not all figures of {', '.join(missing) or 'anything'}")
    return {name: {"models": len(models[name]), **errors[name]} for name in sorted(errors)}


def page(figures, version):
    """The text of the page, of a version of transformers."""
    rows = [
        f"| `{name}` | {of_one['models']} | "
        + " | ".join(f"{of_one[kind]:.0e}" if of_one[kind] else "0" for kind in KINDS)
        + " |"
        for name, of_one in figures.items()
    ]
    return HEAD.format(version=version) + "\n".join(rows) + "\n"


def write(printed, version):
    """Writes the page and the figures that `bossman import` shows."""
    figures = worst(printed)
    PAGE.write_text(page(figures, version), encoding="utf-8")
    proven = {"transformers": version, "architectures": figures}
    PROVEN.write_text(json.dumps(proven, indent=1) + "\n", encoding="utf-8")
