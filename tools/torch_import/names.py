"""The file that says which names of a module the tensors of its model file have."""

import json

FILE, REST = "names.json", "rest.safetensors"


def write(folder, names, rest):
    """Writes the module's names of each tensor (one, or a list of those of tied tensors), and the
    names of those that no layer has."""
    short = {name: own[0] if len(own) == 1 else own for name, own in names.items()}
    text = json.dumps({"tensors": short, "rest": rest}, indent=1) + "\n"
    (folder / FILE).write_text(text, encoding="utf-8")


def read(found):
    """The same, as lists, of what the file holds; an error of Python if it is another file."""
    rest = found["rest"]
    names = {
        name: [own] if isinstance(own, str) else own for name, own in found["tensors"].items()
    }
    texts = [*rest, *names, *(name for own in names.values() for name in own)]
    lists = [rest, *names.values()]
    if not all(isinstance(one, list) for one in lists):
        raise ValueError("expected lists of names")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("expected names")
    return names, rest
