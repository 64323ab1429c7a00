"""The scripts of `make setup`, `make demo` and `make test` run on Python 3.8, which
check_tools.sh asks for. Newer syntax, and newer functions as far as they can be told by their
names, are found here with any Python."""

import ast
import unittest
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Scripts that need torch 2.11 or transformers, and so Python 3.10 or newer, and that no other
# script imports.
NEWER = {
    "tools/autocast_oracle.py",
    "tools/bleu_oracle.py",
    "tools/huggingface_cases.py",
    "tools/huggingface_oracle.py",
    "tools/layer_modules.py",
    "tools/layer_oracle.py",
    "tools/script_oracle.py",
}
NEWER_METHODS = {"removeprefix", "removesuffix", "is_relative_to", "with_stem", "bit_count"}
NEWER_FUNCTIONS = {
    "ast.unparse",
    "functools.cache",
    "itertools.batched",
    "itertools.pairwise",
    "math.lcm",
    "random.randbytes",
}
NEWER_MODULES = {"graphlib", "tomllib", "zoneinfo"}
NEWER_KEYWORDS = {"cancel_futures"}
BUILT_IN_TYPES = {"dict", "frozenset", "list", "set", "tuple", "type"}


def scripts():
    for folder in ("tools", "bench"):
        for path in sorted((CHECKOUT / folder).glob("*.py")):
            yield path, f"{folder}/{path.name}"


def too_new(text):
    """The lines of a script that Python 3.8 does not run, with the reason."""
    try:
        tree = ast.parse(text, feature_version=(3, 8))
    except SyntaxError as problem:
        return [(problem.lineno, str(problem.msg))]
    found = [(node.lineno, reason(node)) for node in ast.walk(tree) if reason(node)]
    return sorted(found)


def reason(node):
    """Why Python 3.8 does not run this part of a program; None if it does, as far as can be
    told."""
    if isinstance(node, ast.Call) and name_of(node.func) == "zip" and node.keywords:
        return "`zip` with a keyword"
    if isinstance(node, ast.keyword) and node.arg in NEWER_KEYWORDS:
        return f"`{node.arg}=`"
    if isinstance(node, ast.Attribute):
        if node.attr in NEWER_METHODS or name_of(node) in NEWER_FUNCTIONS:
            return f"`{node.attr}`"
    if isinstance(node, ast.Subscript) and name_of(node.value) in BUILT_IN_TYPES:
        return f"`{node.value.id}[..]`"
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None)]
        return next((f"module `{name}`" for name in names if name in NEWER_MODULES), None)
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.BitOr):
        sides = (
            [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        )
        if not any(map(is_number_or_set, sides)):
            return "`|`, unless its sides are numbers or sets"
    return None


def name_of(node):
    """`a` or `a.b`; None for everything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def is_number_or_set(node):
    """Whether it is seen that an operand of `|` is neither a dict nor a type."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return is_number_or_set(node.left) or is_number_or_set(node.right)
    if isinstance(node, ast.Call):
        return (
            name_of(node.func) in ("set", "frozenset") or getattr(node.func, "attr", "") == "keys"
        )
    if isinstance(node, ast.Attribute):  # a flag, such as fcntl.LOCK_EX
        return node.attr.isupper()
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    return isinstance(node, (ast.Set, ast.SetComp, ast.BinOp, ast.UnaryOp, ast.Compare))


class Python38(unittest.TestCase):
    def test_no_script_needs_a_newer_one(self):
        for path, name in scripts():
            if name not in NEWER:
                with self.subTest(name):
                    self.assertEqual(too_new(path.read_text(encoding="utf-8")), [])

    def test_what_needs_a_newer_one_is_imported_by_nothing_else(self):
        for path, name in scripts():
            if name not in NEWER:
                tree = ast.parse(path.read_text(encoding="utf-8"))
                imported = {
                    f"tools/{alias.name}.py"
                    for node in tree.body
                    if isinstance(node, ast.Import)
                    for alias in node.names
                }
                self.assertEqual(imported & NEWER, set(), name)

    def test_newer_syntax_and_functions_are_found(self):
        for text in (
            "zip(a, b, strict=True)",
            "isinstance(a, int | float)",
            "def f(a: dict | None): pass",
            "def f(a: list[int]): pass",
            "a | {'b': 1}",
            "a |= {name: 1 for name in b}",
            "os.environ | a",
            "a.removeprefix('b')",
            "a.removesuffix('b')",
            "functools.cache",
            "import tomllib",
        ):
            self.assertEqual([line for line, _ in too_new(text)], [1], text)
        for text in (
            "zip(a, b)",
            "isinstance(a, (int, float))",
            "def f(a: List[int]): pass",
            "{**a, 'b': 1}",
            "a << 2 | b",
            "{1} | a",
            "a.keys() | b.keys()",
            "fcntl.LOCK_EX | fcntl.LOCK_NB",
            "self.cache",
            "a.dict['b']",
        ):
            self.assertEqual(too_new(text), [], text)


if __name__ == "__main__":
    unittest.main()
