"""The graph of a module, as torch.export sees it, and what is refused of it."""

import contextlib
import inspect
import sys
import traceback
from pathlib import Path

import torch

from .problem import Unknown

# Two sizes of each word. Constants are computed with both, so that those that depend on the batch
# are told from those that do not.
SIZES = [(2, 3), (5, 7), (11, 13), (17, 19)]


class Exported:
    """The graph, the module, and the word of each symbol."""

    def __init__(self, module, program, inputs):
        self.module, self.program, self.inputs = module, program, inputs
        self.symbols, self.batch = {}, None
        names = {spec.arg.name for spec in program.graph_signature.input_specs if is_input(spec)}
        self.placeholders = [
            node for node in program.graph.nodes if node.op == "placeholder" and node.name in names
        ]
        for node, given in zip(self.placeholders, inputs):
            for size, word in zip(node.meta["val"].shape, given.sizes):
                if isinstance(word, str):
                    symbol = getattr(getattr(size, "node", None), "expr", None)
                    if symbol is None or symbol.is_number:
                        raise Unknown(
                            f"the graph holds for {word} = {size} only, because the code of the "
                            f"module makes a number of the size of {given.name}; take sizes from "
                            "x.shape and keep Python's int() away from them"
                        )
                    self.symbols.setdefault(symbol, word)
                    self.batch = symbol if self.batch is None else self.batch
        self.words = list(dict.fromkeys(self.symbols.values()))

    def argument_names(self):
        return list(inspect.signature(self.module.forward).parameters)

    def size_of_one(self, size):
        """A size as a number in the second trial, but with a batch of one sample."""
        return self.size(size, 1, {self.batch: 1})

    def size(self, size, trial, others=None):
        """A size as a number in one of the two trials."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        if expression is None:
            return size
        known = {
            symbol: SIZES[self.words.index(word)][trial] for symbol, word in self.symbols.items()
        }
        known.update(others or {})
        number = expression.subs(known)
        if isinstance(size, torch.SymBool):
            return bool(number)
        return float(number) if isinstance(size, torch.SymFloat) else int(number)


# The errors of torch.export for code that needs a value of a tensor.
DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DataDependentOutputException")

DRAWN = "draws random numbers outside PyTorch, which would be frozen; use torch.nn.Dropout"
OWN_BACKWARD = "has a backward of its own, which a model file cannot say"


def is_input(spec):
    return spec.kind.name == "USER_INPUT"


def export(module, inputs, training=True):
    """The graph of a module in training or evaluation."""
    words = list(dict.fromkeys(word for given in inputs for word in given.sizes if is_word(word)))
    if len(words) > len(SIZES):
        raise Unknown(
            f"the inputs have the words {', '.join(words)}; expected {len(SIZES)} or less"
        )
    dims = {word: torch.export.Dim(word.replace("-", "_")) for word in words}
    shapes = [
        {place: dims[word] for place, word in enumerate(given.sizes) if is_word(word)}
        for given in inputs
    ]
    examples = [example(given, words, 0) for given in inputs]
    by_name = set(inspect.signature(module.forward).parameters)
    refuse_hooked_parameters(module)
    modes = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        if all(given.name in by_name for given in inputs):
            named = dict(zip([given.name for given in inputs], examples))
            program = quiet(module, (), named, dict(zip(named, shapes)))
        else:
            program = quiet(module, tuple(examples), {}, tuple(shapes))
    except Unknown:
        raise
    except Exception as problem:
        if type(problem).__name__ in DATA_DEPENDENT:
            raise Unknown(
                f"the module branches on the values of a tensor{where(problem)}. A model file has "
                "the same layers for all values: select by torch.where() instead"
            ) from problem
        # torch.export raises errors of many types for code that it cannot follow.
        raise Unknown(
            f"torch.export cannot follow the module{where(problem)}: {said(problem)}"
        ) from problem
    finally:
        for part, mode in modes.items():
            part.training = mode
    return Exported(module, program, inputs)


def quiet(module, positional, named, shapes):
    with contextlib.ExitStack() as stack:
        import logging
        import warnings

        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        log = logging.getLogger("torch")
        level = log.level
        log.setLevel(logging.ERROR)
        stack.callback(log.setLevel, level)
        if isinstance(shapes, tuple) and accepts_any(module):
            shapes = (shapes,)
        stack.enter_context(without_own_backward())
        numbers = drawn_numbers()
        program = torch.export.export(
            module, positional, named, dynamic_shapes=shapes, strict=False
        )
        if drawn_numbers() != numbers:
            raise Unknown(f"forward() {DRAWN}")
        return program


def drawn_numbers():
    """The states of Python's random numbers and NumPy's."""
    import random

    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state(legacy=True) if numpy else ()
    return random.getstate(), [part.tolist() if hasattr(part, "tolist") else part for part in state]


@contextlib.contextmanager
def without_own_backward():
    """Refuses what changes gradients, while it lasts: torch.export keeps what forward() computes
    alone."""
    function, tensor = torch.autograd.Function, torch.Tensor
    apply, register_hook = vars(function)["apply"], tensor.register_hook

    def refuse_function(cls, *_, **__):
        raise Unknown(f"{cls.__name__}{line(traceback.extract_stack())} {OWN_BACKWARD}")

    def refuse_hook(*_, **__):
        raise Unknown(
            f"a tensor with register_hook(){line(traceback.extract_stack())} {OWN_BACKWARD}"
        )

    function.apply, tensor.register_hook = classmethod(refuse_function), refuse_hook
    try:
        yield
    finally:
        function.apply, tensor.register_hook = apply, register_hook


def refuse_hooked_parameters(module):
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise Unknown(f"the parameter {name}, which has hooks, {OWN_BACKWARD}")


def accepts_any(module):
    """Whether forward() is `forward(self, *inputs)`, whose shapes are given as one tuple."""
    kinds = [part.kind for part in inspect.signature(module.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


def is_word(size):
    return isinstance(size, str)


def example(given, words, trial):
    """An input of one of the two trial sizes."""
    sizes = [SIZES[words.index(size)][trial] if is_word(size) else size for size in given.sizes]
    dtype = getattr(torch, given.dtype)
    return (
        torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.ones(sizes).to(dtype)
    )


def where(problem):
    """The line outside PyTorch that was running at an error."""
    return line(traceback.extract_tb(problem.__traceback__))


def line(frames):
    """The last line outside PyTorch and these tools."""
    frames = [
        frame
        for frame in frames
        if "/torch/" not in frame.filename and Path(frame.filename).parent.name != "torch_import"
    ]
    return f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def said(problem):
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] if lines else type(problem).__name__


def constants(exported):
    """The tensors that the graph holds, by name: neither parameters nor buffers."""
    return {
        name: tensor
        for name, tensor in exported.program.constants.items()
        if isinstance(tensor, torch.Tensor)
    }


def refuse_drawn_constants(module, inputs, exported):
    """A random number drawn outside PyTorch would be the same for ever: two exports under two seeds
    must hold equal constants."""
    import random

    state, numbers = torch.get_rng_state(), random.getstate()
    torch.manual_seed(1)
    random.seed(1)
    seed_numpy()
    try:
        again = export(module, inputs)
    finally:
        torch.set_rng_state(state)
        random.setstate(numbers)
    first, second = constants(exported), constants(again)
    same = first.keys() == second.keys() and all(
        first[name].shape == second[name].shape and torch.equal(first[name], second[name])
        for name in first
    )
    codes = [str(part.program.graph_module.code) for part in (exported, again)]
    if not same or codes[0] != codes[1]:
        raise Unknown(f"two exports of the module differ, so its forward() {DRAWN}")


def seed_numpy():
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(1)


def location(node):
    """The module and the line of a node, for an error."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    trace = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    files = [place for place, line in enumerate(trace) if line.startswith('File "')]
    found = f"in {path.split('@')[0] or 'the model'}"
    if files:
        file, line = trace[files[-1]].split(",")[:2]
        code = trace[files[-1] + 1] if len(trace) > files[-1] + 1 else ""
        found += f", {file[6:-1]},{line}: `{code}`"
    return found
