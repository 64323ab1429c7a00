"""The page docs/reference/zoo.md, from the rows of bench/results/zoo.jsonl."""

import textwrap

import setup_libtorch
import zoo_models

PAGE = setup_libtorch.CHECKOUT / "docs" / "reference" / "zoo.md"
LIMIT = 1e-4
# Rounding above which a kind is not compared, as in torch_import/check.py.
CHAOS = 0.1
KINDS = ("output", "loss", "gradient", "buffer")
HEAD = """# Models beside PyTorch

<!-- written by `tools/zoo.py --page` from bench/results/zoo.jsonl; change tools/ instead -->

`tools/from_torch.py` reads a module of PyTorch and writes a model file. `make zoo` does so with
{all} models of torchvision {torchvision}, timm {timm} and transformers {transformers}, all that
are listed here, and compares BossMan's programs with PyTorch {torch}: in float32 on a CPU, on one
worker and cut in two, with random weights and a batch of 4. A model is *right* if the largest
errors of its outputs in evaluation, of the losses of three steps of `SGD` with `MSELoss` against
a random target, of the gradients of the third step, and of all buffers after it are 1e-4 or less,
as a share of the loss or of the tensor's largest element. A tensor whose gradients are all less
than a hundredth of the model's largest is compared as if one were that large. For
training, what is random, such as dropout, is off on both sides.

If losses, gradients or buffers differ by more than 1e-4, PyTorch trains again three times, each
time from parameters that are moved up or down by their last bit at random. The most that this
changes its own losses, gradients, or buffers, is called *rounding*, and is then the limit. It is
large where a unit turns on or off, or where a batch norm divides by next to nothing. Above 0.1 a
comparison would mean nothing, so they are not compared.

Images are small and some of the largest models have fewer layers, to end in time: the table says
how each model was made. A model counts as refused, too, if importing it takes more time or memory
than a test may.

"""


def state(row):
    """What became of a model."""
    if row is None:
        return "not run"
    if not row["imported"]:
        return "refused"
    if not row["checked"]:
        return "not compared"
    return "right" if all(within(row, kind) for kind in KINDS) else "wrong"


def within(row, kind):
    """Whether all of a kind are right."""
    rounding = float(row["rounding"].get(kind, LIMIT))
    if row[kind] is not None:
        return float(row[kind]) <= min(rounding, CHAOS)
    # Some models have no parameters or no buffers.
    return rounding > CHAOS or kind == "buffer" or (kind == "gradient" and not row["parameters"])


def figure(error):
    if error is None:
        return ""
    return f"{float(error):.0e}" if float(error) else "0"


def errors_of(row):
    return ", ".join(f"{kind} {figure(row[kind])}" for kind in KINDS if row[kind] is not None)


def said(row):
    """A row in a line for people."""
    name, found = f"{row['suite']}/{row['model']}", state(row)
    if row.get("error"):
        return f"{name}: {found}: {row['error']} ({row['seconds']} s)"
    errors = errors_of(row)
    return f"{name}: {found}: {row['layers']} layers, {errors} ({row['seconds']} s)"


def page(cases, rows):
    """The text of the page."""
    found = [(case, rows.get(case.key)) for case in cases]
    text = head(len(cases)) + summary(found)
    for wanted, title, why in (
        ("refused", "Refused", "No model file is written."),
        ("not compared", "Not compared", "A model file is written, but the comparison ends early."),
        ("wrong", "Wrong", "An error is above its limit."),
    ):
        text += failures(found, wanted, title, why)
    return text + everything(found)


def head(models):
    return fill(
        HEAD.format(
            all=models,
            torch=setup_libtorch.VERSION,
            torchvision=zoo_models.TORCHVISION,
            timm=zoo_models.TIMM,
            transformers=zoo_models.TRANSFORMERS,
        )
    )


def fill(text):
    """The paragraphs in lines of at most 100 columns."""
    return (
        "\n\n".join(
            part if part.startswith("<!--") else textwrap.fill(part, 100, break_long_words=False)
            for part in text.strip().split("\n\n")
        )
        + "\n\n"
    )


def summary(found):
    lines = [
        "| models | listed | run | imported | right | share of those run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups = [(title, suite) for suite, title in zoo_models.SUITES.items()]
    for title, suite in [*groups, ("**all**", None)]:
        of_one = [row for case, row in found if suite in (None, case.suite)]
        ran = [row for row in of_one if row is not None]
        imported = sum(row["imported"] for row in ran)
        right = sum(state(row) == "right" for row in ran)
        share = f"{100 * right / len(ran):.0f} %" if ran else ""
        lines.append(f"| {title} | {len(of_one)} | {len(ran)} | {imported} | {right} | {share} |")
    return "\n".join(lines) + "\n" + roundings([row for _, row in found if row is not None])


def roundings(rows):
    """Says of how many models rounding is a limit."""
    limited = sum(bool(row["rounding"]) for row in rows)
    chaotic = sum(rounding_of(row) > CHAOS for row in rows)
    said = f"For {limited} of the models that were run the limit is rounding"
    said += f", and of {chaotic} of these it is above 0.1." if chaotic else "."
    return f"\n{said}\n" if limited else ""


def rounding_of(row):
    """The largest rounding."""
    return max(map(float, row["rounding"].values()), default=0.0)


def failures(found, wanted, title, why):
    """A table of the models of one state, those with the same reason together."""
    rows = [row for _, row in found if state(row) == wanted]
    if not rows:
        return ""
    classes = {}
    for row in rows:
        classes.setdefault(row.get("class", "above 1e-4"), []).append(row)
    lines = [f"\n## {title}\n", f"{why}\n", "| reason | models | as of |", "| --- | --- | --- |"]
    for name, of_one in sorted(classes.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        models = ", ".join(f"`{row['model']}`" for row in of_one)
        first = of_one[0]
        if first.get("error"):
            reason = cell(first["error"])
        else:
            reason = errors_of(first)
        lines.append(f"| {cell(name)} | {len(of_one)}: {models} | {reason} |")
    return "\n".join(lines) + "\n"


def everything(found):
    lines = [
        "\n## All models\n",
        "Errors are the worst of one and of two workers. The second worker begins at the *cut*.\n",
        "| model | made with | parameters | layers | of these `Aten` | outputs | losses |"
        " gradients | buffers | rounding | cut | seconds | result |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, row in found:
        if row is None:
            continue
        size = f"{row['parameters'] / 1e6:.2f} M" if row["parameters"] else ""
        cut = f"`{row['cut']}`" if row["cut"] else ""
        counts = ["" if row[name] is None else str(row[name]) for name in ("layers", "aten")]
        errors = [figure(row[kind]) for kind in KINDS]
        errors.append(figure(rounding_of(row) or None))
        result = state(row) + (f": {cell(row['class'])}" if row.get("class") else "")
        cells = [f"`{case.name}`", f"`{cell(shortened(row['made_with']))}`", size, *counts]
        cells += [*errors, cut, str(round(row["seconds"])), result]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def shortened(made_with):
    """Of a model of transformers the sizes are in tools/zoo_models.py."""
    return made_with if len(made_with) <= 100 else made_with[:97] + "..."


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")
