"""Code that the PyTorch twins of the examples share: they do what a run file says as `bossman
train` does, in one process.

A twin has the model as a torch.nn.Module whose parameters have the model file's names, and calls
`main`. Samples come in the same order, batches are cut into the same microbatches, so the losses of
both can be laid side by side (`curve.py`). Of run files it knows what the examples say: one
optimizer step a batch, sources `idx`, `text`, `pairs` and `safetensors`."""

import argparse
import json
import math
import re
import struct
import sys
import time
from pathlib import Path

import from_torch
import pytorch
import tensor_file

MASK64, MASK32 = (1 << 64) - 1, (1 << 32) - 1


# Run and model files: YAML as the examples write it, a flow ({..}, [..]) on one line.

TOKEN = re.compile(
    r"""\s*("[^"]*"|'[^']*'|[{}\[\],]|:(?=\s|$)|[^{}\[\],\s"'](?:(?!:\s|:$)[^{}\[\],])*)"""
)


def parse(text):
    """The mapping that a YAML text is."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if line:
            lines.append((len(line) - len(line.lstrip()), line.strip()))
    return block(lines)


def block(lines):
    found = {}
    while lines:
        depth, line = lines.pop(0)
        key, separator, rest = line.partition(":")
        if not separator or rest[:1] not in ("", " ") or line.startswith("- "):
            raise ValueError(f"twin: `{line}` is more YAML than this reads")
        below = []
        while lines and lines[0][0] > depth:
            below.append(lines.pop(0))
        found[key] = flow(TOKEN.findall(rest)) if rest.strip() else block(below)
    return found


def flow(tokens):
    first = tokens.pop(0)
    if first == "[":
        items = []
        while tokens[0] != "]":
            items.append(flow(tokens))
            if tokens[0] == ",":
                tokens.pop(0)
        tokens.pop(0)
        return items
    if first == "{":
        entries = {}
        while tokens[0] != "}":
            key = tokens.pop(0)
            tokens.pop(0)
            entries[key] = flow(tokens)
            if tokens[0] == ",":
                tokens.pop(0)
        tokens.pop(0)
        return entries
    return scalar(first.strip())


def scalar(text):
    if text[0] in "\"'":
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "null": None}.get(text, text)


def sizes(path):
    """The numbers under `vars:` of a model file."""
    text = Path(path).read_text(encoding="utf-8")
    found = re.search(r"^vars:.*\n(?:[ \t]+.*\n)*", text, re.MULTILINE)
    return parse(found.group())["vars"] if found else {}


# The order of samples: `bossman::data::Order` and the lots of a validation split.


class ChaCha8:
    """The random numbers of Rust's `ChaCha8Rng::seed_from_u64(seed)` with `set_stream(stream)`."""

    def __init__(self, seed, stream):
        state, key = seed, []
        for _ in range(8):
            state = (state * 6364136223846793005 + 11634580027462260723) & MASK64
            shifted, turn = (((state >> 18) ^ state) >> 27) & MASK32, state >> 59
            key.append((shifted >> turn | shifted << (-turn & 31)) & MASK32)
        self.head = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key]
        self.tail = [stream & MASK32, stream >> 32]
        self.counter, self.words = 0, []

    def next_u32(self):
        if not self.words:
            self.words = self.block()[::-1]
        return self.words.pop()

    def block(self):
        start = [*self.head, self.counter & MASK32, self.counter >> 32, *self.tail]
        self.counter += 1
        x = list(start)
        for _ in range(4):
            for a, b, c, d in QUARTERS:
                x[a] = (x[a] + x[b]) & MASK32
                t = x[d] ^ x[a]
                x[d] = (t << 16 | t >> 16) & MASK32
                x[c] = (x[c] + x[d]) & MASK32
                t = x[b] ^ x[c]
                x[b] = (t << 12 | t >> 20) & MASK32
                x[a] = (x[a] + x[b]) & MASK32
                t = x[d] ^ x[a]
                x[d] = (t << 8 | t >> 24) & MASK32
                x[c] = (x[c] + x[d]) & MASK32
                t = x[b] ^ x[c]
                x[b] = (t << 7 | t >> 25) & MASK32
        return [(a + b) & MASK32 for a, b in zip(x, start)]

    def below(self, bound):
        """As `random_range(..bound)` of rand 0.9: Canon's method."""
        product = self.next_u32() * bound
        result, low = product >> 32, product & MASK32
        if low > (-bound & MASK32):
            result += low + (self.next_u32() * bound >> 32) > MASK32
        return result


COLUMNS = [(i, i + 4, i + 8, i + 12) for i in range(4)]
QUARTERS = COLUMNS + [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def order(samples, seed, epoch):
    """The samples of an epoch in the order in which they are taken: `shuffle` of rand 0.9, which
    draws several at once."""
    if samples > 1 << 20:
        raise ValueError(
            "twin: BossMan orders more than 2^20 samples another way, which is not here; use "
            "--no-shuffle"
        )
    numbers, random = list(range(samples)), ChaCha8(seed, epoch)
    chunk, left = 0, 1
    for place in range(samples):
        if left == 0:
            bound, upper = place + 1, place + 2
            while bound * upper <= MASK32:
                bound, upper = bound * upper, upper + 1
            chunk, left = random.below(bound), upper - place - 1
        left -= 1
        if left == 0:
            other = chunk
        else:
            chunk, other = divmod(chunk, place + 1)
        numbers[place], numbers[other] = numbers[other], numbers[place]
    return numbers


def mixed(number):
    """The finaliser of SplitMix64."""
    number = (number + 0x9E3779B97F4A7C15) & MASK64
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK64
    return number ^ number >> 31


def split(samples, seed, share):
    """The numbers of the samples to train on, and of those for validation."""
    seed, limit = mixed(seed), min(int(share * 2.0**64), MASK64)
    parts = [], []
    for number in range(samples):
        parts[mixed(seed ^ number) < limit].append(number)
    return parts


# Samples. Each kind gives `samples`, and `batch(numbers)`: the model's inputs in their order, and
# the target.


class Idx:
    def __init__(self, torch, folder, source, normalize):
        self.torch, self.normalize = torch, normalize
        self.images, self.labels = (self.read(folder / source[key]) for key in ("images", "labels"))
        self.samples = len(self.labels)

    def read(self, path):
        content = path.read_bytes()
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        body = bytearray(content[4 + 4 * len(shape) :])
        return self.torch.frombuffer(body, dtype=self.torch.uint8).view(shape)

    def batch(self, numbers):
        numbers, by = self.torch.tensor(numbers), self.normalize
        images = self.images[numbers].unsqueeze(1).float() / by.get("divide", 1)
        return [(images - by.get("mean", 0)) / by.get("std", 1)], self.labels[numbers].long()


class Text:
    def __init__(self, torch, folder, source):
        self.torch, self.length = torch, source["sequence_length"]
        paths = source["path"] if isinstance(source["path"], list) else [source["path"]]
        if source.get("tokenizer", "bytes") == "bytes":
            content = b"".join((folder / path).read_bytes() for path in paths)
            self.tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        else:
            tokenizer, tokens = load_tokenizer(folder / source["tokenizer"]), []
            for path in paths:
                for piece in pieces((folder / path).read_bytes()):
                    tokens += tokenizer.encode(piece, add_special_tokens=False).ids
            self.tokens = torch.tensor(tokens, dtype=torch.int32)
        self.samples = (len(self.tokens) - 1) // self.length

    def batch(self, numbers):
        starts = [number * self.length for number in numbers]
        windows = self.torch.stack(
            [self.tokens[start : start + self.length + 1] for start in starts]
        ).long()
        return [windows[:, :-1].contiguous()], windows[:, 1:].contiguous()


PIECE = 1 << 20
# Batches whose samples are sorted together.
POOL = 50


def pieces(content):
    """Whole lines, about 1 MiB each, as BossMan gives them to a tokenizer."""
    piece, size = [], 0
    for line in content.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= PIECE:
            yield b"".join(piece).decode()
            piece, size = [], 0
    if piece:
        yield b"".join(piece).decode()


class Pairs:
    def __init__(self, torch, folder, source, names):
        self.torch, self.names = torch, names
        tokenizer = load_tokenizer(folder / source["tokenizer"])
        marks = [
            tokenizer.token_to_id(source.get(key, f"<{key}>")) for key in ("bos", "eos", "pad")
        ]
        self.bos, self.eos, self.pad = marks
        most = source.get("max_length", 1 << 30) - 1
        lines = (folder / source["path"]).read_text(encoding="utf-8").split("\n")
        columns = [line.split("\t")[:2] for line in lines if line.strip()]
        texts = [text for pair in columns for text in pair]
        found = [
            encoding.ids[:most]
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        self.pairs = list(zip(found[::2], found[1::2]))
        self.samples = len(self.pairs)

    def batch(self, numbers):
        sources, targets = zip(*(self.pairs[number] for number in numbers))
        columns = {
            "source": self.padded([[*tokens, self.eos] for tokens in sources], self.pad),
            "target": self.padded([[self.bos, *tokens] for tokens in targets], self.pad),
            "source_padding": self.padded(
                [[0] * (len(tokens) + 1) for tokens in sources], 1
            ).bool(),
            "target_padding": self.padded(
                [[0] * (len(tokens) + 1) for tokens in targets], 1
            ).bool(),
        }
        labels = self.padded([[*tokens, self.eos] for tokens in targets], -100)
        return [columns[name] for name in self.names], labels

    def padded(self, rows, fill):
        width = max(map(len, rows))
        return self.torch.tensor([row + [fill] * (width - len(row)) for row in rows])


class SafeTensors:
    def __init__(self, torch, folder, source, names):
        self.torch = torch
        arguments = {"path": source} if isinstance(source, str) else source
        tensors = load(torch, folder / arguments["path"])
        columns = arguments.get("inputs", {})
        self.inputs = [tensors[columns.get(name, name)] for name in names]
        self.target = tensors[arguments.get("target", "target")]
        self.samples = len(self.target)

    def batch(self, numbers):
        numbers = self.torch.tensor(numbers)
        return [whole(part[numbers]) for part in self.inputs], whole(self.target[numbers])


def whole(tensor):
    """Integers as BossMan's models take them."""
    return (
        tensor if tensor.is_floating_point() or str(tensor.dtype) == "torch.bool" else tensor.long()
    )


def load_tokenizer(path):
    try:
        import tokenizers
    except ImportError:
        sys.exit(
            f"twin: needs the tokenizers package: {sys.executable} -m pip install --no-deps "
            "tokenizers"
        )
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def open_source(torch, folder, source, names, normalize):
    if isinstance(source, str) and source.endswith(".safetensors"):
        return SafeTensors(torch, folder, source, names)
    ((kind, arguments),) = source.items()
    if kind == "idx":
        return Idx(torch, folder, arguments, normalize)
    if kind == "text":
        return Text(torch, folder, arguments)
    return {"pairs": Pairs, "safetensors": SafeTensors}[kind](torch, folder, arguments, names)


# Weights.

KINDS = {code: name for name, code in from_torch.DTYPES.items()}


def load(torch, path):
    """The tensors of a safetensors file, or of those that an index (`.safetensors.index.json`)
    names."""
    path = Path(path)
    if path.name.endswith(".index.json"):
        files = json.loads(path.read_text())["weight_map"]
        opened = {name: load(torch, path.parent / name) for name in set(files.values())}
        return {name: opened[file][name] for name, file in files.items()}
    found = {}
    for name, (code, shape, content) in tensor_file.read_bytes(path).items():
        dtype = getattr(torch, KINDS[code])
        flat = (
            torch.frombuffer(bytearray(content), dtype=dtype)
            if content
            else torch.empty(0, dtype=dtype)
        )
        found[name] = flat.view(shape)
    return found


def renamed(torch, tensors, names, table):
    """The file's tensors under the model's names, by the table of a run file's `weights`."""
    found = {}
    for name in names:
        sources = [name]
        for pattern, given in table.items():
            regex = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
            fits = re.fullmatch(regex, name)
            if fits:
                given = given if isinstance(given, list) else [given]
                sources = [
                    re.sub(r"\{(\w+)\}", lambda word: fits[word[1]], source) for source in given
                ]
                break
        parts = [tensors[source] for source in sources]
        found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found


def put(model, tensors):
    """Loads weights; each must be there."""
    missing, unknown = model.load_state_dict(tensors, strict=False)
    if missing or unknown:
        sys.exit(f"twin: weights that are missing: {missing}; that the model has not: {unknown}")


# Training.


def factor(schedule, step):
    """The factor of the learning rate in an optimizer step; the first step is 0."""
    if schedule == "constant":
        return 1.0
    ((kind, arguments),) = schedule.items()
    warmup, start = arguments.get("warmup", 0), arguments.get("start_factor", 0.0)
    if step < warmup:
        return start + (1.0 - start) * step / warmup
    t = step - warmup
    if kind == "inverse_sqrt":
        timescale = arguments.get("timescale", warmup or 10_000)
        return 1.0 / math.sqrt((t + timescale) / timescale)
    if kind == "step":
        return arguments.get("gamma", 0.1) ** (t // arguments["step_size"])
    if kind == "constant":
        return 1.0
    share = min(t / max(arguments["total_steps"] - warmup, 1), 1.0)
    return 1.0 - share if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))


def choice(value):
    """A name with its arguments, or alone."""
    if isinstance(value, str):
        return value, {}
    ((name, arguments),) = value.items()
    return name, arguments


class Run:
    """A run file, and the data it names."""

    def __init__(self, torch, path, names):
        self.torch, self.folder, self.says = (
            torch,
            Path(path).parent,
            parse(Path(path).read_text(encoding="utf-8")),
        )
        if self.says.get("accumulate", 1) != 1:
            sys.exit("twin: `accumulate` is not here")
        self.model = self.folder / self.says["model"]
        self.seed, self.batch_size = self.says.get("seed", 0), self.says["batch_size"]
        name, arguments = choice(self.says["loss"])
        class_dim = arguments.pop("class_dim", 1)
        self.criterion = getattr(torch.nn, name)(**arguments)
        self.class_dim = class_dim
        self.by_class = name == "CrossEntropyLoss"
        data = self.says["data"]
        self.names, self.normalize = names, data.get("normalize", {})
        self.train = self.open(data["train"])
        self.numbers, self.validation = range(self.train.samples), None
        if "split" in data.get("validation", {}):
            self.numbers, drawn = split(self.train.samples, self.seed, data["validation"]["split"])
            self.validation = self.train, drawn
        elif "validation" in data:
            source = self.open(data["validation"])
            self.validation = source, range(source.samples)
        steps = -(-len(self.numbers) // self.batch_size) * self.says.get("epochs", 0)
        self.steps = self.says.get("steps", steps)

    def open(self, source):
        return open_source(self.torch, self.folder, source, self.names, self.normalize)

    def batches(self, shuffle):
        """The numbers of the samples of each batch, without end."""
        epoch = 0
        while True:
            places = (
                order(len(self.numbers), self.seed, epoch) if shuffle else range(len(self.numbers))
            )
            if shuffle and self.says.get("group_by_length", False):
                yield from self.grouped(places, epoch)
            else:
                yield from self.cut([self.numbers[place] for place in places])
            epoch += 1

    def cut(self, numbers):
        return [
            numbers[start : start + self.batch_size]
            for start in range(0, len(numbers), self.batch_size)
        ]

    def grouped(self, places, epoch):
        """Batches of samples of about one length, as `group_by_length` makes them of an order."""

        def key(place):
            return sum(map(len, self.train.pairs[self.numbers[place]])), place

        width = POOL * self.batch_size
        for pool, start in enumerate(range(0, len(places), width)):
            batches = self.cut(
                [self.numbers[place] for place in sorted(places[start : start + width], key=key)]
            )
            for batch in order(len(batches), self.seed, epoch | (pool + 1) << 32):
                yield batches[batch]

    def loss(self, output, target):
        """The loss of an output, whose classes are in the dimension that the run file names."""
        if self.class_dim == -1:
            output = output.movedim(-1, 1)
        return self.criterion(output, target)

    def counted(self, target):
        """The number of elements of a mean loss, if microbatches differ in it."""
        if self.by_class and target.dim() > 1:
            return int((target != self.criterion.ignore_index).sum())
        return len(target)


def train(run, model, steps, shuffle, metrics=None):
    """Trains, and returns the losses."""
    torch, says = run.torch, run.says
    name, arguments = choice(says["optimizer"])
    optimizer = getattr(torch.optim, name)(
        model.parameters(), **{"lr": 1e-3, **arguments}, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(says.get("lr_schedule", "constant"), step)
    )
    microbatches, clip, losses = says.get("microbatches", 1), says.get("clip_grad_norm"), []
    model.train()
    for step, numbers in zip(range(1, steps + 1), run.batches(shuffle)):
        inputs, target = run.train.batch(numbers)
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss, counted = torch.zeros(()), run.counted(target)
        for *xs, y in zip(*(part.tensor_split(microbatches) for part in [*inputs, target])):
            if len(y):
                part = run.loss(model(*xs), y) * (run.counted(y) / counted)
                part.backward()
                loss += part.detach()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if metrics:
            took = round((time.perf_counter() - begun) * 1e3, 3)
            line = {
                "step": step,
                "loss": float(f"{loss.item():.9g}"),
                "samples": len(numbers),
                "step_ms": took,
            }
            print(json.dumps(line, separators=(",", ":")), file=metrics, flush=True)
        if step % 50 == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss.item():.4f}", file=sys.stderr, flush=True)
    return losses


def score(run, model, source, numbers):
    """The mean loss, and the share of correct targets if they are classes."""
    torch, total, counted, right, targets = run.torch, 0.0, 0, 0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(numbers), 256):
            inputs, target = source.batch(numbers[start : start + 256])
            output, here = model(*inputs), run.counted(target)
            total, counted = total + run.loss(output, target).item() * here, counted + here
            if run.by_class:
                known = target != run.criterion.ignore_index
                right += int((output.argmax(run.class_dim).eq(target) & known).sum())
                targets += int(known.sum())
    model.train()
    said = f"loss {total / max(counted, 1):.4f}"
    return f"accuracy {100 * right / max(targets, 1):.2f} %, {said}" if run.by_class else said


def main(about, make, names, more=None):
    """The command line of a twin. `make(torch, sizes)` gives the model; `names` are its inputs in
    their order; `more` may add arguments, and gives a function that is called with what was parsed,
    torch and the run before anything is trained, and says whether that was all."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(sys.argv[0]).parent / "run.yaml"
    parser.add_argument(
        "run", type=Path, nargs="?", default=default, help="the run file [default: %(default)s]"
    )
    parser.add_argument("--init", type=Path, help="start from these weights")
    parser.add_argument(
        "--write-init", type=Path, metavar="FILE", help="write the weights it begins with, and end"
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help="write a line of JSON for every step"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the final weights")
    parser.add_argument(
        "--no-shuffle", action="store_true", help="take samples in the order of the file"
    )
    parser.add_argument("--steps", type=int, help="so many, and not as many as the run file says")
    parser.add_argument("--threads", type=int, help="compute threads [default: one for each core]")
    then = more(parser) if more else None
    options = parser.parse_args()
    torch = pytorch.load()
    if options.threads:
        torch.set_num_threads(options.threads)
    run = Run(torch, options.run, names)
    torch.manual_seed(run.seed)
    model = make(torch, sizes(run.model))
    weights = run.says.get("weights")
    if options.init:
        put(model, load(torch, options.init))
    elif weights:
        table = {} if isinstance(weights, str) else weights.get("rename", {})
        path = run.folder / (weights if isinstance(weights, str) else weights["path"])
        put(model, renamed(torch, load(torch, path), model.state_dict(), table))
    if options.write_init:
        save(options.write_init, model)
        return
    if then and then(options, torch, run, model):
        return
    metrics = options.metrics.open("w") if options.metrics else None
    train(run, model, options.steps or run.steps, not options.no_shuffle, metrics)
    if options.save:
        save(options.save, model)
    if run.validation:
        print("validation", score(run, model, *run.validation))
    if "test" in run.says["data"]:
        test = run.open(run.says["data"]["test"])
        print("test", score(run, model, test, range(test.samples)))


def save(path, model):
    from_torch.save(path, model.state_dict())
