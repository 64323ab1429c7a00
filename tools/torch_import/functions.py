"""Functions of aten as layers."""

from . import arithmetic, contractions, learned, operators, pointwise, shapes, windows
from .entries import Value
from .problem import NoLayer
from .regions import writes
from .table import HANDLERS
from .views import written, zeroed

__all__ = ["arithmetic", "call", "contractions", "learned", "pointwise", "shapes", "windows"]


def call(translation, node, name, arguments, named):
    """What a function gives. One that changes a tensor in place gives a new one, too."""
    in_place = writes(node)
    if in_place and zeroed(translation, node):
        return translation.env[node]
    handler = HANDLERS.get(name[:-1] if in_place and name.endswith("_") else name)
    if in_place:
        if not isinstance(arguments[0], Value):
            raise translation.unknown(node, "it writes to a parameter or a constant")
    if handler is None:
        made = operators.operator(translation, node, arguments, named)
    else:
        made = by_handler(handler, translation, node, arguments, named)
    if in_place and made is not arguments[0]:
        made = translation.value(made, node)
        written(translation, node, node.args[0], made)
    return made


def by_handler(handler, translation, node, arguments, named):
    """What a layer gives, or else the operator itself."""
    try:
        return handler(translation, node, *arguments, **named)
    except TypeError as problem:
        if "argument" not in str(problem):
            raise
        refusal = translation.no_layer(node, f"its arguments are not known: {problem}")
    except NoLayer as problem:
        refusal = problem
    try:
        return operators.operator(translation, node, arguments, named)
    except NoLayer:
        raise refusal from None
