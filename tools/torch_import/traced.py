"""Any module as a model file and its weights."""

import hashlib

import torch

from . import exported, inputs, names, yaml_text
from .problem import Unknown
from .translate import Translation
from .weights import kept, save, save_rest


class Traced:
    """A module's translation: its text and its weights."""

    def __init__(self, module, lines, name):
        self.module, self.lines, self.name = module, lines, name
        self.inputs = [inputs.parse(line) for line in lines]
        self.training = exported.export(module, self.inputs)
        exported.refuse_drawn_constants(module, self.inputs, self.training)
        self.translation = Translation(self.training)
        self.text = self.text_of(self.translation)
        self.quiet = Translation(self.training, random=False)
        self.refuse_other_evaluation()

    def quiet_first(self):
        """The model file without what is random, of the first output alone."""
        self.quiet = Translation(self.training, random=False, outputs=1)
        return self.text_of(self.quiet), self.quiet

    def text_of(self, translation):
        return yaml_text.text(
            self.name, translation.inputs, self.lines, translation.entries, translation.outputs
        )

    def refuse_other_evaluation(self):
        """A model file has one graph, so that of evaluation must be that of training, but for what
        is random."""
        evaluation = exported.export(self.module, self.inputs, training=False)
        other = Translation(evaluation, random=False, training=False)
        lines = [layers_of(translation) for translation in (self.quiet, other)]
        if lines[0] == lines[1]:
            return
        pairs = zip([*lines[0], "the end"], [*lines[1], "the end"])
        here, there = next(
            ((a, b) for a, b in pairs if a != b), ("other outputs", "those of training")
        )
        raise Unknown(
            f"forward() computes in training what it does not in evaluation: {here}, not {there}; "
            "make a module that computes the same in both"
        )

    def tensors(self, translation=None):
        """The module's name of each tensor of the model file."""
        entries = (translation or self.translation).entries
        return {
            f"{entry.name}.{local}": path
            for entry in entries
            for local, path in entry.tensors.items()
        }

    def unused(self):
        """Parameters of the module that no layer has."""
        known = {id(self.translation.state[path]) for path in self.tensors().values()}
        return [name for name, tensor in self.module.named_parameters() if id(tensor) not in known]

    def write(self, folder):
        """Writes the model file, its weights, its constants, which names the module has for each
        tensor in it, and the module's other tensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.yaml").write_text(self.text, encoding="utf-8")
        self.write_tensors(folder)
        own, rest = self.own_names()
        rest = kept(rest)
        names.write(folder, own, list(rest))
        save_rest(folder, rest)

    def own_names(self):
        """The names in the module's state_dict of each tensor of the model file, and the tensors
        of the state_dict that the model file does not have."""
        state, aliases = self.translation.state, self.translation.aliases
        own = {name: aliases[id(state[path])] for name, path in self.tensors().items()}
        known = {name for all_own in own.values() for name in all_own}
        rest = {
            name: tensor
            for name, tensor in state.items()
            if name not in known and isinstance(tensor, torch.Tensor)
        }
        return own, rest

    def write_tensors(self, folder, translation=None):
        translation = translation or self.translation
        state = translation.state
        found = {name: state[path] for name, path in self.tensors(translation).items()}
        for entry in translation.entries:
            # A learned number is a tensor of one dimension in BossMan.
            if entry.kind == "Parameter" and entry.tensors:
                name = f"{entry.name}.value"
                found[name] = found[name].reshape(entry.arguments["shape"])
        save(folder / "model.safetensors", found)
        needed = {
            entry.arguments["tensor"] for entry in translation.entries if entry.kind == "Constant"
        }
        if needed:
            constants = translation.constants
            save(
                folder / "constants.safetensors", {name: constants[name] for name in sorted(needed)}
            )


def layers_of(translation):
    """A text for each layer, and one for the outputs: what it is, its tensors and constants, and
    where its inputs come from."""
    numbers = {id(entry): number for number, entry in enumerate(translation.entries)}

    def origin(value):
        return f"{numbers[id(value.entry)]}.{value.index}" if value.entry else value.hint

    def text(entry):
        parts = [f"{entry.name or ''} {yaml_text.head(entry)}".strip()]
        parts += [] if entry.formal else [f"of {', '.join(map(origin, entry.inputs))}"]
        parts += [f"with {path}" for path in entry.tensors.values()]
        parts += ["frozen"] if entry.freeze else []
        parts += [f"sharing {numbers[id(entry.share)]}"] if entry.share else []
        if entry.kind == "Constant":
            tensor = translation.constants[entry.arguments["tensor"]]
            parts.append(f"SHA-256 {hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}")
        return " ".join(parts)

    outputs = ", ".join(map(origin, translation.outputs))
    return [*map(text, translation.entries), f"outputs {outputs}"]
