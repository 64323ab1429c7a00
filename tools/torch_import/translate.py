"""From the graph of torch.export to entries of a model file."""

import operator

import torch

from . import functions, modules, regions
from .entries import Entry, Value, formal_inputs, used
from .exported import SIZES, location
from .problem import NoLayer, Unknown
from .repeats import hoisted
from .table import neighbours, refuse_batch
from .views import roots
from .yaml_text import NAME

IGNORED = {
    "_assert_tensor_metadata",
    "_assert_scalar",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_assert_async",
}

# Layers whose first input may be of whole numbers or truth values.
ANY_DTYPE = set(
    """
    Add Aten Chunk Concat Constant Embedding Expand Flatten Flip Identity Index Mul Pad Parameter
    Permute Reshape Roll Select Slice Split Squeeze Stack Sub Transpose Unflatten Unsqueeze
    """.split()
)


class Parameter:
    """A learned tensor: all names that the module has for it."""

    def __init__(self, names, tensor):
        self.names, self.tensor = names, tensor


class Constant:
    """A tensor that no input changes, in both trials of the batch size."""

    def __init__(self, trials):
        self.trials = trials

    @property
    def fixed(self):
        """Whether it is the same for each batch."""
        first, second = self.trials
        return first.shape == second.shape and torch.equal(first, second)

    @property
    def tensor(self):
        return self.trials[0]

    @property
    def rows(self):
        """Its rows for one sample, if all samples have the same, else None."""
        if any(
            not trial.dim() or not len(trial) or len(trial) % size
            for trial, size in zip(self.trials, SIZES[0])
        ):
            return None
        first, second = (
            trial.unflatten(0, (size, -1)) for trial, size in zip(self.trials, SIZES[0])
        )
        alike = first.shape[1:] == second.shape[1:] and all(
            torch.equal(sample, first[0]) for trial in (first, second) for sample in trial
        )
        return first[0] if alike else None

    def number(self):
        """Its number if all its elements are the same one, else None."""
        one = self.tensor.flatten()[:1]
        if not one.numel() or self.tensor.is_complex():
            return None
        if all(bool((trial == one).all()) for trial in self.trials):
            return one.item()
        return None


class Translation:
    """Entries, constants and weights of a graph. Without `random`, what is random is left out."""

    def __init__(self, exported, random=True, training=True, outputs=None):
        self.training = training
        self.exported, self.module, self.random = exported, exported.module, random
        self.entries, self.env, self.owners, self.taken = [], {}, {}, set()
        self.made, self.constants, self.declined, self.done = {}, {}, set(), set()
        self.buffers = {}
        self.state = exported.module.state_dict(keep_vars=True)
        aliases = {}
        for name, tensor in self.state.items():
            aliases.setdefault(id(tensor), []).append(name)
        self.aliases = aliases
        program = exported.program
        self.bind(program)
        self.nodes = list(program.graph.nodes)
        self.roots = roots(program.graph_module)
        self.run(self.nodes)
        self.refuse_written_buffers()
        self.outputs = self.results(program)[:outputs]
        self.entries = hoisted(used(self.entries, self.outputs))
        formal_inputs(self.entries, self.inputs[0], self.is_batch)

    def bind(self, program):
        """Gives values to the placeholders of the graph."""
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.inputs = []
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            kind = spec.kind.name
            if kind == "USER_INPUT":
                if not isinstance(node.meta.get("val"), torch.Tensor):
                    continue
                given = self.exported.inputs[len(self.inputs)]
                self.env[node] = Value(node.meta["val"], given.name)
                self.inputs.append(self.env[node])
            elif kind == "PARAMETER":
                tensor = self.state[spec.target]
                self.env[node] = Parameter(self.aliases[id(tensor)], tensor)
            elif kind in ("BUFFER", "CONSTANT_TENSOR"):
                tensor = self.state.get(spec.target)
                if tensor is None:
                    tensor = program.constants[spec.target]
                trials = [tensor.detach().clone() for _ in SIZES[0]]
                self.env[node] = Constant(trials)
                self.env[node].name = spec.target
                if kind == "BUFFER":
                    self.buffers[spec.target] = (tensor, trials)
            else:
                raise Unknown(f"the graph takes {spec.target}, a {kind.lower()}, as an input")

    def run(self, nodes):
        for node in nodes:
            if node in self.done or node.op in ("placeholder", "output"):
                continue
            if node.op == "get_attr":
                self.env[node] = self.attribute(node)
                continue
            key = regions.key(self, node)
            if key is not None and regions.convert(self, key, node, nodes):
                continue
            self.call(node)

    def attribute(self, node):
        found = node.graph.owning_module
        for part in node.target.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            return Constant([found.detach().clone() for _ in SIZES[0]])
        return found

    def call(self, node):
        """One function: a size, a constant, or a layer."""
        name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.env[node] = self.inner(node)
            return
        if name in IGNORED:
            return
        value = node.meta.get("val")
        arguments, named = self.resolve(node.args), self.resolve(node.kwargs)
        if node.target is operator.getitem and not isinstance(arguments[0], (Value, Parameter)):
            self.env[node] = arguments[0][arguments[1]]
            return
        if is_size(value):
            self.env[node] = value
            return
        if not any(map(learned, leaves([arguments, named]))):
            self.env[node] = self.fold(node, arguments, named)
            return
        self.env[node] = functions.call(self, node, name, arguments, named)

    def resolve(self, found):
        """Arguments with values in place of nodes."""
        if isinstance(found, torch.fx.Node):
            if found not in self.env:
                raise self.unknown(found, "its value is part of a layer")
            return self.env[found]
        if isinstance(found, (tuple, list)):
            return [self.resolve(part) for part in found]
        if isinstance(found, dict):
            return {key: self.resolve(part) for key, part in found.items()}
        return found

    def fold(self, node, arguments, named):
        """Computes a function of constants alone."""
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not still(node):
            raise self.unknown(node, "it draws random numbers, of which BossMan has Dropout alone")
        trials = []
        for trial in range(2):
            with torch.no_grad():
                trials.append(
                    node.target(*self.trial(arguments, trial), **self.trial(named, trial))
                )
        return constant(trials)

    def trial(self, found, trial):
        if isinstance(found, Constant):
            return found.trials[trial]
        if isinstance(found, (tuple, list)):
            return [self.trial(part, trial) for part in found]
        if isinstance(found, dict):
            return {key: self.trial(part, trial) for key, part in found.items()}
        if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.exported.size(found, trial)
        return found

    def inner(self, node):
        """A part of the graph under torch.no_grad() or another mode of gradients."""
        name = node.target.name() if callable(getattr(node.target, "name", None)) else str(node)
        modes = [part for part in node.args if not isinstance(part, torch.fx.Node)]
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            raise self.unknown(node, f"it is {name}")
        place = next(
            place
            for place, part in enumerate(node.args)
            if isinstance(part, torch.fx.Node) and part.op == "get_attr"
        )
        inner = self.env[node.args[place]]
        given = [self.resolve(part) for part in node.args[place + 1 :]]
        nodes = list(inner.graph.nodes)
        self.roots.update(roots(inner))
        for holder, value in zip([part for part in nodes if part.op == "placeholder"], given):
            self.env[holder] = value
        self.run(nodes)
        results = self.resolve(next(part for part in nodes if part.op == "output").args[0])
        without_gradient = name == "wrap_with_set_grad_enabled" and modes[0] is False
        autocast = name == "wrap_with_autocast" and modes[2] is not False
        for value in leaves(results):
            if learned(value) and (without_gradient or autocast) and floats(value):
                mode = "torch.no_grad()" if without_gradient else "torch.autocast"
                raise self.unknown(node, f"it computes under {mode}; leave it out")
        return results

    # What functions and regions call.

    def unknown(self, node, why):
        return Unknown(f"{node.target} {location(node)}: {why}")

    def no_layer(self, node, why):
        return NoLayer(f"{node.target} {location(node)}: {why}")

    def emit(self, node, kind, arguments, inputs, name=None, fakes=None):
        """Adds an entry; its first output, or all of them for a list of `fakes`."""
        entry = Entry(kind, arguments, [self.value(part, node) for part in inputs], name)
        if entry.inputs and not (kind in ANY_DTYPE and "number" not in arguments):
            dtype = getattr(entry.inputs[0].fake, "dtype", torch.float32)
            if not dtype.is_floating_point:
                raise self.no_layer(node, f"{kind} takes floating-point tensors, not {dtype}")
        for one in entry.inputs[:1]:
            dims = neighbours(kind, arguments, len(getattr(one.fake, "shape", ())))
            refuse_batch(self, node, one, dims)
        if name:
            self.taken.add(name)
        fake = node.meta.get("val")
        for place, one in enumerate(fakes if fakes is not None else [fake]):
            hint = node.name if fakes is None else f"{node.name}_{place}"
            entry.outputs.append(Value(one, hint, entry, place))
        self.entries.append(entry)
        return entry.outputs if fakes is not None else entry.outputs[0]

    def native(self, node, kind, arguments, inputs, tensors, name, fakes=None):
        """Adds an entry with parameters: `tensors` has the module's name for each of its own."""
        if not NAME.fullmatch(name):
            raise self.unknown(node, f"the name {name} has more than letters, digits, _, - and .")
        if name in self.taken:
            name = None
        for path in tensors.values():
            tensor = self.state[path]
            if tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise self.unknown(node, f"{path} is {tensor.dtype}; make the module float32")
        outputs = self.emit(node, kind, arguments, inputs, name, fakes)
        entry = self.entries[-1]
        owned = {}
        for local, path in tensors.items():
            owner = self.owners.get(id(self.state[path]))
            if owner:
                owned[local] = owner
            else:
                entry.tensors[local] = path
        if owned:
            self.share(node, entry, owned)
        # A buffer in the place of a parameter is never trained.
        trained = {
            modules.is_trained(self.state[path])
            for local, path in tensors.items()
            if not modules.is_statistic(local)
        }
        if trained == {True, False}:
            raise self.unknown(node, "some of its parameters are trained and others are not")
        entry.freeze = trained == {False} and not owned
        for local, path in entry.tensors.items():
            self.owners[id(self.state[path])] = (entry, local)
        return outputs

    def share(self, node, entry, owned):
        """Lets an entry use the parameters of one above."""
        owners = {id(owner): owner for owner, _ in owned.values()}
        fits = len(owners) == 1 and all(local == theirs for local, (_, theirs) in owned.items())
        owner = next(iter(owners.values()))
        alike = {
            local
            for local, path in entry.tensors.items()
            if local in owner.tensors
            and self.state[path].shape == self.state[owner.tensors[local]].shape
        }
        if not fits or alike:
            names = ", ".join(sorted(name for name, _ in owned.items()))
            raise self.unknown(
                node, f"its {names} is tied to another layer's, and only whole layers can share"
            )
        entry.share = owner

    def value(self, found, node):
        """An entry's output that is this parameter or constant."""
        if isinstance(found, Value):
            return found
        if isinstance(found, Parameter):
            return self.parameter(found, node)
        if isinstance(found, Constant):
            return self.constant(found, node)
        raise self.unknown(node, f"one of its inputs is {found!r}, not a tensor")

    def parameter(self, found, node, expand=False):
        """The entry of a learned tensor that no layer owns."""
        path = found.names[0]
        owner = self.owners.get(id(found.tensor))
        key = (path, expand)
        if not found.tensor.dim() and not broadcasts(node):
            raise self.unknown(
                node, f"{path} is a number; BossMan can add it and multiply with it alone"
            )
        if key in self.made:
            return self.made[key]
        if owner and owner[0].kind != "Parameter":
            raise self.unknown(
                node, f"it uses {path}, which belongs to the layer {owner[0].name}, by itself"
            )
        arguments = {"shape": list(found.tensor.shape) or [1], "expand": expand}
        if expand:
            del arguments["expand"]
        made = self.native(node, "Parameter", arguments, [], {"value": path}, path)
        made.hint = path.replace(".", "_")
        made.fake = found.tensor if not expand else node.meta.get("val")
        self.entries[-1].formal = "batch" if expand else "any"
        self.made[key] = made
        return made

    def constant(self, found, node):
        """The entry of a constant tensor in the file of constants."""
        if id(found) in self.made:
            made, known, _ = self.made[id(found)]
            if not torch.equal(known, found.trials[0]):
                raise self.unknown(node, "it takes a constant that was written to after its use")
            return made
        tensor, expand = found.tensor, not found.fixed
        if expand:
            tensor = found.rows
            if tensor is None:
                raise self.unknown(node, "it takes a constant that depends on the batch size")
        multiple = len(tensor) if expand else 1
        if multiple > 1:
            tensor = tensor.unsqueeze(0)
        if not tensor.dim():
            tensor = tensor.reshape(1)
        name = next(
            (
                name
                for name, known in self.constants.items()
                if known.dtype == tensor.dtype
                and known.shape == tensor.shape
                and torch.equal(known, tensor)
            ),
            None,
        )
        if name is None:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor.detach().clone().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        arguments = {"path": "constants.safetensors", "tensor": name, "shape": list(tensor.shape)}
        if dtype != "float32":
            arguments["dtype"] = dtype
        if expand:
            arguments["expand"] = True
        made = self.emit(node, "Constant", arguments, [])
        made.hint = name
        made.fake = tensor
        self.entries[-1].formal = "batch" if expand else "any"
        if multiple > 1:
            made = self.emit(node, "Flatten", {"start_dim": 0, "end_dim": 1}, [made])
            made.fake = found.tensor
        # The constant itself is kept, so that its id stays its own.
        self.made[id(found)] = (made, found.trials[0].clone(), found)
        return made

    def stand_in(self, trials):
        return Constant(trials)

    def batch_of(self, tensor):
        """A tensor of one row as a constant with a row for each sample."""
        return Constant([tensor.expand(size, *tensor.shape[1:]) for size in SIZES[0]])

    def rebind(self, node, value):
        """After a function has changed a tensor in place, all names of it mean the new value."""
        old = self.env[node]
        if isinstance(old, (Parameter, Constant)):
            raise self.unknown(node, "it is written to, and it is a parameter or a constant")
        for name, known in self.env.items():
            if known is old:
                self.env[name] = value

    def refuse_written_buffers(self):
        owned = {path for entry in self.entries for path in entry.tensors.values()}
        for name, (tensor, trials) in self.buffers.items():
            # A batch norm counts its batches itself.
            if name.endswith("num_batches_tracked") and name in owned:
                continue
            if any(not torch.equal(trial, tensor) for trial in trials):
                raise Unknown(
                    f"forward() writes to the buffer {name}, which only batch norms can in BossMan"
                )

    def results(self, program):
        found = []
        for spec, value in zip(
            program.graph_signature.output_specs,
            self.resolve(next(node for node in self.nodes if node.op == "output").args[0]),
        ):
            if value is None:
                continue
            if spec.kind.name != "USER_OUTPUT":
                raise Unknown(f"forward() changes {spec.target}, which BossMan cannot")
            if not isinstance(value, Value):
                raise Unknown("an output of the module depends on none of its inputs")
            found.append(value)
        if not found:
            raise Unknown("the module has no output that is a tensor")
        return found

    def is_batch(self, value):
        shape = getattr(value.fake, "shape", ())
        return bool(shape) and self.is_batch_size(shape[0])

    def is_batch_size(self, size):
        expression = getattr(getattr(size, "node", None), "expr", None)
        return expression is not None and expression == self.exported.batch

    def has_batch(self, size):
        """Whether a size grows with the batch."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        return expression is not None and self.exported.batch in expression.free_symbols


def constant(trials):
    """Constants of what a function gave in two trials."""
    if isinstance(trials[0], torch.Tensor):
        return Constant(trials)
    if isinstance(trials[0], (tuple, list)):
        return [constant(list(parts)) for parts in zip(*trials)]
    return trials[0]


def broadcasts(node):
    """Whether an operand of one element has no say in the shape of the result."""
    name = str(node.target).split(".")[1:2]
    made = node.meta.get("val")
    known = {"add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_"}
    return bool(known & set(name)) and isinstance(made, torch.Tensor) and made.dim() > 0


def leaves(found):
    if isinstance(found, (tuple, list)):
        for part in found:
            yield from leaves(part)
    elif isinstance(found, dict):
        yield from leaves(list(found.values()))
    else:
        yield found


def learned(value):
    """Whether it depends on an input or a parameter."""
    return isinstance(value, (Value, Parameter))


def floats(value):
    tensor = value.tensor if isinstance(value, Parameter) else value.fake
    return tensor is None or tensor.is_floating_point()


def is_size(value):
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def still(node):
    """Whether a dropout drops nothing."""
    return "dropout" in str(node.target) and (node.args[1] == 0 or node.args[2] is False)
